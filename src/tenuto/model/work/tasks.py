"""Tasks, the outcome of an attempt, and the decision what an outcome means for its task.

A task is `waiting` (for an earlier step group), `scheduled` (not due yet), `queued` (due, free to be claimed) or
`running` (held by one worker under a lease). There is no ended state: a finished task's row is deleted and the activity
of its last attempt remains. `settle` alone decides between end and retry; `lifecycle.completion` writes its decision.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from tenuto.errors import Invalid, quoted
from tenuto.model import validation
from tenuto.model.access.actors import Actor, ActorType
from tenuto.model.definitions.policies import MAX_WORKER_LOSSES, TaskPolicy, delay_after_loss, policy_from_json
from tenuto.model.work.rate_limits import RateLimit
from tenuto.tracing import add_traceparent

MAX_QUEUE_NAME_CHARACTERS = 64
MAX_PRIORITY = 1000
NO_KEY_LIMIT = 100_000
"""Limit of a key whose running tasks are not counted."""
OVERRUN_GRACE = timedelta(seconds=60)
"""How long a worker may still hold a manifest run that exceeded its time limit and cannot be stopped. Then the lease
expires, which ends the code at the latest, and the run counts as timed out."""


class TaskState(StrEnum):
    WAITING = "waiting"
    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"


class OutcomeStatus(StrEnum):
    """Status with which an attempt ended."""

    COMPLETED = "completed"
    COMPLETED_WITH_WARNING = "completed_with_warning"
    COMPLETED_WITH_ERROR = "completed_with_error"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    """Of a step whose condition was not met: it has not run."""


class ActivityState(StrEnum):
    """State of an attempt: those of its task while it is open, then those of its outcome."""

    WAITING = "waiting"
    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    COMPLETED_WITH_WARNING = "completed_with_warning"
    COMPLETED_WITH_ERROR = "completed_with_error"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class OutcomeReason(StrEnum):
    """Why an attempt failed or was cancelled."""

    ERROR = "error"
    """The code raised an exception."""
    TIMED_OUT = "timed_out"
    LOST = "lost"
    """The worker died, or lost its connection for longer than its lease."""
    REFUSED = "refused"
    """The attempt could not start: the type of the job rejects the input."""
    REQUESTED = "requested"
    """A caller cancelled the task."""
    HANDED_BACK = "handed_back"
    """The worker shut down; the task continues elsewhere and no failure is counted."""
    NOT_RUN = "not_run"
    """The execution ended before it reached this step."""
    EXPIRED = "expired"
    """The task had not started, or not started again, when it expired."""


class OutcomeChoice(StrEnum):
    """The outcomes by which lists of attempts are filtered: the statuses, and expired ones."""

    COMPLETED = OutcomeStatus.COMPLETED.value
    COMPLETED_WITH_WARNING = OutcomeStatus.COMPLETED_WITH_WARNING.value
    COMPLETED_WITH_ERROR = OutcomeStatus.COMPLETED_WITH_ERROR.value
    FAILED = OutcomeStatus.FAILED.value
    CANCELLED = OutcomeStatus.CANCELLED.value
    SKIPPED = OutcomeStatus.SKIPPED.value
    EXPIRED = OutcomeReason.EXPIRED.value
    """Cancelled, because the task had not started when it expired."""


@dataclass(slots=True)
class NewTask:
    """A task to be created. The caller generates the id, so that a repeated request creates one task."""

    id: UUID
    name: str
    input: str
    created_at: datetime
    initiator: Actor
    run_at: datetime | None = None
    kind: str = "job"
    queue: str = "default"
    priority: int = 0
    policy: str = "{}"
    unique_key: str | None = None
    limit_key: str | None = None
    limit_max: int | None = None
    rate_key: str | None = None
    """Tasks with the same rate key share the rate limit."""
    rate_limit: RateLimit | None = None
    expires_at: datetime | None = None
    """A task that has not started by then ends as expired."""
    tags: list[str] | None = None
    correlation_id: str | None = None
    parent_id: UUID | None = None
    origin: str | None = None
    """``once`` for a one-shot; None for all others, whose columns identify the origin."""
    manifest_id: UUID | None = None
    batch_id: UUID | None = None
    item_key: str | None = None
    limit_group: str | None = None
    is_held: bool = False
    """The task waits until its batch is resumed, or for an earlier step group."""
    traceparent: str | None = None
    """Trace of the caller; also in the policy."""
    execution_id: UUID | None = None
    """Of a step: the execution, the group and the number of the step."""
    group_index: int | None = None
    step_index: int | None = None
    needs_notification: bool = False
    """The task is committed, and its workers must be notified."""

    @property
    def state(self) -> TaskState:
        if self.is_held:
            return TaskState.WAITING
        later = self.run_at is not None and self.run_at > self.created_at
        return TaskState.SCHEDULED if later else TaskState.QUEUED

    @property
    def stored_limit_key(self) -> str | None:
        """The limit key; a task with a rate limit needs one, so that claims under limits take it."""
        return self.limit_key if self.limit_key is not None or self.rate_key is None else f"rate:{self.rate_key}"

    @property
    def stored_limit_max(self) -> int | None:
        return self.limit_max if self.limit_key is not None or self.rate_key is None else NO_KEY_LIMIT

    @property
    def stored_rate_limit(self) -> str | None:
        return None if self.rate_limit is None else str(self.rate_limit)

    @property
    def due_at(self) -> datetime:
        return self.run_at or self.created_at

    @property
    def rank(self) -> int:
        """The negative priority, so that all sort orders ascend."""
        return -self.priority

    def reschedule(self, run_at: datetime) -> None:
        """Set another earliest start; the task expires as long after it as before."""
        if self.expires_at is not None:
            self.expires_at += max(run_at, self.created_at) - self.due_at
        self.run_at = run_at

    def let_wait(self, parent: UUID, step: str) -> None:
        """Let the wait of a workflow at this step end with the task."""
        self.policy = json.dumps({**json.loads(self.policy), AWAITED_BY: f"{parent} {step}"})

    def join_trace(self, traceparent: str | None) -> None:
        """Store the trace of the caller, if there is one."""
        if traceparent is not None:
            self.traceparent, self.policy = traceparent, add_traceparent(self.policy, traceparent)


def check_new_task(task: NewTask) -> NewTask:
    """Return the task with its tags normalized, or raise `Invalid`."""
    validation.check_name(task.name, field="name")
    check_task_options(
        task.queue, task.priority, task.run_at, task.unique_key, task.limit_key, task.limit_max, task.correlation_id
    )
    check_expiry(task.expires_at, task.run_at)
    check_rate_key(task.rate_key, task.rate_limit)
    if task.tags is not None:
        task.tags = validation.check_tags(task.tags)
    validation.check_json_text(task.input, field="input")
    return task


def check_task_options(
    queue: str,
    priority: int,
    run_at: datetime | None,
    unique_key: str | None,
    limit_key: str | None,
    limit_max: int | None,
    correlation_id: str | None,
) -> None:
    """Raise `Invalid` for options that cannot be stored or would never be reached."""
    validation.check_name(queue, field="queue", limit=MAX_QUEUE_NAME_CHARACTERS)
    if not isinstance(priority, int) or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise priority_error(priority)
    if run_at is not None:
        if not isinstance(run_at, datetime):
            raise Invalid(
                f"run_at {quoted(run_at, 60)} is not a datetime",
                code="task.run_at.invalid",
                field="run_at",
                remedy="give a datetime with a UTC offset",
            )
        if run_at.tzinfo is None:
            raise Invalid(
                f"run_at {run_at.isoformat()} has no UTC offset",
                code="task.run_at.no_utc_offset",
                field="run_at",
                remedy="give a datetime with a UTC offset, such as one in UTC",
            )
        if not 1970 <= run_at.year <= 9000:
            raise Invalid(
                f"run_at {run_at.isoformat()} is not between the years 1970 and 9000",
                code="task.run_at.out_of_range",
                field="run_at",
            )
    for field, value in (("unique_key", unique_key), ("limit_key", limit_key), ("correlation_id", correlation_id)):
        if value is not None:
            validation.check_label(value, field=field)
    if (limit_key is None) != (limit_max is None):
        raise Invalid(
            "a concurrency limit needs both a key and a number",
            code="task.limit.incomplete",
            field="limit",
            remedy="give limit_key and limit together",
        )
    if limit_max is not None and not (isinstance(limit_max, int) and 1 <= limit_max <= 100_000):
        raise Invalid(
            f"limit {quoted(limit_max, 60)} is not a whole number from 1 to 100,000",
            code="task.limit.out_of_range",
            field="limit",
        )


def check_expiry(expires_at: datetime | None, run_at: datetime | None) -> None:
    """Raise `Invalid` for an instant of expiry that cannot be stored or is not after the earliest start."""
    if expires_at is None:
        return
    if not isinstance(expires_at, datetime) or expires_at.tzinfo is None or not 1970 <= expires_at.year <= 9000:
        raise Invalid(
            f"expires_at {quoted(expires_at, 60)} is not a datetime with a UTC offset between the years 1970 and 9000",
            code="task.expires_at.invalid",
            field="expires_at",
            remedy="give a datetime with a UTC offset, such as one in UTC",
        )
    if run_at is not None and expires_at <= run_at:
        raise Invalid(
            f"expires_at {expires_at.isoformat()} is not after run_at {run_at.isoformat()}",
            code="task.expires_at.before_run_at",
            field="expires_at",
        )


def check_rate_key(rate_key: str | None, rate: RateLimit | None) -> None:
    """Raise `Invalid` for a rate key without a rate limit, or the reverse."""
    if rate_key is not None:
        validation.check_label(rate_key, field="rate_key")
    if (rate_key is None) != (rate is None):
        raise Invalid(
            "a rate limit needs both a key and a rate",
            code="task.rate_limit.incomplete",
            field="rate_limit",
            remedy="give rate_key and rate_limit together",
        )


def check_expires_in(value: timedelta) -> None:
    """Raise `Invalid` for a time to expiry that is not positive or longer than ten years."""
    if not timedelta(0) < value <= timedelta(days=3660):
        raise Invalid(
            f"expires_in {value.total_seconds():g} s is not more than 0 and at most ten years",
            code="task.expires_in.out_of_range",
            field="expires_in",
        )


def parse_expires_in(value: float | str | timedelta | None) -> timedelta | None:
    """Parse a time to expiry."""
    seconds = parse_duration_seconds(value, field="expires_in")
    if seconds is None:
        return None
    found = timedelta(seconds=min(max(seconds, 0.0), 1e9)) if seconds == seconds else timedelta(0)
    check_expires_in(found)
    return found


def priority_error(priority: object) -> Invalid:
    """The error for a priority that is not a whole number in range."""
    return Invalid(
        f"priority {quoted(priority, 60)} is not a whole number from -{MAX_PRIORITY:,} to {MAX_PRIORITY:,}",
        code="task.priority.out_of_range",
        field="priority",
    )


@dataclass(slots=True)
class Task:
    """A claimed task. The holder proves its claim with (id, fence, worker_id)."""

    id: UUID
    activity_id: UUID
    fence: int
    worker_id: UUID | None
    kind: str
    name: str
    input: str
    policy_json: str
    attempt: int
    failures: int
    losses: int
    queue: str
    priority: int
    run_at: datetime
    initiator_type: str
    initiator_id: str | None
    initiator_name: str
    correlation_id: str | None
    tags: list[str] | None
    execution_id: UUID | None = None
    """Of a step: the execution it belongs to."""
    manifest_id: UUID | None = None
    """Of a manifest run: the manifest, and the batch if it belongs to one."""
    batch_id: UUID | None = None
    claimed_at: datetime | None = None
    """Set only where another process loads the task; the holder knows when it started."""
    cancel_name: str | None = None
    """The actor that requested cancellation (see `cancelled_by`). Set only where another process loads the task."""
    cancel_type: ActorType | None = None
    cancel_id: str | None = None
    limit_slot: str | None = None
    """The concurrency limits that apply. A task may continue in the limit slot of another with the same value."""
    overran_time_limit: bool = False
    """The holder gave the task up after `OVERRUN_GRACE`. Set only where another process loads the task."""

    @property
    def cancelled_by(self) -> Actor | None:
        """The actor that requested cancellation, if any."""
        if self.cancel_type is None or self.cancel_name is None:
            return None
        return Actor(ActorType(self.cancel_type), self.cancel_id, self.cancel_name)

    @property
    def policy(self) -> TaskPolicy:
        return policy_from_json(self.policy_json)

    @property
    def log_fields(self) -> dict[str, str | int]:
        """The fields that identify the task in logs and traces."""
        ids: dict[str, str | int] = {"task_id": str(self.id), "attempt": self.attempt, "job": self.name}
        if self.execution_id is not None:
            ids["execution_id"] = str(self.execution_id)
        return ids


CLAIM_DEFAULTS = ("claimed_at", "cancel_name", "cancel_type", "cancel_id", "limit_slot", "overran_time_limit")
"""The last fields of `Task`, which keep their defaults where the caller becomes the holder of the task."""


@dataclass(frozen=True, slots=True)
class WaitKey:
    """The n-th wait of a step of a task for an event."""

    step: str
    number: int


AWAITED_BY = "awaited_by"
"""Key in the policy of a task that a workflow has started: the workflow waits for its end."""


def awaiting_wait(policy: str) -> tuple[UUID, WaitKey] | None:
    """Return the task and the wait that end with the task of this policy, if any."""
    if AWAITED_BY not in policy:  # measured: of hardly any task, and this is asked for every one
        return None
    task_id, _, step = json.loads(policy)[AWAITED_BY].partition(" ")
    return UUID(task_id), WaitKey(step, 1)


@dataclass(frozen=True, slots=True)
class Deferral:
    """A task gives up its slot until an instant, until an execution has ended or until a wait has ended."""

    resume_at: datetime | None = None
    execution_id: UUID | None = None
    waits: tuple[WaitKey, ...] = ()
    """The waits that may end before ``resume_at``; the first that ends resumes the task."""


@dataclass(slots=True)
class Outcome:
    """The result of one attempt. Instants are on the database clock; texts are JSON ready to be stored."""

    status: OutcomeStatus
    reason: OutcomeReason | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    output: str | None = None
    error: str | None = None
    log: str | None = None
    progress: str | None = None
    may_retry: bool = True
    retry_at: datetime | None = None
    """Requested by the job; None: the retry policy decides."""
    deferral: Deferral | None = None
    """The attempt has not ended: the job asked to be called again later."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The task remains, with a next attempt."""

    run_at: datetime
    activity_id: UUID
    failures: int
    losses: int

    @property
    def is_last_chance(self) -> bool:
        """Whether one more loss makes it a poison task. Such a task runs exclusively: tasks that only ran beside a
        poison task must not be counted as poison tasks too."""
        return self.losses >= MAX_WORKER_LOSSES - 1  # guard: recovery.last_chance


