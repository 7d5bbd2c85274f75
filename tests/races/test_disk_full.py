"""Full disk: the error names the cause, no change is half done, and work continues once space is available."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tenuto import Tenuto
from tenuto.errors import Unavailable
from tenuto.model.doctor_findings import Severity
from tests.races import jobs
from tests.races.disposable_server import DisposableServer
from tests.races.effect_ledger import Ledger
from tests.races.invariants import assert_all_completed
from tests.races.processes import ProcessPool, Workers
from tests.races.table_queries import Observer
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
MEGABYTE = 1024 * 1024


@pytest.fixture
async def small_disk() -> AsyncIterator[tuple[DisposableServer, Path]]:
    """A server whose tasks are on a separate disk, half of it occupied by a removable file."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system to fill")
    server = await asyncio.to_thread(DisposableServer)
    disk = server.home / "small"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=0755", "tmpfs", disk], check=False)
    try:
        if mounted.returncode:
            pytest.skip("this machine does not let even root mount a tmpfs")
        owner = server.data_directory.stat()
        space = disk / "space"
        space.mkdir(0o700)
        os.chown(space, owner.st_uid, owner.st_gid)
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(14 * MEGABYTE))
        await server.migrate()
        observer = await Observer.at(server.url)
        await observer.value(f"CREATE TABLESPACE small LOCATION '{space}'")
        await observer.value("ALTER TABLE tenuto.tasks SET TABLESPACE small")
        await observer.close()
        yield server, ballast
    finally:
        await asyncio.to_thread(server.close)
        if not mounted.returncode:
            subprocess.run(["umount", disk], check=True)
        disk.rmdir()
        server.home.rmdir()


async def repeat_until_refused(ask: Callable[[], Awaitable[object]]) -> tuple[int, str]:
    """Repeat a request until it is refused; return the number of successes and the error text."""
    for granted in range(100_000):
        try:
            await ask()
        except Unavailable as error:
            return granted, str(error)
    raise AssertionError("the disk was never full")


async def test_full_disk_is_reported_and_work_continues_afterwards(
    small_disk: tuple[DisposableServer, Path], process_pool: ProcessPool, tmp_path: Path, ledger: Ledger
) -> None:
    server, ballast = small_disk
    app = Tenuto(server.url, home=tmp_path)
    observer = await Observer.at(server.url)
    workers = Workers(process_pool, server.url, tmp_path, ledger.path)
    try:
        thousand = [{"number": n, "group": "x" * 200} for n in range(1000)]
        by_thousands, refused = await repeat_until_refused(lambda: app.enqueue_many(jobs.touch, thousand))
        assert by_thousands >= 1
        assert "No space left on device" in refused
        assert "free disk space" in refused
        assert await observer.count("tasks") == by_thousands * 1000

        one_by_one, refused = await repeat_until_refused(lambda: app.enqueue(jobs.touch, 1, group="x" * 200))
        assert "free disk space" in refused
        promised = by_thousands * 1000 + one_by_one
        assert await observer.count("tasks") == promised
        problems = {each.name: each for each in await app.doctor() if each.severity is Severity.PROBLEM}
        assert "server_disk" in problems
        assert "No space left on device" in problems["server_disk"].details[0]
        assert problems["server_disk"].remedy == "free disk space on the database server"

        # A worker that finds the disk full keeps running and logs that it cannot write.
        worker = await workers.start("worker", slots=50).wait_until_ready()
        ballast.unlink()
        assert [each.severity for each in await app.doctor() if each.name == "server_disk"] == [Severity.OK]

        await app.enqueue(jobs.touch, 1)
        await observer.until_all_ended(within=60)
        await assert_all_completed(server.url, promised + 1, ledger.effects())
        assert not worker.has_ended()
    finally:
        await workers.kill_all()
        await observer.close()
        await app.close()


async def test_worker_writes_outcomes_once_a_full_disk_has_space(
    small_disk: tuple[DisposableServer, Path], process_pool: ProcessPool, tmp_path: Path, ledger: Ledger
) -> None:
    server, ballast = small_disk
    app = Tenuto(server.url, home=tmp_path)
    observer = await Observer.at(server.url)
    workers = Workers(process_pool, server.url, tmp_path, ledger.path)
    await observer.value("ALTER TABLE tenuto.activities_old SET TABLESPACE small")
    for (partition,) in await observer.rows(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'tenuto.activities'::regclass"
    ):
        await observer.value(f"ALTER TABLE {partition} SET TABLESPACE small")
    try:
        worker = await workers.start("worker", slots=20).wait_until_ready()
        filling = ballast.with_name("filling")
        flag = tmp_path / "go"
        await app.enqueue_many(jobs.return_large_result_after_signal, [str(flag)] * 20)
        await observer.until_running(20)
        with pytest.raises(OSError, match="No space left"):
            filling.write_bytes(bytes(24 * MEGABYTE))
        flag.touch()

        async def reported() -> bool:
            return worker.has_logged("outcomes not written yet") and worker.has_logged("free disk space")

        await eventually(reported, timeout=20, what="the worker logs that it cannot write")
        assert await observer.count("tasks", "state = 'running'") > 0
        filling.unlink()
        ballast.unlink()

        await observer.until_all_ended(within=30)
        await assert_all_completed(server.url, 20, ledger.effects())
        assert await observer.count("activities", "reason = 'lost'") == 0
        assert not worker.has_ended()
    finally:
        await workers.kill_all()
        await observer.close()
        await app.close()
