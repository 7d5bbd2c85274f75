"""From what code did (returned, raised, was stopped) to the outcome that is recorded."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from tenuto.errors import Invalid, UnknownJob
from tenuto.jobs.attempts import Attempt, Stop
from tenuto.jobs.context import LONGEST_WAIT, PermanentFailure, PutAside, RetryLater, Stopped, TimedOut
from tenuto.jobs.registry import Job
from tenuto.model.stored_values import kept_text
from tenuto.model.tasks import Outcome, Reason, Status, cancelled, error_json


def of_value(attempt: Attempt, job: Job[..., Any], value: Any, ended_at: datetime) -> Outcome:
    """The code returned."""
    context = attempt.context
    output: str | None = None
    if value is not None:
        refuse_unfinished(value)
        try:
            output = job.dump_output(value)
        except Exception as error:  # noqa: BLE001 — the work is done: a result that cannot be kept must not undo it
            context.warn(f"the result could not be stored: {error}")
    return completed(attempt, output, context.warnings, context.errors, ended_at)


def refuse_unfinished(value: Any) -> None:
    """A result that is work still to be done is no success: nothing of it has run, or not all of it."""
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        what, remedy = "a generator, whose code has not run to its end", "return a list"
    elif inspect.isawaitable(value):
        what = "something nobody has awaited, so its code has not run"
        remedy = "make the job an async def; if it is one within a decorator, let that be async def too, and await it"
    else:
        return
    if inspect.isgenerator(value) or inspect.iscoroutine(value):
        value.close()
    raise PermanentFailure(f"the job returned {what}", remedy=remedy)


def completed(
    attempt: Attempt, output: str | None, warnings: list[str], errors: list[str], ended_at: datetime
) -> Outcome:
    """The outcome of code that came to its end."""
    context = attempt.context
    if output is not None:
        output = context.hidden_json(output)
    words = (context.log_text, context.latest_progress)
    outcome = Outcome(Status.COMPLETED, None, attempt.started_at, ended_at, output, None, *words)
    if errors:
        outcome.status = Status.COMPLETED_WITH_ERROR
        outcome.error = error_json("tenuto.Error", "; ".join(errors), step=_step(attempt))
    elif warnings:
        outcome.status = Status.COMPLETED_WITH_WARNING
        outcome.error = error_json("tenuto.Warning", "; ".join(warnings), step=_step(attempt))
    return outcome


def of_error(attempt: Attempt, error: BaseException, ended_at: datetime) -> Outcome | None:
    """The code raised, or was stopped. None if nothing may be reported.

    There is an outcome whatever the classes of the error do: an attempt without one would be held for ever.
    """
    try:
        return _of_error(attempt, error, ended_at)
    except BaseException:  # noqa: BLE001 — they are others' code, called for by ours
        if attempt.stop_reason is not None:
            return of_stop(attempt, ended_at)
        return failed(attempt, ended_at, Reason.ERROR, beyond_words(_step(attempt)))


def _of_error(attempt: Attempt, error: BaseException, ended_at: datetime) -> Outcome | None:
    if attempt.stop_reason is not None:
        return of_stop(attempt, ended_at)
    if isinstance(error, PutAside):
        return Outcome(
            Status.COMPLETED, started_at=attempt.started_at, progress=attempt.context.latest_progress, aside=error.aside
        )
    reason = Reason.TIMED_OUT if isinstance(error, TimedOut) else Reason.ERROR
    if isinstance(error, UnknownJob):
        reason = Reason.REFUSED
    wait = wait_of(error)
    return failed(
        attempt,
        ended_at,
        reason,
        describe(error, _step(attempt), attempt.context.hidden),
        may_retry=not isinstance(error, PermanentFailure),
        retry_at=None if wait is None else ended_at + wait,
    )


def wait_of(error: BaseException) -> timedelta | None:
    """How long to wait before the next attempt, if the error says so."""
    if not isinstance(error, RetryLater):
        return None
    return timedelta(seconds=min(max(error.after.total_seconds(), 0.0), LONGEST_WAIT.total_seconds()))


def refused(attempt: Attempt, error: Invalid, ended_at: datetime) -> Outcome:
    """The stored input does not fit the job: trying again would not help."""
    return failed(attempt, ended_at, Reason.REFUSED, describe(error, attempt.task.name), may_retry=False)


def failed(
    attempt: Attempt,
    ended_at: datetime,
    reason: Reason,
    error: str,
    *,
    may_retry: bool = True,
    retry_at: datetime | None = None,
) -> Outcome:
    outcome = Outcome(
        Status.FAILED, reason, attempt.started_at, ended_at, error=error, may_retry=may_retry, retry_at=retry_at
    )
    _keep_words(attempt, outcome)
    return outcome


def of_stop(attempt: Attempt, ended_at: datetime) -> Outcome | None:
    """The code was stopped by us."""
    task = attempt.task
    match attempt.stop_reason:
        case Stop.LEASE_LOST | None:
            return None
        case Stop.TIMED_OUT:
            message = f"stopped after its time limit of {task.policy.timeout_seconds:g} s"
            outcome = Outcome(
                Status.FAILED, Reason.TIMED_OUT, attempt.started_at, ended_at,
                error=error_json("tenuto.TimedOut", message, step=_step(attempt)),
            )  # fmt: skip
        case Stop.HANDED_BACK:
            outcome = Outcome(
                Status.CANCELLED, Reason.HANDED_BACK, attempt.started_at, ended_at,
                error=error_json("tenuto.HandedBack", "handed back: its worker was told to stop", step=_step(attempt)),
            )  # fmt: skip
        case Stop.CANCELLED:
            assert attempt.stop_actor is not None
            outcome = cancelled(task, ended_at, attempt.stop_actor, step=_step(attempt))
            outcome.started_at = attempt.started_at
    _keep_words(attempt, outcome)
    return outcome


def _is_own_frame(filename: str) -> bool:
    return any(package in filename.replace("\\", "/") for package in ("/tenuto/jobs/", "/tenuto/steps/"))


def describe(error: BaseException, step: str, hide: Callable[[str], str] = str) -> str:
    """An exception as recorded: type, message, step, stack trace without our own frames on top."""
    if isinstance(error, Stopped):
        return error_json("tenuto.Stopped", "the code stopped itself", step=step)
    kind = type(error)
    frames = error.__traceback__
    while frames is not None and _is_own_frame(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    frames = frames or error.__traceback__
    try:
        stack = "".join(traceback.format_exception(kind, error, frames))
    except Exception:  # noqa: BLE001 — as below: where it happened can be told without what it says
        stack = "".join(traceback.format_tb(frames))
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 — an error that cannot be printed must not keep its attempt from ending
        message = "(it cannot be printed)"
    return error_json(_name(kind), hide(message), step=step, stack=hide(stack))


def beyond_words(step: str) -> str:
    """What is recorded of an error of which nothing can be told."""
    return error_json("tenuto.Unspeakable", "the code raised an error that itself fails when looked at", step=step)


def _name(kind: type[BaseException]) -> str:
    """What an error goes by: our own by their public names, wherever they are at home."""
    home, name = kind.__module__, kind.__qualname__
    if not isinstance(home, str) or home == "builtins":
        return kept_text(name, 500)
    return kept_text(f"tenuto.{name}" if home.startswith("tenuto.") else f"{home}.{name}", 500)


def _step(attempt: Attempt) -> str:
    """Where it was: the step of its chain, or the job itself."""
    return attempt.context.at_step or attempt.task.name


def _keep_words(attempt: Attempt, outcome: Outcome) -> None:
    outcome.log = attempt.context.log_text
    outcome.progress = attempt.context.latest_progress
