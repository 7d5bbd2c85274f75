"""Jitter: runs of many schedules at one time, spread over the seconds that follow.

The place of a schedule is derived from its seed and never drawn, so that a repeated question has the same answer. A run
moves later, never earlier, and stays before the next time of its trigger: where times stand closer than the jitter
reaches, the spread shrinks to the gap. So runs keep their order, and none is swallowed by the next. It stays on its
day, too: what a trigger says of days and dates holds for the runs, and not only for the times they are moved from.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from hashlib import sha256

DueAfter = Callable[[datetime], datetime | None]
DayEnds = Callable[[datetime], datetime]

_SECOND = timedelta(seconds=1)
_BITS = 64


def next_after(due_after: DueAfter, day_ends: DayEnds, instant: datetime, jitter: int, seed: str) -> datetime | None:
    """The first spread run later than an instant; `due_after` gives the times that are to be spread, `day_ends` the end
    of the day on which one falls."""
    place = int.from_bytes(sha256(seed.encode("utf-8", "surrogatepass")).digest()[: _BITS // 8], "big")
    # The time before may have passed while its run, moved later, has not.
    for due in (_last_due(due_after, instant, jitter), due_after(instant)):
        if due is not None:
            room = min(_room(due_after, due, jitter), (day_ends(due) - due) // _SECOND)
            run = due + _SECOND * (place * room >> _BITS)
            if run > instant:
                return run
    return None


def _room(due_after: DueAfter, due: datetime, jitter: int) -> int:
    """How many seconds there are to choose from."""
    following = due_after(due)
    return jitter + 1 if following is None else min(jitter + 1, (following - due) // _SECOND)


def _last_due(due_after: DueAfter, instant: datetime, jitter: int) -> datetime | None:
    """The last time not later than an instant, if the jitter reaches from there to it; found by halving."""

    def due_within(seconds: int) -> datetime | None:
        due = due_after(instant - _SECOND * seconds)
        return due if due is not None and due <= instant else None

    if due_within(jitter) is None:
        return None
    low, high = 0, jitter
    while high - low > 1:
        middle = (low + high) // 2
        if due_within(middle) is None:
            low = middle
        else:
            high = middle
    return due_within(high)
