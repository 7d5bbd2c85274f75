"""Child tasks of workflows: started once, awaited without a slot, their results durable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from tenuto import ChildFailed, Context, Enqueued, RetryPolicy, Tenuto
from tenuto.maintenance.stuck_executions import repair_stuck_executions
from tenuto.presentation.work_views import show_steps
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

IMMEDIATE_RETRIES = RetryPolicy(max_attempts=3, base_seconds=0, jitter=0)
Sql = Callable[..., Awaitable[list[dict[str, Any]]]]


class Parcel(BaseModel):
    text: str


@pytest.fixture
def calls() -> Counter[str]:
    """How often each function was called."""
    return Counter()


async def list_children(app: Tenuto, task: Enqueued[Any]) -> list[UUID]:
    """Return the child tasks that a parked task waits for."""
    reasons = (await app.why(task)).reasons
    return list(reasons[0].ids) if reasons[0].code == "waits_for_child" else []


async def test_workflow_waits_for_its_children_without_a_slot(
    app: Tenuto, worker: WorkerFactory, calls: Counter[str]
) -> None:
    @app.job(retry=IMMEDIATE_RETRIES, queue="packing")
    async def pack(ctx: Context, line: str, box: str = "box") -> Parcel:
        calls[line] += 1
        if ctx.attempt == 1 and line == "b":
            raise ConnectionError("not ready")
        return Parcel(text=f"{line} in {box}")

    @app.workflow(retry=IMMEDIATE_RETRIES)
    async def ship(ctx: Context) -> list[str]:
        calls["ship"] += 1
        ctx.log.info("called")
        first = await ctx.run(pack, "a")
        others = await ctx.gather(ctx.run(pack, "b", box="bag"), ctx.run(pack.using(priority=5), "c"))
        assert isinstance(first, Parcel)
        if ctx.attempt == 1:
            raise ConnectionError("again")
        return [first.text, *(each.text for each in others)]

    async with worker(slots=1, queues=("default",)):
        task = await ship.enqueue()
        await eventually(lambda: list_children(app, task))
        (child,) = await list_children(app, task)
        waiting = await app.task(task.id)
        assert waiting.state == "scheduled"
        assert (await app.activity(child)).parent_id == task.id
        (step,) = show_steps(await app.chain_steps(task))
        assert (step.name, step.step.child_id, step.step.ended_at) == ("1 ctx.run(pack)", child, None)
        async with worker(slots=1, queues=("packing",)):
            record = await app.wait(task, timeout=20)
    assert (record.output, record.attempt) == (["a in box", "b in bag", "c in box"], 2)
    shown = show_steps(await app.chain_steps(task))
    assert [each.name for each in shown] == [
        "1 ctx.run(pack)", "└ 2.1.1 ctx.run(pack)", "└ 2.2.1 ctx.run(pack)"
    ]  # fmt: skip
    assert [each.step.output["text"] for each in shown] == record.output
    assert calls == {"a": 1, "b": 2, "c": 1, "ship": calls["ship"]}
    assert calls["ship"] <= 5
    assert "called" in ((await app.attempts(task))[0].log or "")
    assert [each.name for each in await app.children(task.id)] == ["pack"] * 4
    assert await app.events.waits() == []


async def test_failure_of_a_child_is_raised_with_its_error(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(max_attempts=1)
    async def fails() -> int:
        raise ValueError("no stock")

    @app.job(max_attempts=1)
    async def incomplete(ctx: Context) -> int:
        ctx.error("half of it")
        return 1

    @app.workflow(retry=IMMEDIATE_RETRIES)
    async def careful(ctx: Context) -> list[str]:
        found = []
        for job in (fails, incomplete):
            try:
                await ctx.run(job)
            except ChildFailed as failed:
                found.append(f"{failed.job} {failed.status} {failed.error_type} {failed.text}")
        return found

    @app.workflow(retry=IMMEDIATE_RETRIES)
    async def careless(ctx: Context) -> int:
        return await ctx.run(fails)

    async with worker():
        record = await app.wait(await careful.enqueue(), timeout=20)
        lost = await app.wait(await careless.enqueue(), timeout=20)
        assert (lost.state, lost.attempt, lost.error["type"]) == ("failed", 1, "tenuto.ChildFailed")
        assert "no stock" in lost.error["message"]
        again = await app.wait(await app.tasks.retry(lost.task_id), timeout=20)
    assert record.output == [
        "fails failed ValueError no stock", "incomplete completed_with_error tenuto.Error half of it"
    ]  # fmt: skip
    children = [*await app.children(lost.id), *await app.children(again.id)]
    assert len(children) == 2, "an operator's retry starts the failed child again"


async def test_cancelling_a_workflow_cancels_its_children(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(queue="elsewhere")
    async def child() -> None: ...

    @app.workflow
    async def inner(ctx: Context) -> None:
        await ctx.run(child)

    @app.workflow
    async def outer(ctx: Context) -> None:
        await ctx.gather(ctx.run(inner), ctx.run(child), ctx.run(child))

    async with worker():
        task = await outer.enqueue()
        await eventually(lambda: has_open_tasks(app, 5))
        await app.cancel(task)
    assert await app.tasks() == []
    ended = await app.activities(final=True)
    assert Counter(each.state for each in ended) == {"cancelled": 5}


async def test_children_of_a_workflow_that_ended_without_them_are_cancelled(
    app: Tenuto, worker: WorkerFactory, sql: Sql
) -> None:
    @app.job(queue="elsewhere")
    async def child() -> None: ...

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.run(child)

    async with worker():
        await parent.enqueue()
        kept = await parent.enqueue()
        await eventually(lambda: has_open_tasks(app, 4))
    # As an execution does that is cancelled while it has a workflow as a step.
    await sql("DELETE FROM tenuto.tasks WHERE name = 'parent' AND id <> $1 RETURNING id", kept.id)
    database = await app.open()
    assert await repair_stuck_executions(database, database.clock.now()) == 1
    assert Counter(each.name for each in await app.tasks()) == {"parent": 1, "child": 1}
    assert await repair_stuck_executions(database, database.clock.now()) == 0


async def test_child_is_refused_in_a_step_and_with_a_unique_key(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def child() -> None: ...

    async def starts(ctx: Context) -> None:
        await ctx.run(child)

    @app.workflow(max_attempts=1)
    async def nests(ctx: Context) -> None:
        await ctx.step(starts)

    @app.workflow(max_attempts=1)
    async def names(ctx: Context) -> None:
        await ctx.run(child.using(unique_key="one"))

    async with worker():
        for job, text in ((nests, "makes a durable call itself"), (names, "cannot have the unique key")):
            record = await app.wait(await app.enqueue(job), timeout=20)
            assert text in record.error["message"]
    assert await app.tasks() == []


async def has_open_tasks(app: Tenuto, count: int) -> bool:
    """Return whether so many tasks are open and none is running."""
    found = await app.tasks()
    return len(found) == count and all(each.state != "running" for each in found)
