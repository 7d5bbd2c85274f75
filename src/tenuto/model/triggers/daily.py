"""Fixed times of day on some days: what cron lines and specific times have in common.

A time that does not exist on its day (the clock jumped over it) runs at the first instant after the jump, together with
whatever else falls there; a time that happens twice runs once, at the first.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from datetime import date, datetime, time

from tenuto.model.triggers import zones
from tenuto.model.triggers.trigger import Timed
from tenuto.model.triggers.zones import DAY, MOMENT


@dataclass(frozen=True, slots=True)
class Daily(Timed):
    """A trigger made of days and of times of the day, in minutes since midnight."""

    @property
    @abstractmethod
    def _times(self) -> tuple[int, ...]:
        """The times of the day, in order."""

    @abstractmethod
    def _day_from(self, day: date) -> date | None:
        """The day itself if it is one of ours, or else the next one within reach."""

    def _after(self, instant: datetime) -> datetime | None:
        zone = self.bounds.zone_info
        wall = zones.reached(zone, instant)
        while (found := self._wall_after(wall)) is not None:
            # Held against the day it was meant for, too: moved over midnight by a jump, it still belongs to that one.
            day = found.date()
            kept = self.bounds.next_kept(day)
            if kept == day:
                return zones.instant_of(zone, found)
            if kept is None:
                return None
            wall = datetime.combine(kept, time()) - MOMENT
        return None

    def _wall_after(self, wall: datetime) -> datetime | None:
        """The next of our times on the wall."""
        times, today = self._times, wall.date()
        day = self._day_from(today)
        if day == today:
            later = bisect_right(times, wall.hour * 60 + wall.minute)
            if later < len(times):
                return zones.wall(today, times[later])
            day = self._day_from(today + DAY)
        return None if day is None else zones.wall(day, times[0])
