"""Outcomes of attempts: from returned values, raised errors and stops."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from tenuto.errors import Invalid, UnknownJob
from tenuto.jobs.attempts import Attempt, StopReason
from tenuto.jobs.context import MAX_DELAY, PermanentFailure, RetryLater, Stopped, TaskDeferred, TimedOut
from tenuto.jobs.registry import Job
from tenuto.jobs.workflows.failures import StepFailed
from tenuto.model.definitions.step_expressions import explain_rejected_value
from tenuto.model.validation import truncate_text
from tenuto.model.work.tasks import Deferral, Outcome, OutcomeReason, OutcomeStatus, cancelled_outcome, error_json

UNKNOWN_JOB_DELAY = timedelta(seconds=15)
"""How long a task waits whose job the claiming process does not know after all. No attempt is counted."""


def from_return_value(attempt: Attempt, job: Job[..., Any], value: Any, ended_at: datetime) -> Outcome:
    context = attempt.context
    output: str | None = None
    if value is not None:
        reject_unfinished_result(value)
        try:
            output = job.dump_output(value)
        except Exception as error:  # noqa: BLE001 — the work is done: an unstorable result must not undo it
            context.warn(f"the result could not be stored: {error}")
    return completed(attempt, output, context.warnings, context.errors, ended_at)


def reject_unfinished_result(value: Any) -> None:
    """Reject a returned generator or awaitable: its code has not run, so the attempt is no success."""
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        problem, remedy = "a generator, whose code has not run to its end", "return a list"
    elif inspect.isawaitable(value):
        problem = "an awaitable that was not awaited, so its code has not run"
        remedy = (
            "make the job an async def; if a decorator wraps it, make the wrapper async def and await the job in it"
        )
    else:
        return
    if inspect.isgenerator(value) or inspect.iscoroutine(value):
        value.close()
    raise PermanentFailure(f"the job returned {problem}", code="job.result.unfinished", remedy=remedy)


def completed(
    attempt: Attempt, output: str | None, warnings: list[str], errors: list[str], ended_at: datetime
) -> Outcome:
    """Return the outcome of code that ran to its end, with or without warnings and errors."""
    context = attempt.context
    if output is not None:
        output = context.redact_json(output)
    outcome = Outcome(
        OutcomeStatus.COMPLETED,
        None,
        attempt.started_at,
        ended_at,
        output,
        None,
        context.log_text,
        context.progress_json,
    )
    if errors:
        outcome.status = OutcomeStatus.COMPLETED_WITH_ERROR
        outcome.error = error_json("tenuto.Error", "; ".join(errors), step=_step_name(attempt))
    elif warnings:
        outcome.status = OutcomeStatus.COMPLETED_WITH_WARNING
        outcome.error = error_json("tenuto.Warning", "; ".join(warnings), step=_step_name(attempt))
    return outcome


def from_error(attempt: Attempt, error: BaseException, ended_at: datetime) -> Outcome | None:
    """Return the outcome of code that raised or was stopped; None if nothing may be reported.

    Never raises, even if the methods of the error do: an attempt without an outcome would hold its slot for ever.
    """
    try:
        return _from_error(attempt, error, ended_at)
    # guard: attempts.every_error_class
    except BaseException:  # noqa: BLE001 — formatting an error runs user code
        if attempt.stop_reason is not None:
            return from_stop(attempt, ended_at)
        return failed(attempt, ended_at, OutcomeReason.ERROR, unprintable_error_json(_step_name(attempt)))


def _from_error(attempt: Attempt, error: BaseException, ended_at: datetime) -> Outcome | None:
    if attempt.stop_reason is not None:
        return from_stop(attempt, ended_at)
    if isinstance(error, TaskDeferred):
        return Outcome(
            OutcomeStatus.COMPLETED,
            started_at=attempt.started_at,
            progress=attempt.context.progress_json,
            deferral=error.deferral,
        )
    if isinstance(error, UnknownJob) and attempt.started_at is None:  # guard: attempts.unknown_job_is_not_an_attempt
        delayed = Deferral(ended_at + UNKNOWN_JOB_DELAY)
        return Outcome(OutcomeStatus.COMPLETED, progress=attempt.context.progress_json, deferral=delayed)
    reason = OutcomeReason.TIMED_OUT if isinstance(error, TimedOut) else OutcomeReason.ERROR
    delay = retry_delay(error)
    return failed(
        attempt,
        ended_at,
        reason,
        error_to_json(error, _step_name(attempt), attempt.context.redact_text),
        may_retry=not (isinstance(error, PermanentFailure) or (isinstance(error, StepFailed) and error.is_permanent)),
        retry_at=None if delay is None else ended_at + delay,
    )


def retry_delay(error: BaseException) -> timedelta | None:
    """Return the delay before the next attempt that the error asks for, if any."""
    if not isinstance(error, RetryLater):
        return None
    return timedelta(seconds=min(max(error.after.total_seconds(), 0.0), MAX_DELAY.total_seconds()))


def input_rejected(attempt: Attempt, error: Invalid, ended_at: datetime) -> Outcome:
    """Return the outcome of an attempt whose stored input does not fit the job: a retry cannot help."""
    error = explain_rejected_value(attempt.task.policy_json, attempt.task.input, error)
    return failed(attempt, ended_at, OutcomeReason.REFUSED, error_to_json(error, attempt.task.name), may_retry=False)


def failed(
    attempt: Attempt,
    ended_at: datetime,
    reason: OutcomeReason,
    error: str,
    *,
    may_retry: bool = True,
    retry_at: datetime | None = None,
) -> Outcome:
    outcome = Outcome(
        OutcomeStatus.FAILED, reason, attempt.started_at, ended_at, error=error, may_retry=may_retry, retry_at=retry_at
    )
    _add_log_and_progress(attempt, outcome)
    return outcome


def from_stop(attempt: Attempt, ended_at: datetime) -> Outcome | None:
    """Return the outcome of an attempt that the worker stopped; None if the lease was lost."""
    task = attempt.task
    match attempt.stop_reason:
        case StopReason.LEASE_LOST | None:
            return None
        case StopReason.TIMED_OUT:
            message = f"the attempt was stopped at its time limit of {task.policy.timeout_seconds:g} s"
            outcome = Outcome(
                OutcomeStatus.FAILED, OutcomeReason.TIMED_OUT, attempt.started_at, ended_at,
                error=error_json("tenuto.TimedOut", message, step=_step_name(attempt)),
            )  # fmt: skip
        case StopReason.HANDED_BACK:
            message = "the worker is shutting down and handed the task back"
            outcome = Outcome(
                OutcomeStatus.CANCELLED, OutcomeReason.HANDED_BACK, attempt.started_at, ended_at,
                error=error_json("tenuto.HandedBack", message, step=_step_name(attempt)),
            )  # fmt: skip
        case StopReason.CANCELLED:
            assert attempt.stop_actor is not None
            outcome = cancelled_outcome(task, ended_at, attempt.stop_actor, step=_step_name(attempt))
            outcome.started_at = attempt.started_at
    _add_log_and_progress(attempt, outcome)
    return outcome


def _is_own_frame(filename: str) -> bool:
    return any(package in filename.replace("\\", "/") for package in ("/tenuto/jobs/", "/tenuto/steps/"))


def error_to_json(error: BaseException, step: str, redact: Callable[[str], str] = str) -> str:
    """Return an exception as recorded: type, message, step, and the stack trace without Tenuto's frames on top."""
    if isinstance(error, Stopped):
        return error_json("tenuto.Stopped", "the code stopped itself", step=step)
    error_type = type(error)
    frames = error.__traceback__
    while frames is not None and _is_own_frame(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    frames = frames or error.__traceback__
    try:
        stack = "".join(traceback.format_exception(error_type, error, frames))
    except Exception:  # noqa: BLE001 — the stack can be recorded without the message
        stack = "".join(traceback.format_tb(frames))
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 — an error that cannot be printed must not keep its attempt from ending
        message = "(the error message cannot be printed)"
    # A job may make a class whose name contains a secret.
    name = redact(_error_type_name(error_type))  # guard: redaction.error_type
    return error_json(name, redact(message), step=step, stack=redact(stack))


def unprintable_error_json(step: str) -> str:
    """Return what is recorded of an error whose own methods fail."""
    return error_json("tenuto.UnprintableError", "the code raised an error that cannot be inspected", step=step)


def _error_type_name(error_type: type[BaseException]) -> str:
    """Return the recorded name of an error type; Tenuto's own types get their public names."""
    module, name = error_type.__module__, error_type.__qualname__
    if not isinstance(module, str) or module == "builtins":
        return truncate_text(name, 500)
    return truncate_text(f"tenuto.{name}" if module.startswith("tenuto.") else f"{module}.{name}", 500)


def _step_name(attempt: Attempt) -> str:
    return attempt.context.current_step or attempt.task.name


def _add_log_and_progress(attempt: Attempt, outcome: Outcome) -> None:
    outcome.log = attempt.context.log_text
    outcome.progress = attempt.context.progress_json
