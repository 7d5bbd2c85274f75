"""The context of a job (W5, J2): identity of the attempt, progress, warnings, stop requests, retry delays."""

from __future__ import annotations

import json
import math
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from tenuto import Actor, Context, RetryLater, Tenuto, injected
from tenuto.jobs.context import Stopped
from tests.support.errors import raises_code
from tests.support.model_values import NOON, make_held_task


def load_progress(context: Context) -> Any:
    assert context.progress_json is not None
    return json.loads(context.progress_json)


def test_idempotency_key_is_the_same_in_every_attempt_and_fence_grows() -> None:
    first = make_held_task()
    second = make_held_task(id=first.id, attempt=2, fence=2)
    assert Context(first).idempotency_key == Context(second).idempotency_key == str(first.id)
    assert Context(first).fence < Context(second).fence
    assert (Context(first).attempt, Context(second).attempt) == (1, 2)
    assert Context(first).activity_id != Context(second).activity_id


def test_context_has_initiator_and_scheduled_time() -> None:
    context = Context(make_held_task())
    assert context.initiator == Actor.user("ana", "Ana")
    assert context.scheduled_for == NOON
    assert context.task_id == context.task.id


def test_context_keeps_the_latest_progress() -> None:
    context = Context(make_held_task())
    assert context.progress_json is None
    context.progress(1, 10, "starting")
    context.progress(2)
    assert load_progress(context) == {"done": 2}
    context.progress(3, 10, "a\x00b\ud800" + "x" * 1000)
    state = load_progress(context)
    assert (state["done"], state["total"]) == (3, 10)
    assert state["message"].startswith("a␀b\\ud800x")
    assert len(state["message"]) < 600


@pytest.mark.parametrize(("done", "total"), [(math.nan, None), (math.inf, None), (1, math.nan), (1, -math.inf)])
def test_context_rejects_progress_that_is_not_finite(done: float, total: float | None) -> None:
    """In the database it would prevent the renewal of all leases of the worker."""
    with raises_code("job.progress.not_json"):
        Context(make_held_task()).progress(done, total)


def test_context_records_and_logs_warnings_and_errors() -> None:
    context = Context(make_held_task())
    context.warn("low on flour")
    context.error("no water")
    assert (context.warnings, context.errors) == (["low on flour"], ["no water"])
    assert "low on flour" in (context.log_text or "")
    assert "no water" in (context.log_text or "")


def test_wait_returns_false_after_its_time() -> None:
    context = Context(make_held_task())
    begun = time.monotonic()
    assert context.wait(0.05) is False
    assert time.monotonic() - begun >= 0.05


def test_wait_returns_true_at_once_on_a_stop_request() -> None:
    context = Context(make_held_task())
    results: list[bool] = []
    waiting = threading.Thread(target=lambda: results.append(context.wait(60)))
    waiting.start()
    context.request_stop()
    waiting.join(10)
    assert results == [True]
    assert context.wait(60) is True, "later waits return at once"


def test_stop_request_wakes_a_concurrent_wait() -> None:
    """The first wait creates the event; a request between check and wait must not be missed."""
    for _ in range(200):
        context = Context(make_held_task())
        waiting = threading.Thread(target=context.wait, args=(60,), daemon=True)
        waiting.start()
        context.request_stop()
        waiting.join(20)
        assert not waiting.is_alive()


def test_raise_if_cancelled_raises_after_a_stop_request() -> None:
    context = Context(make_held_task())
    context.raise_if_cancelled()
    assert [context.cancelled, context.request_stop(), context.cancelled] == [False, None, True]  # type: ignore[func-returns-value]
    with pytest.raises(Stopped):
        context.raise_if_cancelled()


def test_stopped_is_not_caught_by_except_exception() -> None:
    assert not issubclass(Stopped, Exception)


async def test_context_without_database_rejects_connection() -> None:
    with raises_code("job.isolated.unsupported"):
        async with Context(make_held_task()).connection():
            pass


def test_retry_later_takes_seconds_or_timedelta() -> None:
    assert RetryLater("x", after=90).after == RetryLater("x", after=timedelta(seconds=90)).after


def test_retry_later_with_negative_delay_retries_at_once() -> None:
    for after in (-0.5, -1.8e12, timedelta.min):
        assert RetryLater("x", after=after).after == timedelta(0)


def test_retry_later_rejects_a_delay_beyond_the_maximum() -> None:
    for after in (math.nan, math.inf, timedelta.max, timedelta(days=400_000)):
        with raises_code("job.retry_delay.out_of_range"):
            RetryLater("x", after=after)
    assert RetryLater("x", after=timedelta(days=366)).after == timedelta(days=366)


async def test_worker_fills_in_a_context_with_a_default(app: Tenuto) -> None:
    @app.job(max_attempts=1)
    async def count(n: int, ctx: Context = injected) -> int:
        return n + ctx.task.attempt

    async with app.worker():
        record = await app.wait(await count.enqueue(4), timeout=20)
    assert (record.state, record.output) == ("completed", 5)
    assert count.parameters == {"n": int}


async def test_use_of_the_default_context_is_a_clear_error() -> None:
    with raises_code("job.context.missing"):
        _ = injected.task
