"""Tasks: work of the present and the future, and what one attempt at it came to.

A task is `waiting` (for an earlier step group), `scheduled` (not due yet), `queued` (due, free to be taken) or
`running` (held by one worker under a lease). It has no ended state: when it ends, the row leaves and the activity of
its last attempt remains. `settle` is the one place that decides what an outcome means for a task; the store only
moves the rows as told.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from tenuto.errors import Invalid
from tenuto.model import stored_values
from tenuto.model.actors import Actor, ActorType
from tenuto.model.policies import LOSSES_BEFORE_SET_ASIDE, Policy, policy_from_json, wait_after_loss

MAX_PRIORITY = 1000
OVERRUN = timedelta(seconds=60)
"""So long after its time limit a run of a manifest that cannot be stopped is still its worker's; then its lease runs
out, which ends the code at the latest, and it counts as timed out."""


class TaskState(StrEnum):
    WAITING = "waiting"
    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"


class Status(StrEnum):
    """How an attempt ended."""

    COMPLETED = "completed"
    COMPLETED_WITH_WARNING = "completed_with_warning"
    COMPLETED_WITH_ERROR = "completed_with_error"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Reason(StrEnum):
    """Why an attempt failed or was cancelled."""

    ERROR = "error"
    """The code raised."""
    TIMED_OUT = "timed_out"
    LOST = "lost"
    """The worker died, or lost touch for longer than its lease."""
    REFUSED = "refused"
    """It could not be started: no such job, or an input its type does not accept."""
    REQUESTED = "requested"
    """Somebody cancelled it."""
    HANDED_BACK = "handed_back"
    """The worker was told to stop; the task goes on elsewhere and nobody is to blame."""
    NOT_RUN = "not_run"
    """A step of an execution that came to its end before this was reached."""


@dataclass(slots=True)
class NewTask:
    """A task to be created. Its id is made by the caller: creating it twice creates it once."""

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
    tags: list[str] | None = None
    correlation_id: str | None = None
    parent_id: UUID | None = None
    origin: str | None = None
    """Which front door it came in by: ``once`` for a one-shot; nothing for the others, which their columns tell."""

    @property
    def state(self) -> TaskState:
        later = self.run_at is not None and self.run_at > self.created_at
        return TaskState.SCHEDULED if later else TaskState.QUEUED


def check(task: NewTask) -> NewTask:
    """The task as it is, or a refusal that names the field."""
    stored_values.name(task.name, field="name")
    check_options(
        task.queue, task.priority, task.run_at, task.unique_key, task.limit_key, task.limit_max, task.correlation_id
    )
    if task.tags is not None:
        task.tags = stored_values.tags(task.tags)
    stored_values.storable_json(task.input, field="input")
    return task


def check_options(
    queue: str,
    priority: int,
    run_at: datetime | None,
    unique_key: str | None,
    limit_key: str | None,
    limit_max: int | None,
    correlation_id: str | None,
) -> None:
    """Refuse how a task is to be run if it could not be kept or never be reached."""
    stored_values.name(queue, field="queue", limit=64)
    if not isinstance(priority, int) or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise Invalid(f"must be a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}", field="priority")
    if run_at is not None:
        if not isinstance(run_at, datetime):
            raise Invalid(f"{run_at!r:.60} is not an instant", field="run_at", remedy="give an aware datetime")
        if run_at.tzinfo is None:
            raise Invalid("has no time zone", field="run_at", remedy="give an aware datetime, such as one in UTC")
        if not 1970 <= run_at.year <= 9000:
            raise Invalid(f"the year {run_at.year} is out of reach", field="run_at")
    for field, value in (("unique_key", unique_key), ("limit_key", limit_key), ("correlation_id", correlation_id)):
        if value is not None:
            stored_values.label(value, field=field)
    if (limit_key is None) != (limit_max is None):
        raise Invalid("needs both a key and a number", field="limit", remedy="give limit_key and limit together")
    if limit_max is not None and not (isinstance(limit_max, int) and 1 <= limit_max <= 100_000):
        raise Invalid("must be a whole number from 1 to 100,000", field="limit")


@dataclass(slots=True)
class Task:
    """A task as its holder sees it. (id, fence, worker) is the proof of holding it."""

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
    """The run of a schedule it is a step of, if any."""
    manifest_id: UUID | None = None
    """The manifest it is a run of, if any; and the batch it came in with."""
    batch_id: UUID | None = None
    claimed_at: datetime | None = None
    """Told to those who find the task in somebody else's hands; its holder knows when it began."""
    cancel_name: str | None = None
    """Who asked for it to be stopped (see `cancelled_by`); told to the same."""
    cancel_type: ActorType | None = None
    cancel_id: str | None = None
    seat: str | None = None
    """Under limits: which ones. Of two with the same seat one may go on in the place of the other."""
    ran_over: bool = False
    """Its holder let it go because it ran far over its time limit (see `OVERRUN`); told to who finds it afterwards."""

    @property
    def cancelled_by(self) -> Actor | None:
        """Who asked for it to be stopped, if anybody did."""
        if self.cancel_type is None or self.cancel_name is None:
            return None
        return Actor(ActorType(self.cancel_type), self.cancel_id, self.cancel_name)

    @property
    def policy(self) -> Policy:
        return policy_from_json(self.policy_json)

    @property
    def about(self) -> dict[str, str | int]:
        """What a line of a log, or a trace, says of it, so that what belongs together is found together."""
        ids: dict[str, str | int] = {"task": str(self.id), "attempt": self.attempt, "job": self.name}
        if self.execution_id is not None:
            ids["execution"] = str(self.execution_id)
        return ids


