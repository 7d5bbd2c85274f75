"""The oracle of due times: counted by hand from what a schedule says, without a line of the scheduler's own code.

An interval without an anchor is counted from the first midnight of 2001 in UTC, a Monday: see the how-to on schedules.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

_FROM = datetime(2001, 1, 1, tzinfo=UTC)


def due_instants(seconds: int, after: datetime, until: datetime) -> Iterator[datetime]:
    """When something that runs every so many seconds is due: after the first instant, up to the second."""
    step = timedelta(seconds=seconds)
    due = _FROM + step * ((after - _FROM) // step + 1)
    while due <= until:
        yield due
        due += step