@dataclass(slots=True)
class Settlement:
    """An outcome and its consequence: the task ends, or is retried."""

    task: Task
    outcome: Outcome
    retry: Retry | None = None
    successor: UUID | None = None
    """The task that continues in the limit slot; reset to None if it did not get the slot."""


def settle(task: Task, outcome: Outcome, now: datetime, new_id: Callable[[], UUID]) -> Settlement:
    """Decide what an outcome means for its task. ``new_id`` supplies the id of the next activity."""
    retry: Retry | None = None
    if (outcome.status is OutcomeStatus.COMPLETED and outcome.reason is None) or outcome.deferral is not None:
        return Settlement(task, outcome)
    if outcome.reason is OutcomeReason.HANDED_BACK:
        retry = Retry(now, new_id(), task.failures, task.losses)
    elif outcome.reason is OutcomeReason.LOST:
        retry = _retry_after_loss(task, outcome, now, new_id)
    elif outcome.status is OutcomeStatus.FAILED and outcome.may_retry:
        failures = task.failures + 1
        run_at = task.policy.retry.next_attempt_at(failures, now, str(task.id))
        if run_at is not None:
            retry = Retry(outcome.retry_at or run_at, new_id(), failures, task.losses)
    return Settlement(task, outcome, retry)


def _retry_after_loss(task: Task, outcome: Outcome, now: datetime, new_id: Callable[[], UUID]) -> Retry | None:
    losses = task.losses + 1
    if task.policy.on_lost == "fail" or losses >= MAX_WORKER_LOSSES:  # guard: recovery.quarantine
        if task.policy.on_lost != "fail":
            outcome.error = error_json(
                "tenuto.SetAside", f"set aside: its worker died {losses} times while running it", step=task.name
            )
        return None
    return Retry(now + delay_after_loss(losses), new_id(), task.failures, losses)


