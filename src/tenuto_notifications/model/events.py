"""Events that rules wait for: their kinds, the fields that filters and templates use, and one event.

An event has a key that identifies it for ever, so that a rule handles it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any

from tenuto.errors import Invalid, quoted
from tenuto.model.filters import FilterKey, FilterSchema, KeyType

DELIVERY_KIND = "notifications.deliver"
"""Step kind of the tasks that deliver messages."""
APPROVAL_EVENT = "approvals.requested"
"""Topic of new approvals. Its events name the approval in the field ``id``."""
OWN_CORRELATION_PREFIX = "notification:"
"""Correlation ids of tasks that deliver messages, and of tasks that these enqueue, begin with it."""


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of event."""

    name: str
    help: str
    schema: FilterSchema
    default_after: float | None = None
    """Of a condition: the duration in seconds after which it is an event, unless a rule has another one."""
    is_condition: bool = False
    """Whether it is a condition, whose beginning and end are events."""

    @property
    def field_names(self) -> tuple[str, ...]:
        return tuple(key.name for key in self.schema.keys)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened."""

    kind: str
    key: str
    """Identifies the event for ever."""
    at: datetime
    title: str
    """What happened, in one sentence."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    path: str | None = None
    """Path of the page of the dashboard that shows it."""


@dataclass(frozen=True, slots=True)
class OpenFilterSchema(FilterSchema):
    """The keys of events of an extension: every name is a key, for a text."""

    def find(self, name: str) -> FilterKey | None:
        return FilterKey(name, KeyType.TEXT, "field of the event")


def _schema(*keys: FilterKey) -> FilterSchema:
    return FilterSchema("events", keys, "at", "title and fields", has_window=False)


def _text(name: str, help: str) -> FilterKey:
    return FilterKey(name, KeyType.TEXT, help)


_SCHEDULE = _text("schedule", "name of the schedule")
_STARTED = FilterKey("started", KeyType.INSTANT, "start")
_DUE = FilterKey("due", KeyType.INSTANT, "due instant")
_ENDED = FilterKey("ended", KeyType.INSTANT, "end")
_ORIGIN = FilterKey("origin", KeyType.CHOICE, "cause", ("trigger", "manual", "step", "retry", "backfill"))
_RAN = FilterKey("ran", KeyType.DURATION, "duration")
_ID = FilterKey("id", KeyType.ID, "id")
_ERROR = _text("error", "error message")
_BY = _text("by", "name of the initiator")
_QUEUE = _text("queue", "queue")
_MANIFEST = _text("manifest", "external id of the manifest")
_ATTEMPTS = FilterKey("attempts", KeyType.NUMBER, "number of attempts")
_CONDITION = FilterKey("condition", KeyType.CHOICE, "whether the condition begins or ends", ("began", "ended"))

_ENDED_EXECUTION = _schema(
    _ID, _SCHEDULE, _ORIGIN, _BY, _DUE, _STARTED, _ENDED, _RAN,
    FilterKey("failed_steps", KeyType.NUMBER, "number of failed steps"), _ERROR,
)  # fmt: skip
_OPEN_EXECUTION = _schema(_ID, _SCHEDULE, _ORIGIN, _BY, _DUE, _STARTED, _CONDITION)
_NAME = _text("name", "name of the job or step kind")

