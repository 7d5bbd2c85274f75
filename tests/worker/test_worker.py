"""The worker (W3, W4, W5, J9): claims, runs and records tasks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import asyncpg
import pytest

from tenuto import Actor, Context, Job, Tenuto
from tenuto.jobs.enqueued_task import Enqueued
from tests.support import isolated_jobs
from tests.support.errors import raises_code
from tests.support.require_value import known
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

Sql = Callable[..., Awaitable[list[dict[str, Any]]]]


@pytest.mark.usefixtures("with_isolated_jobs")
async def test_worker_records_results_of_async_plain_and_isolated_jobs(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def on_the_loop(n: int) -> int:
        return 2 * n

    @app.job
    def in_a_thread(n: int) -> int:
        return 2 * n

    jobs: list[Job[..., Any]] = [on_the_loop, in_a_thread, isolated_jobs.double]
    async with worker():
        for job in jobs:
            record = await app.wait(await app.enqueue(job, 21), timeout=20)
            assert (record.state, record.output, record.final) == ("completed", 42, True)
            assert (record.input, record.attempt, record.error) == ({"n": 21}, 1, None)


async def test_activity_records_its_instants_and_worker(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(queue="oven", priority=3, tags=["rye"])
    async def bake(ctx: Context) -> None:
        print("kneading")
        ctx.progress(2, 2, "done")

    async with worker(queues=("oven",), name="baker") as baker:
        record = await app.wait(await app.enqueue(bake), timeout=10)
    # Measured by several clocks, each behind the database clock by the time of one reply.
    instants = [getattr(record, name) for name in ("created_at", "claimed_at", "started_at", "ended_at")]
    assert all(later - earlier > timedelta(seconds=-5) for earlier, later in pairwise(instants))
    assert record.created_at <= known(record.claimed_at)
    assert record.worker_id == baker.identity.id
    assert (record.queue, record.priority, record.tags, record.kind) == ("oven", 3, ["rye"], "job")
    assert record.progress == {"done": 2, "total": 2, "message": "done"}
    assert "kneading" in known(record.log)


async def test_progress_is_visible_while_the_task_runs(app: Tenuto, worker: WorkerFactory) -> None:
    go_on = asyncio.Event()
    loop = asyncio.get_running_loop()

    @app.job
    async def bake(ctx: Context) -> None:
        ctx.progress(1, 2, "kneading")
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(go_on.wait(), loop))

    async with worker(lease_seconds=3600):
        task = await app.enqueue(bake)

        async def seen() -> bool:
            record = await app.activity(task.id)
            now = {"done": 1, "total": 2, "message": "kneading"}
            return bool(record.state == "running" and record.progress == now)

        await eventually(seen, timeout=15)  # long before the lease, as long as an hour, is due for renewal
        go_on.set()
        assert (await app.wait(task, timeout=10)).state == "completed"


async def test_job_may_use_a_database_connection(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def ask(ctx: Context) -> list[int]:
        async with ctx.connection() as one, ctx.connection() as two:
            pids = [await one.fetchval("SELECT pg_backend_pid()"), await two.fetchval("SELECT pg_backend_pid()")]
        assert len(set(pids)) == 2
        return pids

    async with worker():
        record = await app.wait(await app.enqueue(ask), timeout=10)
    assert record.state == "completed", record.error


@pytest.mark.slow
async def test_blocked_event_loop_does_not_stall_heartbeats(app: Tenuto, worker: WorkerFactory) -> None:
    """The task runs longer than its lease; it is neither lost nor run twice."""
    ran = []

    @app.job
    async def block() -> None:
        ran.append(1)
        time.sleep(6)

    async with worker(lease_seconds=5):
        record = await app.wait(await app.enqueue(block), timeout=30)
    assert (record.state, record.attempt, record.loss_count) == ("completed", 1, 0)
    assert ran == [1]


async def test_worker_claims_tasks_while_others_run(app: Tenuto, worker: WorkerFactory) -> None:
    release = threading.Event()

    @app.job
    def slow() -> None:
        release.wait(30)

    @app.job
    async def fast() -> None: ...

    async with worker(slots=2):
        long = await app.enqueue(slow)
        for _ in range(3):
            assert (await app.wait(await app.enqueue(fast), timeout=10)).state == "completed"
        assert (await app.activity(long.id)).state == "running"
        release.set()
        await app.wait(long, timeout=10)


async def test_worker_never_runs_more_tasks_than_slots(app: Tenuto, worker: WorkerFactory) -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def enter(by: int) -> None:
        nonlocal running, most
        with lock:
            running += by
            most = max(most, running)

    @app.job
    async def on_the_loop(n: int) -> None:
        enter(1)
        await eventually(lambda: most >= 5)  # the first wait until all slots are taken
        await asyncio.sleep(0.002)
        enter(-1)

    @app.job
    def in_a_thread(n: int) -> None:
        enter(1)
        time.sleep(0.002)
        enter(-1)

    for job in (on_the_loop, in_a_thread):
        assert await app.enqueue_many(job, range(60)) == 60
    async with worker(slots=5) as five:
        await eventually(lambda: five.finished_count == 120, timeout=30)
    assert most == 5
    assert len(await app.activities(limit=500)) == 120


async def test_worker_runs_the_highest_priority_first(app: Tenuto, worker: WorkerFactory) -> None:
    order = []

    @app.job
    async def note(name: str) -> None:
        order.append(name)

    tasks = [
        await app.enqueue(note.using(priority=priority), name)
        for name, priority in [("low", -5), ("first", 0), ("second", 0), ("urgent", 9)]
    ]
    async with worker(slots=1):
        for task in tasks:
            await app.wait(task, timeout=10)
    assert order == ["urgent", "first", "second", "low"]


async def test_urgent_task_overtakes_a_long_queue(app: Tenuto, worker: WorkerFactory) -> None:
    """Also if it is ordered before the position at which the last claim ended."""
    order: list[str] = []
    release = threading.Event()

    @app.job
    def note(name: str) -> None:
        order.append(name)
        if name == "0":
            release.wait(30)

    for n in range(30):
        await app.enqueue(note, str(n))
    async with worker(slots=1) as one:
        await eventually(lambda: order == ["0"])
        urgent = await app.enqueue(note.using(priority=9), "urgent")
        await eventually(
            lambda: one._fetcher.policy.may_have_tasks and not one._fetcher.policy.cursor.positions
        )  # the worker was notified of a more urgent task
        release.set()
        await app.wait(urgent, timeout=10)
        await eventually(lambda: one.finished_count == 31, timeout=20)
    assert order[1] == "urgent"


async def test_worker_serves_only_its_queues(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def bake() -> None: ...

    here, there, third = [await app.enqueue(bake.using(queue=queue)) for queue in ("a", "b", "c")]
    async with worker(queues="a, b"):
        await app.wait(here, timeout=10)
        await app.wait(there, timeout=10)
        assert (await app.task(third.id)).state == "queued"


async def test_several_workers_run_each_task_once(app: Tenuto, worker: WorkerFactory) -> None:
    ran: list[int] = []

    @app.job
    async def count(n: int) -> None:
        ran.append(n)

    async with worker(slots=3, claim_batch=2) as one, worker(slots=3, claim_batch=2) as two:
        assert one.identity.name != two.identity.name
        await app.enqueue_many(count, range(300))
        await eventually(lambda: one.finished_count + two.finished_count == 300, timeout=30)
    assert sorted(ran) == list(range(300))
    assert [row.final for row in await app.activities(limit=500)] == [True] * 300


async def test_job_and_queue_limits_hold_across_workers(app: Tenuto, worker: WorkerFactory) -> None:
    running: dict[str, int] = {"job": 0, "queue": 0}
    most: dict[str, int] = {"job": 0, "queue": 0}
    lock = threading.Lock()

    def enter(what: str, by: int) -> None:
        with lock:
            running[what] += by
            most[what] = max(most[what], running[what])

    @app.job(limit=2)
    async def limited(n: int) -> None:
        enter("job", 1)
        await eventually(lambda: most["job"] >= 2)  # the first wait for each other
        await asyncio.sleep(0.005)
        enter("job", -1)

    @app.job(queue="narrow")
    async def in_a_queue(n: int) -> None:
        enter("queue", 1)
        await eventually(lambda: most["queue"] >= 3)
        await asyncio.sleep(0.005)
        enter("queue", -1)

    await app.limit_queue("narrow", 3)
    queues = ("default", "narrow")
    async with worker(queues=queues) as one, worker(queues=queues) as two:
        for job in (limited, in_a_queue):
            await app.enqueue_many(job, range(20))
        await eventually(lambda: one.finished_count + two.finished_count == 40, timeout=40)
    assert most == {"job": 2, "queue": 3}


async def test_paused_queue_continues_at_once_after_resume(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def bake() -> None: ...

    @app.job(queue="other")
    async def wash() -> None: ...

    async with worker(queues=("default", "other")):
        await app.acting_as(Actor.user("ana", "Ana")).pause_queue("default", reason="cleaning")
        paused = {queue.name: queue for queue in await app.queues()}["default"]
        assert (paused.paused_by, paused.reason) == ("Ana", "cleaning")
        task = await app.enqueue(bake)
        await app.wait(await app.enqueue(wash), timeout=10)
        assert (await app.task(task.id)).state == "queued"
        await app.resume_queue("default")
        assert (await app.wait(task, timeout=10)).state == "completed"


async def test_ended_task_is_not_open(app: Tenuto, worker: WorkerFactory) -> None:
    go_on = threading.Event()

    @app.job
    async def bake() -> None:
        await asyncio.to_thread(go_on.wait)

    async with worker():
        task = await app.enqueue(bake.using(unique_key="order 17"))
        again = await app.enqueue(bake.using(unique_key="order 17", delay=timedelta(hours=1)))
        assert (again.id, again.created) == (task.id, False)
        go_on.set()
        await app.wait(task, timeout=10)
        with raises_code("task.not_found"):
            await app.task(task.id)
        new = await app.enqueue(bake.using(unique_key="order 17"))
        assert new.created
        assert new.id != task.id


@pytest.mark.slow
async def test_locked_task_row_does_not_stop_renewal_of_other_leases(
    app: Tenuto, worker: WorkerFactory, url: str, sql: Sql
) -> None:
    go_on = threading.Event()

    @app.job
    async def waits(number: int) -> int:
        await asyncio.to_thread(go_on.wait)
        return number

    async def lease_of(task: Enqueued[Any]) -> datetime:
        (row,) = await sql("SELECT lease_until FROM tenuto.tasks WHERE id = $1", task.id)
        lease: datetime = row["lease_until"]
        return lease

    async with worker(lease_seconds=12):
        busy, free = await app.enqueue(waits, 1), await app.enqueue(waits, 2)
        await eventually(lambda: sql("SELECT 1 FROM tenuto.tasks WHERE state = 'running' OFFSET 1"))
        other = await asyncpg.connect(url)
        async with other.transaction():
            await other.execute("SELECT FROM tenuto.tasks WHERE id = $1 FOR UPDATE", busy.id)
            held_until = await lease_of(busy)
            for _ in range(2):
                before = await lease_of(free)

                async def is_renewed(before: datetime = before) -> bool:
                    return await lease_of(free) > before

                await eventually(is_renewed, timeout=10, what="the other is renewed")
            assert await lease_of(busy) == held_until
        await other.close()
        go_on.set()
        records = [await app.wait(task, timeout=10) for task in (busy, free)]

    assert [(record.state, record.output, record.attempt) for record in records] == [
        ("completed", 1, 1),
        ("completed", 2, 1),
    ]