def error_json(
    type: str, message: str, *, step: str | None = None, stack: str | None = None, by: Actor | None = None
) -> str:
    """Return a failure as recorded: error type, message, failed step, stack trace and the actor that requested it."""
    recorded: dict[str, Any] = {"type": type, "message": validation.truncate_text(message, 8192)}
    if step is not None:
        recorded["step"] = step
    if stack is not None:
        recorded["stack"] = validation.truncate_text(stack, 32_768)
    if by is not None:
        recorded["by"] = {"type": by.type, "id": by.id, "name": by.name}
    return json.dumps(recorded, ensure_ascii=False)


def timed_out_outcome(task: Task, now: datetime) -> Outcome:
    """The outcome of an attempt that exceeded its time limit and could not be stopped (see `OVERRUN_GRACE`)."""
    limit = task.policy.timeout_seconds or 0
    message = f"ran far beyond its time limit of {limit:g} s, and could not be stopped by its worker"
    return Outcome(
        OutcomeStatus.FAILED,
        OutcomeReason.TIMED_OUT,
        started_at=task.claimed_at,
        ended_at=now,
        error=error_json("tenuto.TimedOut", message, step=task.name),
    )


LOST_MESSAGE = "the worker that held this task died or lost its connection to the database for longer than its lease"


def lost_outcome(task: Task, now: datetime) -> Outcome:
    """The outcome of an attempt whose worker is gone."""
    return Outcome(
        OutcomeStatus.FAILED,
        OutcomeReason.LOST,
        started_at=task.claimed_at,
        ended_at=now,
        error=error_json("tenuto.Lost", LOST_MESSAGE, step=task.name),
    )


