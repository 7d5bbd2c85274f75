"""Task cancellation (W1, W2): unclaimed tasks end at once, running code is stopped, the initiator is recorded."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from tenuto import Actor, Context, Tenuto
from tenuto.ids import new_id
from tenuto.store.work.activities import ActivityDetails
from tests.support import isolated_jobs
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

ANA = Actor.user("u-17", "Ana")


def summarise_cancellation(record: ActivityDetails) -> tuple[Any, ...]:
    return record.state, record.reason, record.final, record.error["message"], record.error["by"]


CANCELLED_BY_ANA = (
    "cancelled",
    "requested",
    True,
    "cancelled by Ana",
    {"type": "user", "id": "u-17", "name": "Ana"},
)


@pytest.mark.parametrize("delay", [None, timedelta(days=1)], ids=["queued", "scheduled"])
async def test_unclaimed_task_is_cancelled_at_once(delay: timedelta | None, app: Tenuto) -> None:
    @app.job
    async def bake() -> None: ...

    task = await app.enqueue(bake.using(delay=delay))
    assert await app.acting_as(ANA).cancel(task.id) == "cancelled"
    (record,) = await app.attempts(task.id)
    assert summarise_cancellation(record) == CANCELLED_BY_ANA
    assert record.started_at is None
    assert await app.tasks() == []


async def test_task_cancelled_while_queued_never_runs(app: Tenuto, worker: WorkerFactory) -> None:
    ran = []

    @app.job
    async def bake(n: int) -> None:
        ran.append(n)

    first, second = await app.enqueue(bake, 1), await app.enqueue(bake, 2)
    await app.cancel(first.id)
    async with worker():
        await app.wait(second, timeout=10)
    assert ran == [2]


async def test_cancelled_async_job_is_stopped(app: Tenuto, worker: WorkerFactory) -> None:
    begun, cleaned = threading.Event(), threading.Event()

    @app.job
    async def bake(ctx: Context) -> None:
        ctx.progress(1)
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    async with worker():
        task = await app.enqueue(bake)
        await eventually(begun.is_set)
        assert await app.acting_as(ANA).cancel(task.id) == "stopping"
        record = await app.wait(task, timeout=10)
    assert summarise_cancellation(record) == CANCELLED_BY_ANA
    assert cleaned.is_set()
    assert record.started_at is not None


async def test_cancelled_thread_keeps_its_slot_until_it_has_stopped(app: Tenuto, worker: WorkerFactory) -> None:
    alive = threading.Event()
    overlap = []

    @app.job
    def spin() -> None:
        alive.set()
        try:
            while True:
                pass
        finally:
            alive.clear()

    @app.job
    async def look() -> None:
        overlap.append(alive.is_set())

    async with worker(slots=1):
        task = await app.enqueue(spin)
        await eventually(alive.is_set)
        after = await app.enqueue(look)
        await app.cancel(task.id)
        assert (await app.wait(task, timeout=10)).state == "cancelled"
        await app.wait(after, timeout=10)
    assert overlap == [False]


async def test_cancelled_job_keeps_its_slot_during_cleanup(app: Tenuto, worker: WorkerFactory) -> None:
    may_go, began = threading.Event(), threading.Event()
    ran = threading.Event()

    @app.job
    async def slow_to_leave() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.to_thread(may_go.wait, 30)

    @app.job
    async def next_one() -> None:
        ran.set()

    async with worker(slots=1):
        task = await app.enqueue(slow_to_leave)
        await eventually(began.is_set)
        after = await app.enqueue(next_one)
        await app.cancel(task.id)

        async def asked() -> bool:
            return (await app.task(task.id)).cancel_at is not None

        await eventually(asked)
        assert (await app.activity(task.id)).state == "running"
        assert not ran.is_set()
        may_go.set()
        await app.wait(after, timeout=10)
        assert (await app.wait(task, timeout=10)).state == "cancelled"


@pytest.mark.usefixtures("with_isolated_jobs")
async def test_cancelled_isolated_job_is_killed_with_its_children(
    app: Tenuto, worker: WorkerFactory, tmp_path: Path
) -> None:
    file = tmp_path / "pids"
    async with worker():
        task = await app.enqueue(isolated_jobs.hang, file)
        await eventually(lambda: file.exists() and file.read_text(), timeout=30)
        pids = [int(pid) for pid in file.read_text().split()]
        assert await app.acting_as(ANA).cancel(task.id) == "stopping"
        assert summarise_cancellation(await app.wait(task, timeout=10)) == CANCELLED_BY_ANA
        await eventually(lambda: not any(is_process_alive(pid) for pid in pids))


async def test_cancellation_works_with_and_without_its_notification(
    app: Tenuto, worker: WorkerFactory, sql: Any
) -> None:
    @app.job
    async def bake() -> None:
        await asyncio.sleep(60)

    async with worker():
        task = await app.enqueue(bake)
        await wait_until_running(app, task.id)
        # As `cancel` does, but without the notification.
        await sql(
            "UPDATE tenuto.tasks SET cancel_at = now(), cancel_type = 'user', cancel_id = 'u-17', cancel_name = 'Ana'"
        )
        assert summarise_cancellation(await app.wait(task, timeout=10)) == CANCELLED_BY_ANA


async def test_repeated_cancellation_records_the_first_initiator(app: Tenuto, worker: WorkerFactory) -> None:
    begun, release = threading.Event(), threading.Event()

    @app.job
    async def bake() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.to_thread(release.wait, 30)

    async with worker():
        task = await app.enqueue(bake)
        await eventually(begun.is_set)
        for actor in (ANA, Actor.user("ben", "Ben")):
            assert await app.acting_as(actor).cancel(task.id) == "stopping"
        release.set()
        assert summarise_cancellation(await app.wait(task, timeout=10)) == CANCELLED_BY_ANA


async def test_failing_task_with_cancellation_request_is_not_retried(
    app: Tenuto, worker: WorkerFactory, sql: Any
) -> None:
    go_on = threading.Event()

    @app.job
    def fail() -> None:
        go_on.wait(30)
        raise ValueError

    async with worker() as one:
        task = await app.enqueue(fail)
        await wait_until_running(app, task.id)
        # The worker has not heard of it when the code ends.
        await sql(
            "UPDATE tenuto.tasks SET cancel_at = now(), cancel_type = 'user', cancel_id = 'u-17', cancel_name = 'Ana'"
        )
        go_on.set()
        await eventually(lambda: one.finished_count == 1)
    (record,) = await app.attempts(task.id)
    assert (record.state, record.final) == ("cancelled", True)
    assert "Ana" in record.error["message"]


async def test_task_that_completes_despite_a_cancellation_request_is_completed(
    app: Tenuto, worker: WorkerFactory, sql: Any
) -> None:
    go_on = threading.Event()

    @app.job
    def bake() -> int:
        go_on.wait(30)
        return 7

    async with worker():
        task = await app.enqueue(bake)
        await wait_until_running(app, task.id)
        await sql(
            "UPDATE tenuto.tasks SET cancel_at = now(), cancel_type = 'user', cancel_id = 'u-17', cancel_name = 'Ana'"
        )
        go_on.set()
        record = await app.wait(task, timeout=10)
    assert (record.state, record.output) in {("completed", 7), ("cancelled", None)}
    assert record.final


async def test_recovery_cancels_a_lost_task_with_cancellation_request(
    app: Tenuto, worker: WorkerFactory, sql: Any
) -> None:
    @app.job
    async def bake() -> None: ...

    task = await app.enqueue(bake)
    dead = new_id()
    await sql(
        "INSERT INTO tenuto.workers (id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at,"
        " ended_at) VALUES ($1, 'dead', 'worker', 'gone', 'x', 1, '0', '{}', 1, now(), now() - interval '1 s', now())",
        dead,
    )
    await sql(
        "UPDATE tenuto.tasks SET state = 'running', worker_id = $1, fence = 1, claimed_at = now(),"
        " lease_until = now() + interval '1 h'",
        dead,
    )
    assert await app.acting_as(ANA).cancel(task.id) == "stopping"
    async with worker():
        assert summarise_cancellation(await app.wait(task, timeout=10)) == CANCELLED_BY_ANA


async def test_ended_or_unknown_task_cannot_be_cancelled(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def bake() -> None: ...

    async with worker():
        task = await app.enqueue(bake)
        await app.wait(task, timeout=10)
    with raises_code("task.already_ended"):
        await app.cancel(task.id)
    with raises_code("task.not_found"):
        await app.cancel(new_id())


async def wait_until_running(app: Tenuto, task_id: Any) -> None:
    async def is_so() -> bool:
        return bool((await app.activity(task_id)).state == "running")

    await eventually(is_so)


def is_process_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_job_in_cleanup_is_not_cancelled_again(app: Tenuto, worker: WorkerFactory) -> None:
    begun: list[str] = []
    cleaned: list[str] = []

    @app.job
    async def tidy() -> None:
        begun.append("tidy")
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(2.5)  # longer than the poll interval of the watchdog
            cleaned.append("tidy")

    @app.job
    async def other() -> None:
        begun.append("other")
        await asyncio.sleep(60)

    async with worker():
        first, second = await app.enqueue(tidy), await app.enqueue(other)
        await eventually(lambda: len(begun) == 2)
        await app.cancel(first.id)
        await app.cancel(second.id)
        assert (await app.wait(first, 20)).state == "cancelled"
    assert cleaned == ["tidy"]
