"""From what code did (returned, raised, was stopped) to the outcome that is recorded."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tenuto.errors import Invalid, UnknownJob
from tenuto.handlers.attempts import Attempt, Stop
from tenuto.handlers.context import PermanentFailure, PutAside, RetryLater, Stopped
from tenuto.handlers.jobs import Job
from tenuto.model.tasks import Outcome, Reason, Status, cancelled, error_json


def of_value(attempt: Attempt, job: Job[..., Any], value: Any, ended_at: datetime) -> Outcome:
    """The code returned."""
    context = attempt.context
    output: str | None = None
    if value is not None:
        try:
            output = job.dump_output(value)
        except Exception as error:  # noqa: BLE001 — the work is done: a result that cannot be kept must not undo it
            context.warn(f"the result could not be stored: {error}")
    return completed(attempt, output, context.warnings, context.errors, ended_at)


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
    """The code raised, or was stopped. None if nothing may be reported."""
    if attempt.stop_reason is not None:
        return of_stop(attempt, ended_at)
    if isinstance(error, PutAside):
        return Outcome(
            Status.COMPLETED, started_at=attempt.started_at, progress=attempt.context.latest_progress, aside=error.aside
        )
    may_retry = True
    retry_at: datetime | None = None
    reason = Reason.ERROR
    if isinstance(error, UnknownJob):
        reason = Reason.REFUSED
    elif isinstance(error, PermanentFailure):
        may_retry = False
    elif isinstance(error, RetryLater):
        retry_at = ended_at + error.after
    described = describe(error, _step(attempt), attempt.context.hidden)
    return failed(attempt, ended_at, reason, described, may_retry=may_retry, retry_at=retry_at)


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


def describe(error: BaseException, step: str, hide: Callable[[str], str] = str) -> str:
    """An exception as recorded: type, message, step, stack trace without our own frames on top."""
    if isinstance(error, Stopped):
        return error_json("tenuto.Stopped", "the code stopped itself", step=step)
    kind = type(error)
    # Our own errors go by their public names, wherever they are at home.
    home = "tenuto" if kind.__module__.startswith("tenuto.") else kind.__module__
    name = kind.__qualname__ if home == "builtins" else f"{home}.{kind.__qualname__}"
    frames = error.__traceback__
    while frames is not None and "/tenuto/handlers/" in frames.tb_frame.f_code.co_filename.replace("\\", "/"):
        frames = frames.tb_next
    stack = "".join(traceback.format_exception(kind, error, frames or error.__traceback__))
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 — an error that cannot be printed must not keep its attempt from ending
        message = "(it cannot be printed)"
    return error_json(name, hide(message), step=step, stack=hide(stack))


def _step(attempt: Attempt) -> str:
    """Where it was: the step of its chain, or the job itself."""
    return attempt.context.at_step or attempt.task.name


def _keep_words(attempt: Attempt, outcome: Outcome) -> None:
    outcome.log = attempt.context.log_text
    outcome.progress = attempt.context.latest_progress
