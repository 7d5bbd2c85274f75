"""An asynchronous standby is promoted without the last commits: services notice it and exit."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from tenuto import Tenuto
from tenuto.errors import Unavailable
from tenuto.model.access.actors import Role
from tenuto.model.doctor_findings import Severity
from tenuto.postgres.database import Database
from tenuto.service.lost_commit_watch import HistoryWatch, read_mark
from tenuto.service.process_identity import ProcessIdentity
from tests.failover.process_launcher import PORT
from tests.failover.services import services_under_load
from tests.races.effect_ledger import Ledger
from tests.races.processes import ProcessPool, Workers
from tests.races.table_queries import Observer
from tests.support.errors import raises_code
from tests.support.replication import Cluster, Server, free_port
from tests.support.waiting import eventually


async def test_services_notice_a_database_without_their_commits_and_exit(
    cluster: Cluster, process_pool: ProcessPool, ledger: Ledger, tmp_path: Path
) -> None:
    primary, standby = await cluster.start()
    assert standby is not None
    async with services_under_load(cluster.url(), process_pool, tmp_path, ledger) as load:
        await load.until_busy()
        kept = set(load.accepted)
        await standby_has_everything(primary, standby)
        standby.stop()
        marks_before = await primary.value("SELECT sum(number) FROM tenuto.history_marks")

        async def every_service_has_a_new_mark() -> bool:
            query = "SELECT count(*) FROM tenuto.history_marks WHERE marked_at > now() - interval '3 seconds'"
            services = await primary.value(query)
            marks = await primary.value("SELECT sum(number) FROM tenuto.history_marks")
            return bool(services == 4 and marks >= marks_before + 8)  # type: ignore[operator]

        await eventually(every_service_has_a_new_mark, timeout=60, what="all services are ahead of the standby")
        primary.kill()
        accepted = set(load.accepted)
        standby.start()
        await standby.until_answering(standby=True)
        standby.promote()
        for process in load.workers.started:
            assert await process.wait_for_exit(within=30) == 75
            assert process.has_logged("committed data lost by the database")
        await load.stop()
        known = set(await task_ids(standby.url))
        lost = accepted - known
        assert lost
        assert not lost & kept, "what the standby had is not lost"
        print(f"{len(lost)} of {len(accepted)} accepted tasks are lost")

        restarted = load.workers.start("worker-0")
        await restarted.wait_until_ready()
        assert restarted.has_logged("committed data lost by the database"), "the mark of the process is in its file"
        findings = {finding.name: finding for finding in await load.app.doctor()}
        assert findings["commits_lost"].severity is Severity.PROBLEM
        assert any("worker worker-0 had seen mark" in detail for detail in findings["commits_lost"].details)
        restarted.signal(signal.SIGTERM)
        assert await restarted.wait_for_exit(within=20) == 0


async def standby_has_everything(primary: Server, standby: Server) -> None:
    position = await primary.value("SELECT pg_current_wal_lsn()::text")

    async def has_it() -> bool:
        return bool(await standby.value(f"SELECT pg_last_wal_replay_lsn() >= '{position}'"))

    await eventually(has_it, what="the standby has what was accepted so far")


async def task_ids(url: str) -> list[object]:
    observer = await Observer.at(url)
    rows = await observer.rows("SELECT id FROM tenuto.tasks UNION SELECT task_id FROM tenuto.activities")
    await observer.close()
    return [row[0] for row in rows]


@pytest.fixture
def identity(tmp_path: Path) -> Iterator[ProcessIdentity]:
    identity = ProcessIdentity.acquire("worker", tmp_path, "one")
    yield identity
    identity.release()


async def test_former_primary_is_not_used_after_its_successor(
    cluster: Cluster, identity: ProcessIdentity, tmp_path: Path
) -> None:
    primary, standby = await cluster.start(synchronous=True)
    assert standby is not None
    db = await Database.open(cluster.url(primary, standby))
    watch = HistoryWatch(tmp_path, identity)
    await watch.recall()
    await watch.begin(db)
    await watch._run_cycle()
    primary.kill()
    standby.promote()
    await standby.until_answering(standby=False)
    assert await db.fetch_value("SELECT inet_server_port()") == standby.port
    await watch._record_mark(db)
    remembered = read_mark(tmp_path, "worker", "one")
    assert remembered is not None
    assert (remembered.seen.timeline, remembered.seen.number) == (2, 2)

    primary.start()  # it does not know that it was replaced, and accepts writes
    await primary.until_answering(standby=False)
    standby.stop()
    with pytest.raises(Unavailable) as caught:
        await db.fetch_value("SELECT 1")
    assert "is a former primary: it is on timeline 1" in caught.value.message
    await db.close()

    db = await Database.open(primary.url)  # a process that is started now
    watch = HistoryWatch(tmp_path, identity)
    await watch.recall()
    with raises_code("database.server.former_primary"):
        await watch.begin(db)
    async with Tenuto(primary.url, home=tmp_path) as app:
        findings = {finding.name: finding for finding in await app.doctor()}
    assert "this server is a former primary" in findings["commits_lost"].details[0]
    await db.close()


async def test_restarted_services_use_the_promoted_server_while_the_former_primary_answers_first(
    cluster: Cluster, process_pool: ProcessPool, ledger: Ledger, tmp_path: Path
) -> None:
    former, promoted = await cluster.start(synchronous=True)
    assert promoted is not None
    url = cluster.url(former, promoted)
    workers = Workers(process_pool, url, tmp_path, ledger.path)
    try:
        first = await workers.start("one").wait_until_ready()
        first_web = workers.start("web", do="web", environment={PORT: str(free_port())})
        former.kill()
        promoted.promote()
        await promoted.until_answering(standby=False)
        for name in ("worker-one", "web-web"):

            def has_used_the_promoted_server(name: str = name) -> bool:
                service, _, process = name.partition("-")
                mark = read_mark(tmp_path, service, process)
                return mark is not None and mark.seen.timeline == 2

            await eventually(has_used_the_promoted_server, timeout=60, what=f"{name} has used the promoted server")
        await workers.stop(first, first_web)
        former.settings["synchronous_standby_names"] = ""
        former.start()  # it accepts writes, and it is the first server of the address
        await former.until_answering(standby=False)
        await promoted.value("DELETE FROM tenuto.workers")
        await former.value("DELETE FROM tenuto.workers")

        await workers.start("one").wait_until_ready()
        port = free_port()
        web = workers.start("web", do="web", environment={PORT: str(port)})
        await eventually(lambda: web.has_logged("web service started"), timeout=30, what="web service is ready")
        assert await promoted.value("SELECT count(*) FROM tenuto.workers WHERE name = 'one'") == 1
        async with Tenuto(promoted.url, home=tmp_path) as app:
            _, key = await app.api_keys.create("failover", Role.OPERATOR)
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=30.0) as client:
            answer = await client.get(f"http://127.0.0.1:{port}/api/v1/schedules")
        assert answer.status_code == 200, "requests are served from the promoted server, which has the key"
        assert await former.value("SELECT count(*) FROM tenuto.workers") == 0
        assert await former.value("SELECT count(*) FROM tenuto.api_keys") == 0
    finally:
        await workers.kill_all()
