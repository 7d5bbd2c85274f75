"""What a job is given to work with (W5, J2): who it is, how far it has come, whether it should stop."""

from __future__ import annotations

import json
import math
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from tenuto import Actor, Context, RetryLater
from tenuto.errors import EngineError, Invalid
from tenuto.jobs.context import Stopped
from tests.support.model_values import NOON, a_held_task


def progress_of(context: Context) -> Any:
    assert context.latest_progress is not None
    return json.loads(context.latest_progress)


def test_the_key_for_receivers_is_the_same_in_every_attempt_and_the_fence_tells_them_apart() -> None:
    first = a_held_task()
    second = a_held_task(id=first.id, attempt=2, fence=2)
    assert Context(first).idempotency_key == Context(second).idempotency_key == str(first.id)
    assert Context(first).fence < Context(second).fence
    assert (Context(first).attempt, Context(second).attempt) == (1, 2)
    assert Context(first).activity_id != Context(second).activity_id


def test_it_says_who_asked_and_for_when() -> None:
    context = Context(a_held_task())
    assert context.initiator == Actor.user("ana", "Ana")
    assert context.scheduled_for == NOON
    assert context.task_id == context.task.id


def test_progress_is_the_latest_word() -> None:
    context = Context(a_held_task())
    assert context.latest_progress is None
    context.progress(1, 10, "starting")
    context.progress(2)
    assert progress_of(context) == {"done": 2}
    context.progress(3, 10, "a\x00b\ud800" + "x" * 1000)
    state = progress_of(context)
    assert (state["done"], state["total"]) == (3, 10)
    assert state["message"].startswith("a␀b\\ud800x")
    assert len(state["message"]) < 600


@pytest.mark.parametrize(("done", "total"), [(math.nan, None), (math.inf, None), (1, math.nan), (1, -math.inf)])
def test_progress_that_is_no_number_is_refused_here_and_not_in_the_database(done: float, total: float | None) -> None:
    """There it would keep the leases of all neighbours from being renewed."""
    with pytest.raises(Invalid, match="progress"):
        Context(a_held_task()).progress(done, total)


def test_warnings_and_errors_are_remembered_and_logged() -> None:
    context = Context(a_held_task())
    context.warn("low on flour")
    context.error("no water")
    assert (context.warnings, context.errors) == (["low on flour"], ["no water"])
    assert "low on flour" in (context.log_text or "")
    assert "no water" in (context.log_text or "")


def test_a_wait_that_nobody_interrupts_takes_its_time_and_says_no() -> None:
    context = Context(a_held_task())
    begun = time.monotonic()
    assert context.wait(0.05) is False
    assert time.monotonic() - begun >= 0.05


def test_a_wait_wakes_at_once_when_told_to_stop() -> None:
    context = Context(a_held_task())
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(context.wait(60)))
    waiting.start()
    context.tell_to_stop()
    waiting.join(10)
    assert answers == [True]
    assert context.wait(60) is True, "and later ones do not begin"


def test_being_told_to_stop_wakes_a_wait_however_they_meet() -> None:
    """The event is made by whoever waits first; the word must not fall between looking and waiting."""
    for _ in range(200):
        context = Context(a_held_task())
        waiting = threading.Thread(target=context.wait, args=(60,), daemon=True)
        waiting.start()
        context.tell_to_stop()
        waiting.join(20)
        assert not waiting.is_alive()


def test_looking_whether_to_stop() -> None:
    context = Context(a_held_task())
    context.check()
    assert [context.cancelled, context.tell_to_stop(), context.cancelled] == [False, None, True]  # type: ignore[func-returns-value]
    with pytest.raises(Stopped):
        context.check()


def test_being_stopped_is_no_exception_that_a_job_catches_by_accident() -> None:
    assert not issubclass(Stopped, Exception)


async def test_where_there_is_no_connection_the_error_says_why() -> None:
    with pytest.raises(EngineError, match="child process"):
        async with Context(a_held_task()).connection():
            pass


def test_a_wait_before_trying_again_may_be_seconds_or_a_span() -> None:
    assert RetryLater("x", after=90).after == RetryLater("x", after=timedelta(seconds=90)).after


def test_a_wait_until_what_has_passed_is_no_wait() -> None:
    for after in (-0.5, -1.8e12, timedelta.min):
        assert RetryLater("x", after=after).after == timedelta(0)


def test_a_wait_without_end_is_refused_where_it_is_asked_for() -> None:
    for after in (math.nan, math.inf, timedelta.max, timedelta(days=400_000)):
        with pytest.raises(Invalid):
            RetryLater("x", after=after)
    assert RetryLater("x", after=timedelta(days=366)).after == timedelta(days=366)
