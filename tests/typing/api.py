"""Use of the public API as a type checker sees it; only checked, never run."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type
from uuid import UUID

from tenuto import Actor, Context, Enqueued, Job, PermanentFailure, RetryLater, RetryPolicy, Tenuto, TenutoError
from tenuto.blocking import Portal
from tenuto.model.work.tasks import ActivityState

app = Tenuto()


@dataclass
class Order:
    id: int


@app.job
def double(n: int) -> int:
    return 2 * n


@app.job(max_attempts=5, timeout="1h", retry=RetryPolicy(base_seconds=1), limit=3, tags=["a"], on_lost="fail")
async def ship(order: Order, ctx: Context, *, fast: bool = False) -> str:
    ctx.progress(1, 2, "packing")
    assert_type(ctx.cancelled, bool)
    assert_type(ctx.initiator, Actor)
    if ctx.attempt > 3:
        raise PermanentFailure("no such order")
    raise RetryLater("later", after=timedelta(minutes=1))


any_job: Job[..., int] = double
assert_type(double(3), int)
double("three")  # type: ignore[arg-type]


async def use(ctx: Context) -> None:
    assert_type(await ship(Order(1), ctx, fast=True), str)
    await ship(Order(1), ctx, slow=True)  # type: ignore[call-arg]
    coroutine: Coroutine[Any, Any, str] = ship(Order(1), ctx)
    coroutine.close()
    task = await app.enqueue(ship.using(priority=9, delay=timedelta(hours=1)), Order(1), fast=True)
    assert_type(task, Enqueued[str])
    assert_type(task.id, UUID)
    assert_type(await app.enqueue_many(double, range(10)), int)
    record = await app.wait(task, timeout=10)
    assert_type(record.state, ActivityState)
    await app.acting_as(Actor.user("ana")).cancel(task.id)
    async with app.worker(slots=5) as worker:
        worker.stop()
    try:
        await app.activity(task.id)
    except TenutoError as error:
        assert_type(error.remedy, str | None)


def use_blocking() -> None:
    with Portal(app) as portal:
        assert_type(portal.run(app.enqueue(double, 3)), Enqueued[int])


app.job(timeout=object())  # type: ignore[call-overload]
app.job(on_lost="ignore")  # type: ignore[call-overload]
