"""The server, a pooler and all services are restarted under load: nothing is lost, repeated or skipped."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.failover.services import assert_nothing_lost_repeated_or_skipped, services_under_load
from tests.races.effect_ledger import Ledger
from tests.races.processes import ProcessPool
from tests.support.repetition_counts import times
from tests.support.replication import Cluster, Server, free_port
from tests.support.waiting import eventually

RESTARTS = times(1, in_a_proof=5)


async def test_restarts_of_the_server_and_of_each_service_lose_repeat_and_skip_nothing(
    cluster: Cluster, process_pool: ProcessPool, ledger: Ledger, tmp_path: Path
) -> None:
    primary, _ = await cluster.start(standby=False)
    async with services_under_load(primary.url, process_pool, tmp_path, ledger) as load:
        for number in range(RESTARTS):
            await load.until_busy()
            await asyncio.to_thread(primary.stop)  # like `pg_ctl restart -m fast` for a minor upgrade
            primary.start()
            await load.seconds_until_resumed(time.monotonic())

            for worker in [each for each in load.workers.started if each.name.startswith("worker")][-2:]:
                worker.signal(signal.SIGTERM)
                assert await worker.wait_for_exit(within=30) == 0
                replacement = load.workers.start(worker.name)
                await replacement.wait_until_ready()
            scheduler = [each for each in load.workers.started if each.name == "scheduler"][-1]
            scheduler.signal(signal.SIGTERM)
            assert await scheduler.wait_for_exit(within=30) == 0
            load.workers.start("scheduler", do="schedule")
            load.web.signal(signal.SIGTERM)
            assert await load.web.wait_for_exit(within=30) == 0
            load.web = load.start_web("web", load.web_port)
            web = load.web
            await eventually(lambda web=web: web.has_logged("web service started"), timeout=30, what=f"{number}")  # type: ignore[misc]
        await load.until_busy(more_effects=20)
        await load.stop()
        print(await assert_nothing_lost_repeated_or_skipped(primary.url, load))


# --- PgBouncer -------------------------------------------------------------------------------------------------------


class Pooler:
    """PgBouncer in transaction mode in front of a server."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._options = server.cluster.account.subprocess_options()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()
        (folder / "users.txt").write_text('"tenuto" ""\n', encoding="ascii")
        (folder / "pgbouncer.ini").write_text(
            f"""[databases]
tenuto = host=127.0.0.1 port={server.port} dbname=tenuto
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users.txt
pool_mode = transaction
max_client_conn = 200
default_pool_size = 20
server_login_retry = 1
""",
            encoding="ascii",
        )

    @property
    def url(self) -> str:
        return f"postgresql://tenuto@127.0.0.1:{self.port}/tenuto"

    def start(self) -> None:
        program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program is not None
        with (self._folder / "log").open("ab") as log:
            argv = [program, str(self._folder / "pgbouncer.ini")]
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, **self._options)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None


@pytest.fixture
def pooler_folder(cluster: Cluster) -> Path:
    if shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        missing = pytest.fail if os.environ.get("TENUTO_REQUIRE_PGBOUNCER") else pytest.skip
        missing("pgbouncer is not installed: apt-get install pgbouncer")
    return cluster.home / "pooler"


async def test_restart_of_the_pooler_loses_repeats_and_skips_nothing(
    cluster: Cluster, pooler_folder: Path, process_pool: ProcessPool, ledger: Ledger, tmp_path: Path
) -> None:
    primary, _ = await cluster.start(standby=False)
    pooler = Pooler(primary, pooler_folder)
    pooler.start()
    try:
        async with services_under_load(pooler.url, process_pool, tmp_path, ledger, behind_pooler=True) as load:
            for _ in range(RESTARTS):
                await load.until_busy()
                pooler.kill()
                await load.until_refused()
                pooler.start()
                await load.seconds_until_resumed(time.monotonic())
            await load.until_busy(more_effects=20)
            await load.stop()
            print(await assert_nothing_lost_repeated_or_skipped(primary.url, load))
    finally:
        pooler.kill()
