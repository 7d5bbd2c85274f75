"""One-shots: validation of a request to run work once at an instant, and its status and event history.

A one-shot is an ordinary task with the origin ``once``. Its status and history are derived from the task and the
activities of its attempts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal
from uuid import UUID

from tenuto.errors import Invalid, quoted
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.model.work.tasks import OutcomeReason, OutcomeStatus, TaskState

ONE_SHOT_ORIGIN = "once"
"""The origin of tasks that are one-shots."""

PROMPT_STEP_KINDS = frozenset({"log.append", "http.call"})
"""The step kinds that a one-shot may use, besides every registered job. Others are excluded: permission to run a job
must not include permission to run any program on a worker's machine."""

PastInstantPolicy = Literal["accept", "refuse"]

_INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]{1,9})?)?"
    r"(?P<offset>[Zz]|[+-][0-9]{2}(:?[0-9]{2})?)?"
)
_REMEDY = "write it as 2031-05-17T12:00:00Z, or with an offset such as +08:00"
_FIRST_YEAR, _LAST_YEAR = 1970, 9000
_MAX_INSTANT_LENGTH = 64


class RuntimeStatus(StrEnum):
    """The status of a one-shot."""

    PENDING = "Pending"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    TERMINATED = "Terminated"


class OneShotEventKind(StrEnum):
    """The kinds of event in the history of a one-shot."""

    CREATED = "Created"
    SCHEDULED = "Scheduled"
    STARTED = "Started"
    COMPLETED = "Completed"
    FAILED = "Failed"
    TERMINATED = "Terminated"
    HANDED_BACK = "HandedBack"
    RETRIED = "Retried"
    STOPPING = "Stopping"


_RUNTIME_STATUS_BY_OUTCOME = {
    OutcomeStatus.COMPLETED: RuntimeStatus.COMPLETED,
    OutcomeStatus.COMPLETED_WITH_WARNING: RuntimeStatus.COMPLETED,
    OutcomeStatus.COMPLETED_WITH_ERROR: RuntimeStatus.FAILED,
    OutcomeStatus.FAILED: RuntimeStatus.FAILED,
    OutcomeStatus.CANCELLED: RuntimeStatus.TERMINATED,
}


# --- requests -------------------------------------------------------------------------------------------------------


def parse_exec_at(given: object, now: datetime, past_policy: PastInstantPolicy, *, field: str = "exec_at") -> datetime:
    """Return the instant to run at in UTC, from a datetime with offset or from ISO 8601 text with offset."""
    if isinstance(given, str):
        given = _parse_iso_instant(given, field)
    if not isinstance(given, datetime):
        raise _not_an_instant(given, field)
    if given.tzinfo is None or given.utcoffset() is None:
        raise _no_utc_offset(given.isoformat(), field)
    try:
        found = given.astimezone(UTC)
    except OverflowError:
        raise _year_out_of_range(given, field) from None
    if not _FIRST_YEAR <= found.year <= _LAST_YEAR:
        raise _year_out_of_range(found, field)
    if past_policy == "refuse" and found < now:
        raise Invalid(
            f"{field} {found.isoformat()} is in the past; it is {now.isoformat(timespec='seconds')}",
            code="one_shot.exec_at.in_the_past",
            field=field,
            remedy="give a future instant; TENUTO_PAST_ONE_SHOTS=accept runs past ones immediately",
        )
    return found


def _parse_iso_instant(text: str, field: str) -> datetime:
    match = _INSTANT.fullmatch(text) if len(text) <= _MAX_INSTANT_LENGTH else None
    if match is None:
        raise _not_an_instant(text, field)
    if match["offset"] is None:
        raise _no_utc_offset(text, field)
    try:
        return datetime.fromisoformat(text.upper().replace(",", "."))
    except ValueError as error:
        raise _not_an_instant(text, field, f": {error}") from None


def _not_an_instant(given: object, field: str, detail: str = "") -> Invalid:
    return Invalid(
        f"{field} {quoted(given)} is not an instant{detail}",
        code="one_shot.exec_at.invalid",
        field=field,
        remedy=_REMEDY,
    )


