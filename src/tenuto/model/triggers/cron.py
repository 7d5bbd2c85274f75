"""Cron lines, as people know them, with a zone and a rule for the days on which the clock is changed.

A line with a fixed minute and hour names wall times: one that does not exist runs at the first valid instant, one that
happens twice runs once. A line with a wildcard or a step in minute or hour follows real time: it runs whenever the wall
clock shows a time that fits, so a skipped hour has no runs and a repeated hour has them again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, ClassVar, Unpack

from tenuto.model.triggers import cron_parser, zones
from tenuto.model.triggers.calendar_limits import Limits, bounds_of
from tenuto.model.triggers.cron_parser import Calendar
from tenuto.model.triggers.daily import Daily
from tenuto.model.triggers.descriptions import cron_phrase
from tenuto.model.triggers.trigger import REACH, check_ever_runs
from tenuto.model.triggers.zones import DAY, MOMENT

MAX_STEPS = REACH // DAY


@dataclass(frozen=True, slots=True)
class Cron(Daily):
    """Runs as a cron line says."""

    line: str
    calendar: Calendar = field(compare=False, repr=False)

    kind: ClassVar[str] = "cron"
    said_in: ClassVar[str] = "cron"

    @property
    def _times(self) -> tuple[int, ...]:
        return self.calendar.times

    def _after(self, instant: datetime) -> datetime | None:
        # Two-argument super: a slotted dataclass is made anew, and the short form would look for the old one.
        return self._real_after(instant) if self.calendar.real_time else super(Cron, self)._after(instant)

    def _real_after(self, instant: datetime) -> datetime | None:
        """The first real minute whose wall time fits: each stretch between two changes of the clock for itself."""
        zone = self.bounds.zone_info
        passed = zones.local(zone, instant)
        offset = passed - instant.replace(tzinfo=None)
        wall = self._wall_after(passed)
        while wall is not None:
            found = (wall - offset).replace(tzinfo=UTC)
            change = zones.next_change(zone, instant, found)
            if change is None:
                return found
            instant, offset = change.at, change.after
            begins = instant.replace(tzinfo=None) + offset
            # Nothing between `passed` and `wall` fits: only a stretch that begins outside of it needs another look.
            if not passed < begins <= wall:
                passed = begins - MOMENT
                wall = self._wall_after(passed)
        return None

    def _day_from(self, day: date) -> date | None:
        calendar = self.calendar
        for _ in range(MAX_STEPS):
            if day.month not in calendar.months:
                day = date(day.year + day.month // 12, day.month % 12 + 1, 1)
                continue
            fits, weekday_fits = day.day in calendar.days, day.weekday() in calendar.weekdays
            if (fits or weekday_fits) if calendar.either_day else (fits and weekday_fits):
                return day
            day += DAY
        return None

    def _phrase(self) -> str:
        return cron_phrase(self.calendar)

    def _own_fields(self) -> dict[str, Any]:
        return {"cron": self.line}


def cron(line: str, **limits: Unpack[Limits]) -> Cron:
    """A cron line: ``cron("0 2 * * mon-fri", zone="Europe/London")``."""
    tidy = cron_parser.tidy(line)
    return check_ever_runs(Cron(bounds_of(**limits), tidy, cron_parser.read(tidy)))
