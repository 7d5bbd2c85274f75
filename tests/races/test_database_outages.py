"""Connections are closed, notifications get lost, the server crashes: workers recover by themselves."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from tenuto import Step, Tenuto, manual
from tenuto.errors import Unavailable
from tenuto.store.work import activities, executions
from tenuto.web.server import run_web_service
from tests.races import jobs
from tests.races.disposable_server import DisposableServer
from tests.races.effect_ledger import Ledger, overlaps
from tests.races.invariants import assert_all_completed
from tests.races.processes import ProcessPool, Workers
from tests.races.proxy import Proxy
from tests.races.table_queries import Observer
from tests.support.repetition_counts import seed, times
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
TERMINATED_BACKENDS = times(40, in_a_proof=200)
CRASHES = times(3, in_a_proof=12)
POLL_SECONDS = 1.0


@pytest.fixture
async def own_server() -> AsyncIterator[DisposableServer]:
    server = await asyncio.to_thread(DisposableServer)
    await server.migrate()
    yield server
    await asyncio.to_thread(server.close)


class Enqueuer:
    """Enqueues tasks continuously and records which ones were acknowledged."""

    def __init__(self, app: Tenuto) -> None:
        self._app = app
        self._stop = False
        self.acknowledged: set[UUID] = set()
        self.refused_count = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        number = 0
        while not self._stop:
            number += 1
            try:
                self.acknowledged.add((await self._app.enqueue(jobs.touch, number, seconds=0.01)).id)
            except Unavailable:
                self.refused_count += 1

    async def stop(self) -> None:
        self._stop = True
        await self._task


async def test_terminating_backends_under_load_loses_and_repeats_no_task(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    chance = random.Random(seed())
    await app.open()
    for number in range(3):
        await workers.start(f"worker-{number}", lease_seconds=10.0).wait_until_ready()
    enqueuer = Enqueuer(app)

    for _ in range(TERMINATED_BACKENDS):
        before = ledger.begun_count()
        backends = await observer.rows(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        if backends:
            await observer.value("SELECT pg_terminate_backend($1)", chance.choice(backends)[0])

        async def some_more_has_begun(goal: int = before + chance.randrange(1, 6)) -> bool:
            return ledger.begun_count() >= goal

        await eventually(some_more_has_begun, timeout=20, what="tasks are processed")
    await enqueuer.stop()
    await observer.until_all_ended(within=30)

    known = await observer.value("SELECT count(DISTINCT task_id) FROM tenuto.activities")
    print(f"{known} tasks, {enqueuer.refused_count} refused, {await observer.rows('SELECT * FROM tenuto.repairs')}")
    await assert_all_completed(url, known, ledger.effects())
    ended = {task_id for (task_id,) in await observer.rows("SELECT task_id FROM tenuto.activities WHERE final")}
    assert enqueuer.acknowledged <= ended
    assert overlaps(ledger.effects(), {}) == []
    assert not any(process.has_ended() for process in workers.started)


async def test_repeated_server_crashes_under_load_lose_and_repeat_no_task(
    own_server: DisposableServer, process_pool: ProcessPool, tmp_path: Path, ledger: Ledger
) -> None:
    workers = Workers(process_pool, own_server.url, tmp_path, ledger.path)
    app = Tenuto(own_server.url, home=tmp_path)
    try:
        await app.open()
        for number in range(3):
            await workers.start(f"worker-{number}", lease_seconds=20.0).wait_until_ready()
        enqueuer = Enqueuer(app)
        slowest = 0.0
        for _ in range(CRASHES):
            before = ledger.begun_count()

            async def is_busy(goal: int = before + 100) -> bool:
                return ledger.begun_count() >= goal

            await eventually(is_busy, timeout=30, what="all workers are busy")
            await own_server.crash()
            silent = ledger.begun_count()
            await own_server.start()
            back = time.monotonic()

            async def at_work_again(goal: int = silent + 30) -> bool:
                return ledger.begun_count() >= goal

            await eventually(at_work_again, timeout=15, what="workers continue by themselves before any lease expires")
            slowest = max(slowest, time.monotonic() - back)
        await enqueuer.stop()
        observer = await Observer.at(own_server.url)
        await observer.until_all_ended(within=40)

        known = await observer.value("SELECT count(DISTINCT task_id) FROM tenuto.activities")
        print(f"{known} tasks, {enqueuer.refused_count} refused, longest recovery {slowest:.1f} s")
        await assert_all_completed(own_server.url, known, ledger.effects())
        ended = {task_id for (task_id,) in await observer.rows("SELECT task_id FROM tenuto.activities WHERE final")}
        assert enqueuer.acknowledged <= ended
        assert overlaps(ledger.effects(), {}) == []
        assert not any(process.has_ended() for process in workers.started)
        await observer.close()
    finally:
        await workers.kill_all()
        await app.close()


# --- notifications ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["connection closed silently", "notifications lost"])
async def test_worker_without_notification_runs_a_task_within_a_poll(
    app: Tenuto, observer: Observer, workers: Workers, proxy: Proxy, fault: str
) -> None:
    await workers.start("deaf", url=proxy.url, poll_seconds=POLL_SECONDS).wait_until_ready()

    async def is_listening() -> bool:
        return proxy.listener_count == 1

    await eventually(is_listening, timeout=10, what="it is_listening")
    if fault == "notifications lost":
        proxy.drops_notifications = True
    else:
        proxy.stall_connections("LISTEN")

    for job in (
        jobs.touch,
        jobs.touch.using(limit_key="a key", limit=1),
        jobs.touch.using(delay=timedelta(seconds=0.3)),
    ):
        took: list[float] = []
        while len(took) < 3 and not (took and took[-1] < POLL_SECONDS + 1):  # a stalled machine may spoil one
            began = time.monotonic()
            await app.enqueue(job, 1)
            await observer.until_all_ended(within=10)
            took.append(time.monotonic() - began)
        assert took[-1] < POLL_SECONDS + 1, took


async def test_busy_worker_without_notification_prefers_urgent_tasks_within_a_poll(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger, proxy: Proxy
) -> None:
    proxy.drops_notifications = True
    await app.enqueue_many(jobs.touch, ({"number": number, "seconds": 0.02} for number in range(6000)))
    await workers.start("busy", url=proxy.url, poll_seconds=POLL_SECONDS, slots=5).wait_until_ready()

    async def is_busy() -> bool:
        return ledger.begun_count() > 20

    await eventually(is_busy, timeout=10, what="the worker is busy")
    urgent = [
        await app.enqueue(jobs.touch.using(priority=10), 1),
        await app.enqueue(jobs.touch.using(priority=10, limit_key="a key", limit=1), 2),
        await app.enqueue(jobs.touch.using(priority=10, delay=timedelta(seconds=0.2)), 3),
    ]

    async def urgent_have_begun() -> bool:
        return {task.id for task in urgent} <= {effect.task for effect in ledger.effects()}

    await eventually(urgent_have_begun, timeout=POLL_SECONDS + 5, what="urgent tasks begin long before all others")
    assert await observer.count("tasks") > 0


async def test_worker_listens_again_after_its_connection_was_terminated(
    app: Tenuto, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    await workers.start("worker", poll_seconds=30.0).wait_until_ready()
    listener = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '%listener'"
    )
    pid = await observer.until(listener, within=10)

    await observer.value("SELECT pg_terminate_backend($1)", pid)

    await observer.until(f"{listener} AND pid <> $1 AND query LIKE 'LISTEN%'", pid, within=10)
    await app.enqueue(jobs.touch, 1)
    await observer.until_all_ended(within=10)  # long before the next poll


async def test_web_service_waits_for_a_database_that_becomes_unreachable(proxy: Proxy, tmp_path: Path) -> None:
    app, addresses = Tenuto(proxy.url, home=tmp_path), list[str]()
    proxy.lose_request(activities.SQL.list_partitions, times=20)  # more often than one statement is retried
    service = asyncio.create_task(
        run_web_service(app, port=0, name="web", ready=lambda address, _key: addresses.append(address))
    )
    try:
        await eventually(lambda: addresses or service.done(), timeout=60, what="the web service is ready")
        assert addresses, service.exception()
        assert proxy.lost >= 7
    finally:
        if not service.done():
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(service, 20)


@pytest.mark.parametrize("kind", ["schedule", "manifest"])
async def test_call_step_waits_for_a_database_that_becomes_unreachable(proxy: Proxy, tmp_path: Path, kind: str) -> None:
    async with Tenuto(proxy.url, home=tmp_path) as app:

        @app.job
        async def bake() -> None: ...

        app.manifest("bread", bake, on_demand=True)
        app.schedule("inner", manual(), [Step.job(bake)])
        app.schedule("outer", manual(), [Step.schedule("inner") if kind == "schedule" else Step.manifest("bread")])
        looked_for = executions.SQL.load_last_child_of_step if kind == "schedule" else activities.SQL.list_attempts
        async with app.worker(slots=5):
            proxy.lose_request(looked_for, times=8)  # more often than one statement is retried
            run = (await app.schedules.run("outer")).execution_id
            assert run is not None
            ended = await app.executions.wait(run, timeout=60)

    assert (ended.state, ended.error, proxy.lost) == ("completed", None, 8)