def _no_utc_offset(text: str, field: str) -> Invalid:
    return Invalid(
        f"{field} {text!r} has no UTC offset", code="one_shot.exec_at.no_utc_offset", field=field, remedy=_REMEDY
    )


def _year_out_of_range(given: datetime, field: str) -> Invalid:
    return Invalid(
        f"{field} {given.isoformat()} is not between the years {_FIRST_YEAR} and {_LAST_YEAR}",
        code="one_shot.exec_at.out_of_range",
        field=field,
        remedy=_REMEDY,
    )


def choose_retry_policy(
    of_handler: RetryPolicy, *, is_job: bool, retry: RetryPolicy | None, max_attempts: int | None
) -> RetryPolicy:
    """Return the retry policy of a one-shot.

    A job brings its own, with another number of attempts if that is given. ``log.append`` and ``http.call`` have one
    attempt, because the receiver of a call may not tolerate a repetition.
    """
    if retry is not None:
        if max_attempts is not None:
            raise Invalid(
                "max_attempts is given beside retry, which has its own",
                code="one_shot.retry.conflict",
                field="max_attempts",
                remedy="leave out one of them",
            )
        return retry
    if is_job:
        return of_handler if max_attempts is None else replace(of_handler, max_attempts=max_attempts)
    return RetryPolicy(max_attempts=1 if max_attempts is None else max_attempts)


@lru_cache(maxsize=1024)
def one_shot_policy_json(of_handler: TaskPolicy, retry: RetryPolicy, timeout_seconds: float | None) -> str:
    """Return the stored policy of a one-shot: the handler's time limit unless another is given. Cached: few differ."""
    return TaskPolicy(
        retry,
        of_handler.timeout_seconds if timeout_seconds is None else timeout_seconds,
        of_handler.on_lost,
        of_handler.dead_letter,
    ).to_json()


# --- status ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OneShotAttempt:
    """One attempt at a one-shot: planned, running or ended."""

    task_id: UUID
    attempt: int
    state: str
    reason: str | None
    final: bool
    name: str
    created_at: datetime
    run_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    worker: str | None
    input: Any
    output: Any
    error: dict[str, Any] | None
    progress: Any
    tags: list[str]
    initiator_name: str
    cancel_at: datetime | None
    """When the cancellation of the one-shot was requested."""
    cancel_name: str | None


@dataclass(frozen=True, slots=True)
class AttemptError:
    """Why an attempt did not succeed, without details of the code such as the stack trace."""

    type: str | None
    message: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class PendingCancellation:
    """A requested cancellation, while the attempt still runs."""

    at: datetime
    by: str | None


@dataclass(frozen=True, slots=True)
class OneShotEvent:
    """One event in the history of a one-shot."""

    at: datetime
    event: OneShotEventKind
    attempt: int
    by: str | None = None
    worker: str | None = None
    exec_at: datetime | None = None
    error: AttemptError | None = None


@dataclass(frozen=True, slots=True)
class OneShotStatus:
    """The status of a one-shot."""

    id: UUID
    runtime_status: RuntimeStatus
    prompt_type: str
    exec_at: datetime
    """The requested instant."""
    next_attempt_at: datetime | None
    created_at: datetime
    created_by: str
    started_at: datetime | None
    ended_at: datetime | None
    attempt_count: int
    input: Any
    output: Any
    error: AttemptError | None
    progress: Any
    tags: list[str]
    stopping: PendingCancellation | None
    history: tuple[OneShotEvent, ...] = ()
    """Events in order, if requested."""


@dataclass(frozen=True, slots=True)
class OneShotSummary:
    """A one-shot in a list."""

    id: UUID
    runtime_status: RuntimeStatus
    prompt_type: str
    exec_at: datetime
    """The requested instant."""
    run_at: datetime
    """The instant of the last or next attempt."""
    attempt: int
    created_at: datetime
    created_by: str
    tags: list[str]
    started_at: datetime | None
    """Start of the last attempt; None before it."""

    def late_seconds(self, now: datetime) -> float:
        """Return how much later than due the last attempt started, or is if it has not started."""
        return max(((self.started_at or now) - self.run_at).total_seconds(), 0.0)