@dataclass(frozen=True, slots=True)
class Aside:
    """An attempt put aside without holding a slot: until an instant, or until an execution has ended."""

    until: datetime | None = None
    execution: UUID | None = None


@dataclass(slots=True)
class Outcome:
    """What one attempt came to. Instants are on the database's clock; texts are JSON ready to be stored."""

    status: Status
    reason: Reason | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    output: str | None = None
    error: str | None = None
    log: str | None = None
    progress: str | None = None
    may_retry: bool = True
    retry_at: datetime | None = None
    """Asked for by the code itself; otherwise the policy decides."""
    aside: Aside | None = None
    """It did not come to an end: the code asked to be called again later."""


@dataclass(frozen=True, slots=True)
class Again:
    """The task stays, to be tried again."""

    run_at: datetime
    activity_id: UUID
    failures: int
    losses: int

    @property
    def last_chance(self) -> bool:
        """One more loss, and it is set aside: it must not run beside another of which the same is true, or those that
        only ran beside a task that kills its workers would be set aside with it."""
        return self.losses >= LOSSES_BEFORE_SET_ASIDE - 1


@dataclass(slots=True)
class Settlement:
    """An outcome and what it means for its task: ended, or again."""

    task: Task
    outcome: Outcome
    again: Again | None = None
    heir: UUID | None = None
    """The task that goes on in its seat under a limit; None once it is known that it did not get it."""


def settle(task: Task, outcome: Outcome, now: datetime, new_id: Callable[[], UUID]) -> Settlement:
    """Decide what an outcome means: the same question has the same answer wherever it is asked.

    ``new_id`` gives the id of the next activity, if there is to be one.
    """
    again: Again | None = None
    if (outcome.status is Status.COMPLETED and outcome.reason is None) or outcome.aside is not None:
        return Settlement(task, outcome)
    if outcome.reason is Reason.HANDED_BACK:
        again = Again(now, new_id(), task.failures, task.losses)
    elif outcome.reason is Reason.LOST:
        again = _after_loss(task, outcome, now, new_id)
    elif outcome.status is Status.FAILED and outcome.may_retry:
        failures = task.failures + 1
        run_at = task.policy.retry.next_run(failures, now, str(task.id))
        if run_at is not None:
            again = Again(outcome.retry_at or run_at, new_id(), failures, task.losses)
    return Settlement(task, outcome, again)


