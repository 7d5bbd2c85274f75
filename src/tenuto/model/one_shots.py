"""One-shots: work for one instant, asked for by its prompt type. What may be asked, and what became of it in words.

A one-shot is a task like any other; it only came in by another door. Nothing is kept about it beside that task and the
activities of its attempts: its status and its history are read off them, so they cannot disagree with what is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal

from tenuto.errors import Invalid
from tenuto.model.policies import Policy, RetryPolicy
from tenuto.model.tasks import Reason, Status, TaskState

ONCE = "once"
"""The origin of such tasks."""

PROMPTS = frozenset({"log.append", "http.call"})
"""The kinds of step that may be asked for as a one-shot. Not the others: who may have a job run must not thereby be
able to run any program on the machine of a worker. Every registered job may be asked for too, by its name."""

InThePast = Literal["accept", "refuse"]
Record = dict[str, Any]

_INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]{1,9})?)?"
    r"(?P<offset>[Zz]|[+-][0-9]{2}(:?[0-9]{2})?)?"
)
_REMEDY = "write it as 2031-05-17T12:00:00Z, or with an offset such as +08:00"
_FIRST_YEAR, _LAST_YEAR = 1970, 9000
_LONGEST = 64


class RuntimeStatus(StrEnum):
    """Where a one-shot stands."""

    PENDING = "Pending"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    TERMINATED = "Terminated"


class Happened(StrEnum):
    """What can be told of a one-shot's life."""

    CREATED = "Created"
    SCHEDULED = "Scheduled"
    STARTED = "Started"
    COMPLETED = "Completed"
    FAILED = "Failed"
    TERMINATED = "Terminated"
    HANDED_BACK = "HandedBack"
    RETRIED = "Retried"
    STOPPING = "Stopping"


_ENDED = {
    Status.COMPLETED: RuntimeStatus.COMPLETED,
    Status.COMPLETED_WITH_WARNING: RuntimeStatus.COMPLETED,
    Status.COMPLETED_WITH_ERROR: RuntimeStatus.FAILED,
    Status.FAILED: RuntimeStatus.FAILED,
    Status.CANCELLED: RuntimeStatus.TERMINATED,
}


# --- what may be asked ----------------------------------------------------------------------------------------------


def exec_at(given: object, now: datetime, in_the_past: InThePast, *, field: str = "exec_at") -> datetime:
    """The instant to run at, in UTC: an aware datetime, or ISO 8601 with its offset; anything else is refused."""
    if isinstance(given, str):
        given = _read(given, field)
    if not isinstance(given, datetime):
        raise Invalid(f"{given!r:.80} is not an instant", field=field, remedy=_REMEDY)
    if given.tzinfo is None or given.utcoffset() is None:
        raise Invalid("has no offset, so it could be any of 24 hours", field=field, remedy=_REMEDY)
    try:
        found = given.astimezone(UTC)
    except OverflowError:
        raise Invalid(f"the year {given.year} is out of reach", field=field, remedy=_REMEDY) from None
    if not _FIRST_YEAR <= found.year <= _LAST_YEAR:
        raise Invalid(
            f"the year {found.year} is out of reach", field=field, remedy=f"name one from {_FIRST_YEAR} to {_LAST_YEAR}"
        )
    if in_the_past == "refuse" and found < now:
        raise Invalid(
            f"{found.isoformat()} has passed; it is {now.isoformat(timespec='seconds')}",
            field=field,
            remedy="name an instant to come; TENUTO_ONE_SHOTS_IN_THE_PAST=accept would run it at once",
        )
    return found


def _read(text: str, field: str) -> datetime:
    shape = _INSTANT.fullmatch(text) if len(text) <= _LONGEST else None
    if shape is None:
        raise Invalid(f"{text!r:.80} is not an instant", field=field, remedy=_REMEDY)
    if shape["offset"] is None:
        raise Invalid(f"{text!r} has no offset, so it could be any of 24 hours", field=field, remedy=_REMEDY)
    try:
        return datetime.fromisoformat(text.upper().replace(",", "."))
    except ValueError as error:
        raise Invalid(f"{text!r} is not an instant: {error}", field=field, remedy=_REMEDY) from None


