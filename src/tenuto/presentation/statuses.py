"""Statuses as people see them: each has one label, one icon, one tone (its colour) and one rank (its importance).

`state_symbols.py` has the symbols and colours of a terminal; icons and tones are names that an interface draws.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Status:
    """One status. ``rank``: the lowest of several statuses represents them all."""

    label: str
    icon: str
    tone: str
    rank: int


_FAILED = Status("Failed", "fail", "fail", 0)
_NEEDS_ATTENTION = Status("Needs attention", "attention", "fail", 0)
_CANCELLED = Status("Cancelled", "cancel", "stop", 1)
_STOPPING = Status("Stopping", "stop", "stop", 2)
_RUNNING = Status("Running", "run", "run", 3)
_RETRYING = Status("Retrying", "retry", "retry", 4)
_PAUSED = Status("Paused", "paused", "retry", 5)
_QUEUED = Status("Queued", "queued", "wait", 6)
_SCHEDULED = Status("Scheduled", "scheduled", "wait", 7)
_WAITING = Status("Waiting", "wait", "wait", 8)
_NOT_RUN = Status("Not run", "notrun", "wait", 9)
_WARNING = Status("Completed with warning", "warning", "retry", 10)
_COMPLETED = Status("Completed", "done", "done", 11)

_STATUSES = {
    "failed": _FAILED,
    "completed_with_error": replace(_FAILED, label="Completed with error"),
    "error": replace(_FAILED, label="Completed with error"),
    "awaiting_intervention": _NEEDS_ATTENTION,
    "some_failed": replace(_NEEDS_ATTENTION, label="Some failed"),
    "cancelled": _CANCELLED,
    "terminated": _CANCELLED,
    "stopping": _STOPPING,
    "running": _RUNNING,
    "in_progress": _RUNNING,
    "filling": replace(_RUNNING, label="Filling"),
    "retrying": _RETRYING,
    "retried": replace(_RETRYING, label="Retried", tone="wait"),
    "paused": _PAUSED,
    "queued": _QUEUED,
    "scheduled": _SCHEDULED,
    "pending": _SCHEDULED,
    "waiting": _WAITING,
    "not_run": _NOT_RUN,
    "not run": _NOT_RUN,
    "completed_with_warning": _WARNING,
    "warning": _WARNING,
    "done with warning": _WARNING,
    "completed": _COMPLETED,
    "done": _COMPLETED,
    "done before": replace(_COMPLETED, label="Completed earlier", tone="wait"),
    "done_before": replace(_COMPLETED, label="Completed earlier", tone="wait"),
    "acknowledged": replace(_COMPLETED, label="Acknowledged", tone="wait"),
    "succeeded": replace(_COMPLETED, label="Succeeded"),
    "alive": replace(_COMPLETED, label="Alive"),
    "draining": replace(_PAUSED, label="Draining"),
    "stale": replace(_FAILED, label="No heartbeat"),
    "ended": replace(_NOT_RUN, label="Ended"),
    "open": replace(_COMPLETED, label="Open"),
    "on": replace(_COMPLETED, label="Enabled"),
    "off": replace(_NOT_RUN, label="Disabled"),
    "lost": replace(_FAILED, label="Lost"),
    "fired": replace(_COMPLETED, label="Fired"),
    "coalesced": replace(_COMPLETED, label="Coalesced", tone="wait"),
    "skipped": replace(_NOT_RUN, label="Skipped", icon="cancel", tone="retry"),
    "missed": replace(_FAILED, label="Missed"),
    "approved": replace(_COMPLETED, label="Approved"),
    "rejected": replace(_FAILED, label="Rejected"),
    "withdrawn": replace(_NOT_RUN, label="Withdrawn"),
    "valid": replace(_COMPLETED, label="Valid"),
    "accepted": replace(_COMPLETED, label="Accepted"),
    "expired": replace(_NOT_RUN, label="Expired"),
    "revoked": replace(_CANCELLED, label="Revoked"),
}


def status_of(state: str) -> Status:
    """Return the status of a stored or displayed state; an unknown state is shown by its name."""
    found = _STATUSES.get(state)
    return found or Status(state.replace("_", " ").capitalize(), "queued", "wait", 6)


def most_important(states: list[str]) -> str:
    """Return the state that represents several: the one of the lowest rank."""
    return min(states, key=lambda state: status_of(state).rank)
