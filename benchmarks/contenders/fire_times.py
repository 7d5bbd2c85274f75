"""Due times of a hundred fires a minute, evenly distributed.

Number k of a hundred schedules is due every minute, at second 60 k / 100, counted from a common instant. Standard
library only.
"""

from __future__ import annotations

import math
import time

MINUTE_SECONDS = 60
SCHEDULE_COUNT = 100
LEAD_SECONDS = 3.0
"""Time before the first due instant in which everything must be set up."""


def first_due_offset(number: int) -> int:
    """Return the seconds after the common instant at which a schedule is due for the first time."""
    return number * MINUTE_SECONDS // SCHEDULE_COUNT


def first_instant() -> int:
    """Return the common instant: a whole second, soon."""
    return math.ceil(time.time() + LEAD_SECONDS)


def fires_within(seconds: int) -> int:
    """Return how many instants are due within that many seconds after the common one."""
    return sum(1 for number in range(SCHEDULE_COUNT) for _ in range(first_due_offset(number), seconds, MINUTE_SECONDS))
