"""Retries (J2, J3): every attempt has its activity, delays grow, and the last attempt is final."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tenuto import Context, PermanentFailure, RetryLater, RetryPolicy, Tenuto
from tests.support.require_value import known
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

QUICK = RetryPolicy(max_attempts=3, base_seconds=0.05, factor=2, jitter=0)


@pytest.mark.parametrize(("max_attempts", "attempts"), [(1, 1), (3, 3)])
async def test_task_fails_after_max_attempts(
    max_attempts: int, attempts: int, app: Tenuto, worker: WorkerFactory
) -> None:
    @app.job(retry=RetryPolicy(max_attempts=max_attempts, base_seconds=0.01, jitter=0))
    async def fail() -> None:
        raise ValueError("no flour")

    async with worker():
        last = await app.wait(task := await app.enqueue(fail), timeout=10)
    records = await app.attempts(task.id)
    assert [record.attempt for record in records] == list(range(1, attempts + 1))
    assert [record.final for record in records] == [False] * (attempts - 1) + [True]
    assert [record.failure_count for record in records] == list(range(1, attempts + 1))
    assert {(record.state, record.reason) for record in records} == {("failed", "error")}
    assert (last.error["type"], last.error["message"]) == ("ValueError", "no flour")
    assert len({record.id for record in records}) == attempts
    assert records[0].id == task.id


async def test_retry_delays_grow(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(retry=QUICK)
    async def fail() -> None:
        raise ValueError

    async with worker():
        await app.wait(task := await app.enqueue(fail), timeout=10)
    first, second, third = await app.attempts(task.id)
    assert second.run_at - known(first.ended_at) >= timedelta(seconds=0.05)
    assert third.run_at - known(second.ended_at) >= timedelta(seconds=0.1)
    # By the clock of the database alone: that of the worker is behind it by as long as it took to hear of it.
    assert known(second.claimed_at) - second.run_at > timedelta(milliseconds=-50)
    assert known(third.claimed_at) - third.run_at > timedelta(milliseconds=-50)


async def test_next_attempt_is_visible_between_retries(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def fail() -> None:
        raise ValueError

    async with worker():
        task = await app.enqueue(fail)

        async def failed_once() -> bool:
            return len(await app.attempts(task.id)) == 2

        await eventually(failed_once)
    past, ahead = await app.attempts(task.id)
    assert (past.state, past.final) == ("failed", False)
    assert (ahead.state, ahead.attempt, ahead.failure_count) == ("scheduled", 2, 1)
    assert await app.activity(ahead.id) == ahead
    waited = ahead.run_at - known(past.ended_at)
    assert timedelta(seconds=7.9) < waited < timedelta(seconds=10.1), "ten seconds, less up to a fifth of jitter"


async def test_task_that_succeeds_on_retry_is_completed(app: Tenuto, worker: WorkerFactory) -> None:
    seen: list[tuple[int, int, str]] = []

    @app.job(retry=QUICK)
    def bake(ctx: Context) -> str:
        seen.append((ctx.attempt, ctx.fence, ctx.idempotency_key))
        if ctx.attempt < 3:
            raise ValueError
        return "bread"

    async with worker():
        record = await app.wait(task := await app.enqueue(bake), timeout=10)
    assert (record.state, record.output, record.attempt, record.failure_count) == (
        "completed",
        "bread",
        3,
        2,
    )
    assert [attempt for attempt, _, _ in seen] == [1, 2, 3]
    assert [fence for _, fence, _ in seen] == sorted({fence for _, fence, _ in seen}), "the fence grows"
    assert {key for _, _, key in seen} == {str(task.id)}, "the key stays"


@pytest.mark.parametrize("error", [PermanentFailure("burnt")])
async def test_permanent_failure_is_not_retried(error: Exception, app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(retry=QUICK)
    async def fail() -> None:
        raise error

    async with worker():
        record = await app.wait(await app.enqueue(fail), timeout=10)
    assert (record.attempt, record.final, record.failure_count) == (1, True, 1)


async def test_job_chooses_its_retry_delay(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def bake(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise RetryLater("oven is hot", after=0.1)
        return "bread"

    async with worker():
        record = await app.wait(task := await app.enqueue(bake), timeout=10)
    assert (record.output, record.attempt) == ("bread", 2)
    first, second = await app.attempts(task.id)
    assert second.run_at - known(first.ended_at) == timedelta(seconds=0.1)


async def test_task_with_invalid_input_is_not_retried(app: Tenuto, worker: WorkerFactory, sql: Any) -> None:
    @app.job(retry=QUICK)
    async def bake(flour: int) -> None: ...

    task = await app.enqueue(bake, 3)
    await sql('UPDATE tenuto.tasks SET input = \'{"flour": "much"}\'')
    async with worker():
        record = await app.wait(task, timeout=10)
    assert (record.state, record.reason, record.attempt) == ("failed", "refused", 1)
    assert record.error["message"].startswith("flour:")


async def test_completed_with_error_is_final_and_not_a_failure(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(retry=QUICK)
    async def bake(ctx: Context) -> int:
        ctx.error("half of it burnt")
        return 5

    async with worker():
        record = await app.wait(await app.enqueue(bake), timeout=10)
    assert (record.state, record.output, record.final, record.failure_count) == (
        "completed_with_error",
        5,
        True,
        0,
    )


async def test_unreadable_policy_does_not_prevent_finishing(app: Tenuto, worker: WorkerFactory, sql: Any) -> None:
    @app.job
    async def bake(n: int) -> int:
        return n

    odd = await app.enqueue(bake, 1)
    await sql("UPDATE tenuto.tasks SET policy = '{\"of_the_future\": true}'")
    plain = await app.enqueue(bake, 2)
    async with worker():
        assert (await app.wait(plain, timeout=10)).output == 2
        assert (await app.wait(odd, timeout=10)).output == 1
