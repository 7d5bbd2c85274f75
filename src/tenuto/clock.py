"""The only room that reads the time.

Decisions take an instant as a parameter; whoever needs "now" is given a `Clock`. Who may hold a task is judged by the
database on its own clock; its holder counts the same span on the steady timer, from before it asked, and so gives up
first. `DatabaseClock` tells the database's time, so that recorded instants of all machines speak of one clock.
`ManualClock` moves only when told to, for tests and simulation.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_TIMER = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Runs on while the machine is suspended: on Linux the first, elsewhere the second (`time.monotonic` does not)."""


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

    The database's time is heard when it is opened, and by a service with each of its signs of life; in between the
    steady timer carries it on, so a stepped or skewed machine clock never shows in a record. An answer that was long
    under way says little, and does not move a clock that may be right, as it is from the start on the database's own
    machine.
    """

    def __init__(self) -> None:
        self._offset = datetime.now(UTC).timestamp() - steady()

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._offset + time.clock_gettime(_TIMER), UTC)

    def heard(self, instant: datetime, asked_at: float | None = None) -> None:
        """The database has reported this instant, after it was asked at that moment of the steady timer (or just now).

        It looked at its clock somewhere between then and now; only a clock that shows otherwise is set, to what is
        surely not ahead.
        """
        now = steady()
        at_least, at_most = instant.timestamp() - now, instant.timestamp() - (now if asked_at is None else asked_at)
        if not at_least <= self._offset <= at_most:
            self._offset = at_least


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
    """Seconds on a timer nobody can set and that suspending does not stop; only differences mean anything."""
    return time.clock_gettime(_TIMER)