def _after_loss(task: Task, outcome: Outcome, now: datetime, new_id: Callable[[], UUID]) -> Again | None:
    losses = task.losses + 1
    if task.policy.on_lost == "fail" or losses >= LOSSES_BEFORE_SET_ASIDE:
        if task.policy.on_lost != "fail":
            outcome.error = error_json(
                "tenuto.SetAside", f"set aside: its worker died {losses} times while running it", step=task.name
            )
        return None
    return Again(now + wait_after_loss(losses), new_id(), task.failures, losses)


def error_json(
    type: str, message: str, *, step: str | None = None, stack: str | None = None, by: Actor | None = None
) -> str:
    """A failure as recorded: exception type, message, the step that failed, the stack trace, and who wanted it so."""
    recorded: dict[str, Any] = {"type": type, "message": stored_values.kept_text(message, 8192)}
    if step is not None:
        recorded["step"] = step
    if stack is not None:
        recorded["stack"] = stored_values.kept_text(stack, 32_768)
    if by is not None:
        recorded["by"] = {"type": by.type, "id": by.id, "name": by.name}
    return json.dumps(recorded, ensure_ascii=False)


def timed_out(task: Task, now: datetime) -> Outcome:
    """The outcome of an attempt that ran over its time limit and could not be stopped: see `OVERRUN`."""
    limit = task.policy.timeout_seconds or 0
    message = f"ran far beyond its time limit of {limit:g} s, and could not be stopped by its worker"
    return Outcome(
        Status.FAILED,
        Reason.TIMED_OUT,
        started_at=task.claimed_at,
        ended_at=now,
        error=error_json("tenuto.TimedOut", message, step=task.name),
    )


LOST_MESSAGE = "the worker that held this task died or lost touch with the database for longer than its lease"


def lost(task: Task, now: datetime) -> Outcome:
    """The outcome of an attempt whose worker is gone."""
    return Outcome(
        Status.FAILED,
        Reason.LOST,
        started_at=task.claimed_at,
        ended_at=now,
        error=error_json("tenuto.Lost", LOST_MESSAGE, step=task.name),
    )


def cancelled(task: Task, now: datetime, by: Actor, *, step: str | None = None) -> Outcome:
    """The outcome of a task that somebody cancelled, in a step of its own if it has such."""
    return Outcome(
        Status.CANCELLED,
        Reason.REQUESTED,
        started_at=task.claimed_at,
        ended_at=now,
        error=error_json("tenuto.Cancelled", f"cancelled by {by.name}", step=step or task.name, by=by),
        may_retry=False,
    )


def not_run(task: Task, now: datetime, why: str) -> Outcome:
    """The outcome of a step that its execution never came to."""
    return Outcome(
        Status.CANCELLED,
        Reason.NOT_RUN,
        ended_at=now,
        error=error_json("tenuto.NotRun", f"not run: {why}", step=task.name),
        may_retry=False,
    )


def stopped_instead(settlement: Settlement, by: Actor) -> Settlement:
    """What an attempt comes to that another was to follow, had not somebody asked for the task to be stopped."""
    came_to = settlement.outcome
    outcome = cancelled(settlement.task, came_to.ended_at or settlement.task.run_at, by)
    outcome.started_at, outcome.log, outcome.progress = came_to.started_at, came_to.log, came_to.progress
    return Settlement(settlement.task, outcome)


def instant(text: str, *, field: str) -> datetime:
    """An instant written as ISO 8601 with an offset, such as ``2027-01-01T00:00:00Z``."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(
            f"{text!r:.60} is not an instant", field=field, remedy="write it as 2027-01-01T00:00:00Z"
        ) from None
    if found.tzinfo is None:
        raise Invalid("has no offset", field=field, remedy="end it with Z or with an offset such as +01:00")
    return found


def seconds(value: float | int | str | timedelta | None, *, field: str) -> float | None:
    """A span given as seconds, as a timedelta or in words such as ``"90s"``, ``"15m"``, ``"1h"``, ``"2d"``."""
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
            raise Invalid(
                f"{value!r:.60} is not a span", field=field, remedy="write it as '90s', '15m', '1h' or '2d'"
            ) from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid(f"{value!r:.60} is not a span", field=field, remedy="write it as '90s', '15m', '1h' or '2d'")
    return float(value)
