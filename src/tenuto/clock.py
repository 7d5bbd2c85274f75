"""The only room that reads the time.

Decisions take an instant as a parameter; whoever needs "now" is given a `Clock`. Leases are judged on the database's
clock, never on this one; `DatabaseClock` shifts local time onto it so that every recorded instant speaks of the same
clock. `ManualClock` moves only when told to, for tests and simulation.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Whatever can say what time it is."""

    def now(self) -> datetime:
        """The present instant, aware, in UTC."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class DatabaseClock:
    """The database's clock, told from the machine's steady timer and the last instant the database reported.

    A worker hears the database's time with every claim; between two claims the steady timer carries it on, so a
    stepped or skewed machine clock never shows in a record.
    """

    def __init__(self) -> None:
        self.heard(datetime.now(UTC))

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._offset + time.monotonic(), UTC)

    def heard(self, instant: datetime) -> None:
        """Take over the instant the database has just reported."""
        self._offset = instant.timestamp() - time.monotonic()


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, start: datetime) -> None:
        self._now = start

    def now(self) -> datetime:
        return self._now

    def advance(self, by: timedelta) -> datetime:
        """Move on by a span and say where that is."""
        self._now += by
        return self._now


def steady() -> float:
    """Seconds on a timer that never jumps; only differences mean anything."""
    return time.monotonic()
