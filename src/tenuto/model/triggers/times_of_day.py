"""Triggers at fixed times of day: the base class that cron shares, and specific times on days of the week.

A time that does not exist on its day (the clock was set forward past it) runs at the first instant after the change; a
time that happens twice runs once, at the first.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, ClassVar, Unpack

from tenuto.model.triggers import descriptions, field_parser, zones
from tenuto.model.triggers.calendar_limits import CalendarOptions, parse_calendar_limits
from tenuto.model.triggers.trigger import ClockTrigger, check_has_runs
from tenuto.model.triggers.zones import DAY, MICROSECOND


@dataclass(frozen=True, slots=True)
class DailyTrigger(ClockTrigger):
    """A trigger made of days and of times of day, in minutes since midnight."""

    @property
    @abstractmethod
    def _minutes_of_day(self) -> tuple[int, ...]:
        """The times of day in order."""

    @abstractmethod
    def _day_from(self, day: date) -> date | None:
        """Return the day itself if the trigger fires on it, or the next such day within the search horizon."""

    def _time_after(self, instant: datetime) -> datetime | None:
        zone = self.limits.zone_info
        wall = zones.latest_wall_time(zone, instant)
        while (found := self._wall_time_after(wall)) is not None:
            # Checked against the intended day too: a time that a clock change moves past midnight belongs to that day.
            day = found.date()
            allowed = self.limits.next_allowed_day(day)
            if allowed == day:
                return zones.first_instant_of(zone, found)
            if allowed is None:
                return None
            wall = datetime.combine(allowed, time()) - MICROSECOND
        return None

    def _times_between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        first = zones.wall_time_at(self.limits.zone_info, after)
        offset = first - after.replace(tzinfo=None)
        last, times = until.replace(tzinfo=None) + offset, [timedelta(minutes=each) for each in self._minutes_of_day]
        day = self._day_from(first.date())
        while day is not None and day <= last.date():
            midnight = datetime.combine(day, time(), UTC) - offset
            found = [midnight + each for each in times]
            if found[0] <= after or found[-1] > until:  # the first or the last day
                found = [each for each in found if after < each <= until]
            yield from found
            day = self._day_from(day + DAY)

    def _wall_time_after(self, wall: datetime) -> datetime | None:
        times, today = self._minutes_of_day, wall.date()
        day = self._day_from(today)
        if day == today:
            later = bisect_right(times, wall.hour * 60 + wall.minute)
            if later < len(times):
                return zones.wall_time(today, times[later])
            day = self._day_from(today + DAY)
        return None if day is None else zones.wall_time(day, times[0])


@dataclass(frozen=True, slots=True)
class TimesTrigger(DailyTrigger):
    """Runs at these minutes of the day on these days of the week (Monday is 0)."""

    minutes: tuple[int, ...]
    days: tuple[int, ...]

    kind: ClassVar[str] = "times"
    time_field: ClassVar[str] = "times"

    @property
    def _minutes_of_day(self) -> tuple[int, ...]:
        return self.minutes

    def _day_from(self, day: date) -> date | None:
        while day.weekday() not in self.days:
            day += DAY
        return day

    def _describe_times(self) -> str:
        days, times = descriptions.sentence_start_days(self.days), descriptions.format_times_of_day(self.minutes)
        return f"{days} at {times}"

    def _time_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"times": [descriptions.format_time_of_day(minute) for minute in self.minutes]}
        if self.days != field_parser.EVERY_DAY:
            fields["days"] = [field_parser.WEEKDAY_NAMES[day][:3] for day in self.days]
        return fields


def at(
    times: str | time | Iterable[str | time], *, days: field_parser.DaysInput = None, **limits: Unpack[CalendarOptions]
) -> TimesTrigger:
    """Run at specific times: ``at(["06:00", "18:30"], days="weekdays", zone="Europe/London")``."""
    return check_has_runs(
        TimesTrigger(
            parse_calendar_limits(**limits),
            field_parser.parse_minutes_of_day(times, field="times"),
            field_parser.parse_weekdays(days),
        )
    )