@dataclass(frozen=True, slots=True)
class EndedOneShot(OneShotSummary):
    """An ended one-shot in a list."""

    activity_id: UUID
    """The last attempt; the list is in its order."""
    ended_at: datetime
    reason: str | None
    output: Any
    error: AttemptError | None


def runtime_status_of_task(state: str) -> RuntimeStatus:
    """Return the status of a one-shot that has not ended."""
    return RuntimeStatus.RUNNING if state == TaskState.RUNNING else RuntimeStatus.PENDING


def runtime_status_of_outcome(status: str) -> RuntimeStatus:
    """Return the status of a one-shot that has ended."""
    return _RUNTIME_STATUS_BY_OUTCOME[OutcomeStatus(status)]


def runtime_status(attempts: Sequence[OneShotAttempt]) -> RuntimeStatus:
    """Return the status of a one-shot from its attempts. One that waits for a retry is pending."""
    last = attempts[-1]
    if last.final:
        return runtime_status_of_outcome(last.state)
    return RuntimeStatus.RUNNING if last.state == "running" else RuntimeStatus.PENDING


def describe_one_shot(attempts: Sequence[OneShotAttempt], *, history: bool = False) -> OneShotStatus:
    """Return the status of a one-shot, with its events if ``history`` is set."""
    first, last = attempts[0], attempts[-1]
    started = [attempt.started_at for attempt in attempts if attempt.started_at is not None]
    failed = next((attempt for attempt in reversed(attempts) if attempt.error is not None), None)
    status = runtime_status(attempts)
    succeeded = status is RuntimeStatus.COMPLETED
    return OneShotStatus(
        id=last.task_id,
        runtime_status=status,
        prompt_type=last.name,
        exec_at=first.run_at,
        next_attempt_at=None if last.final or len(attempts) == 1 else last.run_at,
        created_at=first.created_at,
        created_by=first.initiator_name,
        started_at=min(started, default=None),
        ended_at=last.ended_at if last.final else None,
        attempt_count=last.attempt,
        input=last.input,
        output=last.output,
        error=None if failed is None or succeeded else public_error(failed.error, failed.reason),
        progress=last.progress,
        tags=last.tags,
        stopping=_pending_cancellation(last),
        history=tuple(_iterate_events(attempts)) if history else (),
    )


def public_error(error: Mapping[str, Any] | None, reason: str | None) -> AttemptError | None:
    """Return why an attempt did not succeed, from its recorded error."""
    return None if error is None else AttemptError(error.get("type"), error.get("message"), reason)


def _pending_cancellation(last: OneShotAttempt) -> PendingCancellation | None:
    return None if last.cancel_at is None else PendingCancellation(last.cancel_at, last.cancel_name)


# --- history --------------------------------------------------------------------------------------------------------


def _iterate_events(attempts: Sequence[OneShotAttempt]) -> Iterator[OneShotEvent]:
    """Yield the events of a one-shot in order."""
    kinds, first, last = OneShotEventKind, attempts[0], attempts[-1]
    yield OneShotEvent(first.created_at, kinds.CREATED, first.attempt, by=first.initiator_name)
    yield OneShotEvent(first.created_at, kinds.SCHEDULED, first.attempt, exec_at=first.run_at)
    previous: OneShotAttempt | None = None
    for attempt in attempts:
        number = attempt.attempt
        if previous is not None and previous.ended_at is not None:
            yield OneShotEvent(previous.ended_at, kinds.RETRIED, number, exec_at=attempt.run_at)
        if attempt.started_at is not None:
            yield OneShotEvent(attempt.started_at, kinds.STARTED, number, worker=attempt.worker)
        if attempt.ended_at is not None:
            error = public_error(attempt.error, attempt.reason)
            yield OneShotEvent(attempt.ended_at, _end_event(attempt), number, error=error)
        previous = attempt
    if last.cancel_at is not None:
        yield OneShotEvent(last.cancel_at, kinds.STOPPING, last.attempt, by=last.cancel_name)


def _end_event(attempt: OneShotAttempt) -> OneShotEventKind:
    if attempt.reason == OutcomeReason.HANDED_BACK:
        return OneShotEventKind.HANDED_BACK
    return OneShotEventKind(runtime_status_of_outcome(attempt.state).value)
