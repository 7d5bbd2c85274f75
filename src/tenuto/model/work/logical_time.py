"""The logical time of a run: its due instant, and the interval from the previous due instant of the trigger to it.

The steps of an execution carry it in their policy, so that a claim reads no further column. So does any other task
after its first attempt: a retry and a deferral change its ``run_at`` (`policy_with_due_instant` in
postgres/fragments.sql).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tenuto.model.triggers import Trigger
from tenuto.model.triggers.trigger import SEARCH_HORIZON

POLICY_KEY = "occurrence"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MIN_SEARCH_WIDTH = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """The logical time of a task."""

    due_at: datetime
    interval_start: datetime | None = None
    """None for a manual run and for a task outside of schedules."""

    def add_to_policy(self, policy: str) -> str:
        """Return a stored policy with this occurrence added."""
        start = None if self.interval_start is None else (self.interval_start - _EPOCH) // _MICROSECOND
        return json.dumps({**json.loads(policy), POLICY_KEY: [start, (self.due_at - _EPOCH) // _MICROSECOND]})


def occurrence_of_policy(policy: str) -> Occurrence | None:
    """Return the occurrence in a stored policy; None if it has none that can be read."""
    if POLICY_KEY not in policy:
        return None
    try:
        start, due = json.loads(policy)[POLICY_KEY]
        return Occurrence(_EPOCH + _MICROSECOND * due, None if start is None else _EPOCH + _MICROSECOND * start)
    except (ValueError, TypeError, KeyError, OverflowError):
        return None


def format_logical_time(instant: datetime) -> str:
    """Return an instant for programs, scripts and requests: ``2026-05-02T02:00:00Z``."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def find_previous_instant(trigger: Trigger, due_at: datetime, seed: str) -> datetime | None:
    """Return the last due instant of a trigger before another one; None if there is none within eight years.

    A trigger only computes the next instant. The search goes back by the usual distance and doubles it.
    """
    following = trigger.next_after(due_at, seed)
    width = max(_MIN_SEARCH_WIDTH, SEARCH_HORIZON if following is None else following - due_at)
    end = due_at - _MICROSECOND
    while True:
        width = min(width, SEARCH_HORIZON)
        previous = None
        for instant in trigger.runs_between(due_at - width - _MICROSECOND, end, seed):
            previous = instant
        if previous is not None or width == SEARCH_HORIZON:
            return previous
        width *= 2


def interval_start_of(trigger: Trigger, due_at: datetime, seed: str) -> datetime:
    """Return where the interval of a run begins: at the previous due instant, or at its own if it is the first."""
    return find_previous_instant(trigger, due_at, seed) or due_at