@lru_cache(maxsize=1024)
def policy(of_handler: Policy, retry: RetryPolicy | None, timeout_seconds: float | None) -> str:
    """The rules of a one-shot, as stored: one attempt unless more are asked for, and the handler's own time unless
    another is. Few differ, so each is worked out once."""
    return Policy(
        retry or RetryPolicy(max_retries=0),
        of_handler.timeout_seconds if timeout_seconds is None else timeout_seconds,
        of_handler.on_lost,
    ).to_json()


# --- where it stands ------------------------------------------------------------------------------------------------


def status_of_task(state: str) -> RuntimeStatus:
    """Where an open one-shot stands."""
    return RuntimeStatus.RUNNING if state == TaskState.RUNNING else RuntimeStatus.PENDING


def status(attempts: Sequence[Record]) -> RuntimeStatus:
    """Where a one-shot stands, seen from all its attempts so far. One that waits to be tried again is pending."""
    last = attempts[-1]
    if last["final"]:
        return _ENDED[Status(last["status"])]
    return RuntimeStatus.RUNNING if last["status"] == "in_progress" else RuntimeStatus.PENDING


def described(attempts: Sequence[Record]) -> Record:
    """Everything there is to say of a one-shot but its history."""
    first, last = attempts[0], attempts[-1]
    begun = [attempt["started_at"] for attempt in attempts if attempt["started_at"] is not None]
    failed = next((attempt for attempt in reversed(attempts) if attempt["error"] is not None), None)
    ended = last["final"]
    return {
        "id": last["task_id"],
        "status": status(attempts),
        "prompt_type": last["name"],
        "exec_at": first["run_at"],
        "next_attempt_at": None if ended or len(attempts) == 1 else last["run_at"],
        "created_at": first["created_at"],
        "created_by": first["initiator_name"],
        "started_at": min(begun, default=None),
        "ended_at": last["ended_at"] if ended else None,
        "attempts": last["attempt"],
        "input": last["input"],
        "output": last["output"],
        "error": None if failed is None or status(attempts) is RuntimeStatus.COMPLETED else error_of(failed),
        "progress": last["progress"],
        "tags": last["tags"] or [],
        "stopping": _stopping(last),
    }


def error_of(attempt: Mapping[str, Any]) -> Record | None:
    """Why an attempt did not succeed, without what only helps who can see the code."""
    error = attempt["error"]
    if error is None:
        return None
    return {"type": error.get("type"), "message": error.get("message"), "reason": attempt["reason"]}


def _stopping(last: Record) -> Record | None:
    """Who has asked for it to be stopped, while it has not."""
    if last.get("cancel_at") is None:
        return None
    return {"at": last["cancel_at"], "by": last["cancel_name"]}


# --- how it went ----------------------------------------------------------------------------------------------------


def history(attempts: Sequence[Record]) -> list[Record]:
    """What has happened to a one-shot, in order."""
    return [_event(*told) for told in _told(attempts)]


def _told(attempts: Sequence[Record]) -> Iterator[tuple[datetime, Happened, Record, Record]]:
    first = attempts[0]
    yield first["created_at"], Happened.CREATED, first, {"by": first["initiator_name"]}
    yield first["created_at"], Happened.SCHEDULED, first, {"exec_at": first["run_at"]}
    before: Record | None = None
    for attempt in attempts:
        if before is not None:
            yield before["ended_at"], Happened.RETRIED, attempt, {"exec_at": attempt["run_at"]}
        if attempt["started_at"] is not None:
            yield attempt["started_at"], Happened.STARTED, attempt, {"worker": attempt["worker"]}
        if attempt["ended_at"] is not None:
            yield attempt["ended_at"], _end(attempt), attempt, {"error": error_of(attempt)}
        before = attempt
    stopping = _stopping(attempts[-1])
    if stopping is not None:
        yield stopping["at"], Happened.STOPPING, attempts[-1], {"by": stopping["by"]}


def _end(attempt: Record) -> Happened:
    if attempt["reason"] == Reason.HANDED_BACK:
        return Happened.HANDED_BACK
    return Happened(_ENDED[Status(attempt["status"])].value)


def _event(at: datetime, happened: Happened, attempt: Record, more: Record) -> Record:
    return {
        "at": at,
        "event": happened,
        "attempt": attempt["attempt"],
        **{k: v for k, v in more.items() if v is not None},
    }
