"""A worker continues with the next step group unless more urgent tasks wait for its slots."""

from __future__ import annotations

import asyncio
from typing import Any

from tenuto import Context, Step, Tenuto, manual
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually


async def test_worker_continues_with_the_next_group(app: Tenuto, worker: WorkerFactory) -> None:
    where: list[Any] = []

    @app.job
    async def note(ctx: Context) -> None:
        where.append(ctx.task.worker_id)

    steps: list[Any] = [
        Step.job(note, name="1"),
        [Step.job(note, name="2"), Step.job(note, name="3")],
        Step.job(note, name="4"),
    ]
    app.schedule("Notes", manual(), steps)
    async with worker():
        started = await app.schedules.run("Notes")
        assert started.execution_id is not None
        ended = await app.executions.wait(started.execution_id, 30)
    assert ended.state == "completed"
    assert len(where) == 4
    # The claim is part of the transaction that finishes the group: no other worker can claim in between.
    claimed = {step.number: step.run_at for step in ended.steps}
    assert sorted(claimed) == [0, 1, 2, 3]
    assert {step.attempt for step in ended.steps} == {1}


async def test_next_group_is_queued_behind_more_urgent_tasks(app: Tenuto, worker: WorkerFactory) -> None:
    order: list[str] = []
    begun, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @app.job
    async def first() -> None:
        order.append("first")
        loop.call_soon_threadsafe(begun.set)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(go_on.wait(), loop))

    @app.job
    async def second() -> None:
        order.append("second")

    @app.job(priority=100)
    async def urgent() -> None:
        order.append("urgent")

    app.schedule("Two", manual(), [Step.job(first), Step.job(second)])
    async with worker(slots=1) as busy:
        started = await app.schedules.run("Two")
        await asyncio.wait_for(begun.wait(), 10)
        await app.enqueue(urgent)
        await eventually(
            lambda: busy._fetcher.policy.may_have_tasks and not busy._fetcher.policy.cursor.positions
        )  # the worker was notified of a more urgent task
        go_on.set()
        assert started.execution_id is not None
        await app.executions.wait(started.execution_id, 30)
    assert order == ["first", "urgent", "second"]
