"""Names, keys and payloads of events from outside, and the waits of tasks for them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID, uuid5

from tenuto.errors import Invalid, quoted
from tenuto.model import validation
from tenuto.model.work.tasks import parse_duration_seconds

RESERVED_PREFIX = "tenuto."
"""Names of events that only Tenuto itself delivers."""
APPROVAL_EVENT = "tenuto.approval"
"""The wait of an approval step; its key is the id of the approval."""
CHILD_EVENT = "tenuto.child "
"""The wait of a workflow for a child task: followed by the name of the job. Its key is the id of the child."""
MAX_WAIT = timedelta(days=366)
"""The longest wait, and the wait without a timeout."""
MAX_KEEP = timedelta(days=366)
MIN_KEEP = timedelta(seconds=1)
MAX_NAME_CHARACTERS = 200
_SENDER_IDS = UUID("7b0f6d52-9c3e-5d0a-8d36-0c3c6a1f6f0e")


class WaitOutcome(StrEnum):
    """How a wait ended."""

    RECEIVED = "received"
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True)
class EventWait:
    """The n-th wait of a step of a task, as it is requested."""

    step: str
    """Key of the chain step; empty for a job that is no chain."""
    number: int
    name: str
    key: str
    expires_at: datetime


def check_event_name(name: str, *, field: str = "name") -> str:
    """Return the name of an event, or raise `Invalid`."""
    validation.check_name(name, field=field, limit=MAX_NAME_CHARACTERS)
    if name.startswith(RESERVED_PREFIX):
        raise Invalid(
            f"the event name {quoted(name, 60)} begins with {RESERVED_PREFIX!r}, which is reserved",
            code="event.name.reserved",
            field=field,
            remedy="choose another name",
        )
    return name


def check_event_key(key: str, *, field: str = "key") -> str:
    """Return the correlation key of an event, or raise `Invalid`. An empty key means none."""
    return key if key == "" else validation.check_label(key, field=field)


def parse_wait_seconds(timeout: float | str | timedelta | None) -> float:
    """Return the longest duration of a wait in seconds."""
    seconds = parse_duration_seconds(timeout, field="timeout")
    if seconds is None:
        return MAX_WAIT.total_seconds()
    if not 0 <= seconds <= MAX_WAIT.total_seconds():
        raise Invalid(
            f"the timeout {timeout!r} of a wait is not between 0 s and {MAX_WAIT.days} days",
            code="event.timeout.out_of_range",
            field="timeout",
            remedy="give a duration such as '2d'",
        )
    return seconds


def check_keep(keep: timedelta) -> timedelta:
    """Return how long an event is kept, or raise `Invalid`."""
    if not MIN_KEEP <= keep <= MAX_KEEP:
        raise Invalid(
            f"an event cannot be kept for {keep.total_seconds():g} s",
            code="event.keep.out_of_range",
            field="keep_seconds",
            remedy=f"give a duration between 1 second and {MAX_KEEP.days} days",
        )
    return keep


def describe_event(name: str, key: str) -> str:
    """Return an event in messages: ``event paid (key 17)``."""
    return f"event {name} (key {key})" if key else f"event {name}"


def event_id_of(sender_id: str, *, field: str = "id") -> UUID:
    """Return the id of an event to which its sender gave a text as id, such as the id of a webhook delivery."""
    return uuid5(_SENDER_IDS, validation.check_label(sender_id, field=field))