def cancelled_outcome(task: Task, now: datetime, by: Actor, *, step: str | None = None) -> Outcome:
    """The outcome of a cancelled task. ``step`` names the step within the task, if it has steps."""
    return Outcome(
        OutcomeStatus.CANCELLED,
        OutcomeReason.REQUESTED,
        started_at=task.claimed_at,
        ended_at=now,
        error=error_json("tenuto.Cancelled", f"cancelled by {by.name}", step=step or task.name, by=by),
        may_retry=False,
    )


def not_run_outcome(task: Task, now: datetime, reason: str) -> Outcome:
    """The outcome of a step that its execution did not reach."""
    return Outcome(
        OutcomeStatus.CANCELLED,
        OutcomeReason.NOT_RUN,
        ended_at=now,
        error=error_json("tenuto.NotRun", f"not run: {reason}", step=task.name),
        may_retry=False,
    )


def expired_outcome(task: Task, now: datetime) -> Outcome:
    """The outcome of a task that did not start before it expired. It is no failed attempt."""
    return Outcome(
        OutcomeStatus.CANCELLED,
        OutcomeReason.EXPIRED,
        ended_at=now,
        error=error_json("tenuto.Expired", "expired before it started", step=task.name),
        may_retry=False,
    )


def skipped_outcome(task: Task, now: datetime, reason: str) -> Outcome:
    """The outcome of a step that was skipped."""
    return Outcome(
        OutcomeStatus.SKIPPED,
        ended_at=now,
        error=error_json("tenuto.Skipped", f"skipped: {reason}", step=task.name),
        may_retry=False,
    )


