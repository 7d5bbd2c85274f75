"""Uses of jobs that type checkers must accept; checked by mypy and pyright, never run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import assert_type
from uuid import UUID

from tenuto import Context, Enqueued, Job, Record, Tenuto, injected

app = Tenuto()


@dataclass
class Report:
    count: int


@app.job
def double(n: int) -> int:
    return 2 * n


@app.job
async def report(name: str, *, days: int = 7) -> Report:
    return Report(days)


@app.job(queue="mail", max_attempts=5)
async def send(to: str, subject: str = "") -> None: ...


@app.job
async def with_context(ctx: Context, n: int, *, fast: bool = False) -> str:
    return str(n)


@app.job(queue="mail")
def with_context_and_options(ctx: Context, n: int) -> float:
    return n


@app.job
async def with_later_context(n: int, ctx: Context = injected, *, fast: bool = False) -> str:
    return f"{n} in attempt {ctx.task.attempt}"


async def enqueue() -> None:
    assert_type(await double.enqueue(3), Enqueued[int])
    assert_type(await double.enqueue(n=3), Enqueued[int])
    assert_type(await report.enqueue("a", days=3), Enqueued[Report])
    assert_type(await send.enqueue("ana@example.org", subject="hi"), Enqueued[None])
    assert_type(await with_context.enqueue(1, fast=True), Enqueued[str])
    assert_type(await with_context_and_options.enqueue(1), Enqueued[float])
    assert_type(await with_later_context.enqueue(1), Enqueued[str])
    assert_type(await with_later_context.using(queue="mail").enqueue(n=1, fast=True), Enqueued[str])
    assert_type(await app.enqueue(double, 3), Enqueued[int])
    assert_type(await app.enqueue(report, "a"), Enqueued[Report])


async def enqueue_with_options() -> None:
    job = double.using(queue="fast", priority=3, unique_key="a", run_at="2031-01-01T00:00:00Z", tags=["x"])
    assert_type(await job.enqueue(3), Enqueued[int])
    assert_type(await report.using(delay=timedelta(hours=1), limit_key="k", limit=2).enqueue("a"), Enqueued[Report])
    assert_type(await with_context.using(delay="10m").enqueue(1), Enqueued[str])
    any_job: Job[..., int] = double
    assert_type(await any_job.enqueue(1, 2, three=3), Enqueued[int])


async def wait(id: UUID) -> None:
    record = await app.wait(await report.enqueue("a"), timeout="30s")
    assert_type(record, Record[Report])
    assert_type(record.output, Report)
    assert_type((await app.wait(await double.enqueue(1))).output, int)
    plain = await app.wait(id, timeout=3)
    assert_type(plain.attempt, int)


async def call(ctx: Context) -> None:
    assert_type(double(3), int)
    assert_type(await report("a"), Report)
    assert_type(await with_context(ctx, 1, fast=True), str)
    assert_type(await with_later_context(1, ctx), str)