KINDS = (
    EventKind("execution.failed", "An execution failed.", _ENDED_EXECUTION),
    EventKind("execution.completed", "An execution completed.", _ENDED_EXECUTION),
    EventKind("execution.cancelled", "An execution was cancelled.", _ENDED_EXECUTION),
    EventKind(
        "execution.late",
        "An execution has not ended some time after it was due.",
        _OPEN_EXECUTION,
        default_after=3600.0,
        is_condition=True,
    ),
    EventKind(
        "execution.stuck",
        "An execution has no running step, and none has ended for some time.",
        _OPEN_EXECUTION,
        default_after=600.0,
        is_condition=True,
    ),
    EventKind(
        "task.failed",
        "A task failed for good.",
        _schema(
            _ID, _NAME, _text("kind", "kind: job, or a step kind"), _QUEUE, _MANIFEST, _BY,
            FilterKey("tag", KeyType.TAGS, "tag"), _text("reason", "reason of the failure"), _ATTEMPTS,
            FilterKey("execution", KeyType.ID, "execution of a step"), _ENDED, _ERROR,
        ),
    ),
    EventKind(
        "dead_letter.opened",
        "A dead letter was opened.",
        _schema(
            _ID, _NAME, _text("kind", "kind: job, or a step kind"), _MANIFEST, _text("item", "item key"),
            _text("fingerprint", "kind of failure"), FilterKey("task", KeyType.ID, "failed task"), _ATTEMPTS, _ERROR,
        ),
    ),
    EventKind(
        "schedule.missed",
        "A due instant of a schedule was missed.",
        _schema(_SCHEDULE, _DUE, FilterKey("until", KeyType.INSTANT, "last due instant"), _text("reason", "reason")),
    ),
    EventKind(
        "worker.lost",
        "A process ended without notice.",
        _schema(
            _text("worker", "name of the process"), _text("service", "worker, scheduler or web"),
            _text("host", "host"), FilterKey("seen", KeyType.INSTANT, "last heartbeat"),
        ),
    ),
    EventKind(
        "queue.waiting",
        "The oldest task of a queue has waited for some time.",
        _schema(_QUEUE, FilterKey("tasks", KeyType.NUMBER, "number of waiting tasks"), _DUE, _CONDITION),
        default_after=300.0,
        is_condition=True,
    ),
    EventKind(
        "doctor.warning",
        "A check of the doctor finds a warning or a problem.",
        _schema(
            _text("check", "name of the check"),
            FilterKey("severity", KeyType.CHOICE, "severity", ("warning", "problem")),
            _text("remedy", "what to do"),
            _CONDITION,
        ),
        is_condition=True,
    ),
)  # fmt: skip
"""The events of Tenuto."""

_KINDS = {kind.name: kind for kind in KINDS}
_PREFIXES = tuple({f"{name.partition('.')[0]}." for name in _KINDS})
_MISSPELLING_CUTOFF = 0.85
"""Similarity from which a name is a misspelled event; ``identity.failed`` and ``execution.failed`` have 0.65."""


def find_kind(name: str) -> EventKind:
    """Return a kind of event; every other name is taken for a topic of an extension."""
    found = _KINDS.get(name)
    if found is not None:
        return found
    return EventKind(name, "An event of an extension.", OpenFilterSchema("events", (), "at", "title and fields", False))


def is_core_event(name: str) -> bool:
    return name in _KINDS


def require_known_event(name: str, topics: tuple[str, ...]) -> None:
    """Raise an error unless the event is one of Tenuto or a topic of an extension."""
    if name in _KINDS or name in topics:
        return
    raise _unknown_event(name, (*_KINDS, *topics))


def refuse_misspelled_event(name: str) -> None:
    """Raise an error for a name that is no event of Tenuto and looks like one. Other names may be topics of extensions,
    which are not known where definition files are read."""
    if name in _KINDS:
        return
    if name.startswith(_PREFIXES) or get_close_matches(name.lower(), _KINDS, 1, _MISSPELLING_CUTOFF):
        raise _unknown_event(name, tuple(_KINDS))


def _unknown_event(name: str, known: tuple[str, ...]) -> Invalid:
    near = get_close_matches(name.lower(), known, 1)
    remedy = f"use one of {', '.join(known)}"
    return Invalid(
        f"the event {quoted(name, 60)} is unknown",
        code="notifications.event.unknown",
        field="event",
        remedy=f"did you mean {near[0]}? {remedy}" if near else remedy,
    )


def to_stored_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields as JSON values."""
    return {name: _to_json(value) for name, value in fields.items() if value is not None}


def _to_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return round(value.total_seconds(), 3)
    if isinstance(value, list | tuple):
        return [_to_json(each) for each in value]
    if isinstance(value, Mapping):
        return {str(name): _to_json(each) for name, each in value.items()}
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)