def refused_outcome(task: Task, now: datetime, problem: Invalid) -> Outcome:
    """The outcome of a step that could not start, because of the value or the condition that the error names."""
    return Outcome(
        OutcomeStatus.FAILED,
        OutcomeReason.REFUSED,
        ended_at=now,
        error=error_json("tenuto.NotStarted", str(problem), step=task.name),
        may_retry=False,
    )


def cancel_instead_of_retry(settlement: Settlement, by: Actor) -> Settlement:
    """Replace a retry by a cancellation that was requested while the attempt ran."""
    attempt = settlement.outcome
    outcome = cancelled_outcome(settlement.task, attempt.ended_at or settlement.task.run_at, by)
    outcome.started_at, outcome.log, outcome.progress = attempt.started_at, attempt.log, attempt.progress
    return Settlement(settlement.task, outcome)


def parse_instant(text: str, *, field: str) -> datetime:
    """Parse ISO 8601 with an offset, such as ``2027-01-01T00:00:00Z``."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(
            f"{field} {quoted(text, 60)} is not an ISO 8601 instant",
            code="value.instant.invalid",
            field=field,
            remedy="write it as 2027-01-01T00:00:00Z",
        ) from None
    if found.tzinfo is None:
        raise Invalid(
            f"{field} {quoted(text, 60)} has no UTC offset",
            code="value.instant.no_utc_offset",
            field=field,
            remedy="end it with Z or with an offset such as +01:00",
        )
    return found


def parse_duration_seconds(value: float | int | str | timedelta | None, *, field: str) -> float | None:
    """Parse a duration: seconds, a timedelta, or text such as ``"90s"``, ``"15m"``, ``"1h"``, ``"2d"``."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
        number, unit = value[:-1], value[-1:]
        try:
            return float(number) * units[unit]
        except (ValueError, KeyError):
            raise _duration_error(value, field) from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _duration_error(value, field)
    return float(value)


def _duration_error(value: object, field: str) -> Invalid:
    return Invalid(
        f"{field} {quoted(value, 60)} is not a duration",
        code="value.duration.invalid",
        field=field,
        remedy="write it as '90s', '15m', '1h' or '2d'",
    )
