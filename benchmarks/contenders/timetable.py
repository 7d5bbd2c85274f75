"""The timetable: a hundred fires a minute, evenly over it, for whoever starts work at given instants.

Number k of a hundred schedules is due every minute, at the second 60 k / 100, counted from an instant that is agreed
on first. Standard library only.
"""

from __future__ import annotations

import math
import time

A_MINUTE = 60
FIRES = 100
AHEAD = 3.0
"""How long before the first due instant everything must be in place."""


def offset(number: int) -> int:
    """Seconds after the agreed instant at which a schedule is due for the first time."""
    return number * A_MINUTE // FIRES


def first_instant() -> int:
    """The agreed instant: a whole second, soon."""
    return math.ceil(time.time() + AHEAD)


def fires_within(seconds: int) -> int:
    """How many instants are due from the agreed one on, before so many seconds have passed."""
    return sum(1 for number in range(FIRES) for _ in range(offset(number), seconds, A_MINUTE))
