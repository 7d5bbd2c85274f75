"""Expected due instants, computed from the definition of a schedule without code of the scheduler.

An interval without an anchor counts from midnight UTC of 1 January 2001, a Monday: see the how-to on schedules.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

_ORIGIN = datetime(2001, 1, 1, tzinfo=UTC)


def due_instants(seconds: int, after: datetime, until: datetime) -> Iterator[datetime]:
    """Yield the due instants of an interval after the first instant, up to the second."""
    step = timedelta(seconds=seconds)
    due = _ORIGIN + step * ((after - _ORIGIN) // step + 1)
    while due <= until:
        yield due
        due += step
