"""The only module that reads the time.

Decisions take an instant as a parameter; code that needs the present instant is given a `Clock`. The database judges
leases on its own clock. A worker counts the same duration on the monotonic clock from before its request, so the worker
gives up first.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_MONOTONIC_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""On Linux the clock that continues while the machine is suspended (`time.monotonic` stops)."""


class Clock(Protocol):
    """A source of the present instant."""

    def now(self) -> datetime:
        """Return the present instant, aware, in UTC."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class DatabaseClock:
    """The database's clock, derived from the monotonic clock and the last instant the database reported.

    The offset is set when the database is opened and corrected with every heartbeat of a service. A wrong or adjusted
    machine clock therefore never appears in records.
    """

    def __init__(self) -> None:
        self._offset = datetime.now(UTC).timestamp() - monotonic_seconds()

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._offset + time.clock_gettime(_MONOTONIC_CLOCK), UTC)

    def synchronize(self, database_now: datetime, requested_at: float | None = None) -> None:
        """Correct the offset by an instant that the database reported.

        The database read its clock between ``requested_at`` (monotonic seconds) and now. The offset changes only if it
        lies outside that interval, and then to the smallest possible value, so a slow response cannot falsify it.
        """
        now = monotonic_seconds()
        reported = database_now.timestamp()
        at_least, at_most = reported - now, reported - (now if requested_at is None else requested_at)
        if not at_least <= self._offset <= at_most:
            self._offset = at_least


class ManualClock:
    """A clock for tests and simulation that moves only with `advance`."""

    def __init__(self, start: datetime) -> None:
        self._now = start

    def now(self) -> datetime:
        return self._now

    def advance(self, by: timedelta) -> datetime:
        """Move the clock forward and return the new instant."""
        self._now += by
        return self._now


def monotonic_seconds() -> float:
    """Return seconds on a clock that is never set and continues during suspension; only differences are meaningful."""
    return time.clock_gettime(_MONOTONIC_CLOCK)
