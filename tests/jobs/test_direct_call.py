"""`Job.call`: the code of a job runs here and now, with the validation and the context of a worker."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import date
from typing import assert_type

import pytest

from tenuto import Context, PermanentFailure, Tenuto
from tenuto.errors import EngineError, Invalid
from tenuto.jobs.context import current_context
from tests.support.errors import raises_code

app = Tenuto("postgresql://nobody@localhost:1/none")
"""Calls do not connect to the database."""


@dataclass
class Report:
    day: date
    rows: int


@app.job(queue="reports", tags=["nightly"], max_attempts=5)
async def report(ctx: Context, day: date, rows: int = 1) -> Report:
    assert current_context.get() is ctx
    assert (ctx.attempt, ctx.task.queue, ctx.task.tags, ctx.cancelled) == (1, "reports", ["nightly"], False)
    ctx.progress(1, 2, "half")
    ctx.log.info("rows %d", rows)
    await ctx.sleep("30d")
    return Report(day, rows)


@app.job
def double(n: int) -> int:
    return 2 * n


@app.job
def returns_a_lock() -> object:
    return threading.Lock()


@app.job
async def fails() -> None:
    raise PermanentFailure("no")


@app.job
async def needs_database(ctx: Context) -> None:
    async with ctx.connection():
        pass


@app.job
async def waits(ctx: Context) -> None:
    await ctx.wait_for_event("paid")


def fetch(number: int) -> list[int]:
    context = current_context.get()
    assert context is not None, "a plain step in a thread has the context"
    return [number]


async def add(numbers: list[int], ctx: Context) -> int:
    await ctx.sleep("1h")
    return sum(numbers) + 1


total = app.chain("total", fetch, add)


@app.workflow
async def order(ctx: Context, number: int) -> int:
    first, second = await ctx.gather(ctx.step(fetch, number), ctx.step(fetch, number + 1))
    await ctx.sleep("1d")
    return sum(first) + sum(second)


@app.workflow
async def with_child(ctx: Context) -> int:
    return await ctx.run(double, 2)


def test_call_of_a_plain_job_returns_its_result() -> None:
    assert_type(double.call(4), int)
    assert double.call(4) == 8
    assert double.call(n=4) == 8
    assert current_context.get() is None
    with raises_code("job.input.invalid", Invalid):
        double.call("four")  # type: ignore[arg-type]


async def test_call_of_an_async_job_passes_input_and_result_through_json() -> None:
    made = await report.call(date(2026, 11, 19), rows=7)
    assert made == Report(date(2026, 11, 19), 7)
    assert current_context.get() is None
    with pytest.raises(PermanentFailure):
        await fails.call()
    assert await total.call(number=41) == 42
    assert await order.call(3) == 7


def test_call_of_an_async_job_runs_in_a_loop_of_its_own() -> None:
    assert asyncio.run(report.call(date(2026, 1, 1))).rows == 1


async def test_call_rejects_what_only_a_worker_can_do() -> None:
    with raises_code("job.call.no_database", EngineError):
        await needs_database.call()
    with raises_code("job.call.no_events", EngineError):
        await waits.call()
    with raises_code("job.call.no_children", EngineError):
        await with_child.call()
    with raises_code("job.call.result_not_storable", Invalid):
        returns_a_lock.call()
