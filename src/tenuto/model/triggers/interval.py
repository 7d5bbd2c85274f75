"""Interval triggers: a fixed number of seconds of real time, whatever the wall clock does.

Intervals count from the anchor, if one is given. Otherwise they count from the opening of each day's window; without a
window, from the start date; without a start date, from midnight of a Monday in 2001, so that full hours fall on full
hours. A window lasts from the first instant at its opening time to the first at its closing time, both included. It
belongs to the day on which it opens, even if it closes on the next. While it is open, a run also needs a wall clock
within the window: the instant at which the clock is set forward past the closing time is outside, and so is an hour
that repeats before the opening time. A window whose times a day does not have has no run on that day.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any, ClassVar, Unpack

from tenuto.errors import Invalid
from tenuto.model.triggers import descriptions, field_parser, zones
from tenuto.model.triggers.calendar_limits import CalendarOptions, parse_calendar_limits
from tenuto.model.triggers.trigger import SEARCH_HORIZON, ClockTrigger, check_has_runs
from tenuto.model.triggers.zones import DAY, MICROSECOND

MAX_INTERVAL_SECONDS = 366 * 86_400
_MAX_DAYS_SEARCHED = SEARCH_HORIZON // DAY

_DEFAULT_ANCHOR_DAY = date(2001, 1, 1)
_WINDOW_REMEDY = "give two different times, such as ('22:00', '06:00'); leave it out for the whole day"


@dataclass(frozen=True, slots=True)
class DailyWindow:
    """A part of the day in minutes since midnight; it crosses midnight if it closes before it opens."""

    opens: int
    closes: int


@dataclass(frozen=True, slots=True)
class IntervalTrigger(ClockTrigger):
    """Runs at an interval, optionally within a daily window and on certain days of the week."""

    seconds: int
    window: DailyWindow | None
    days: tuple[int, ...]
    anchor: datetime | None

    kind: ClassVar[str] = "interval"
    time_field: ClassVar[str] = "every"

    def _time_after(self, instant: datetime) -> datetime | None:
        if self.window is not None:
            return self._in_window_after(self.window, instant)
        zone, anchor = self.limits.zone_info, self._count_from()
        found = self._step_after(anchor, instant)
        for _ in range(_MAX_DAYS_SEARCHED):
            if self.days == field_parser.EVERY_DAY:
                return found
            day = zones.latest_wall_time(zone, found).date()
            if day.weekday() in self.days:
                return found
            found = self._step_after(anchor, zones.start_of_day(zone, self._next_day(day)) - MICROSECOND)
        return None

    def _times_between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        if self.window is not None or self.days != field_parser.EVERY_DAY:
            # Two-argument super: a dataclass with slots is a new class, and the short form refers to the old one.
            yield from super(IntervalTrigger, self)._times_between(after, until)
            return
        found, step = self._step_after(self._count_from(), after), timedelta(seconds=self.seconds)
        while found <= until:
            yield found
            found += step

    def _in_window_after(self, window: DailyWindow, instant: datetime) -> datetime | None:
        zone = self.limits.zone_info
        # Yesterday's window may still be open.
        day = zones.latest_wall_time(zone, instant).date() - DAY
        for _ in range(_MAX_DAYS_SEARCHED):
            if day.weekday() in self.days:
                found = self._in_window_of_day_after(window, day, instant)
                if found is not None:
                    return found
            day = self._next_day(day)
        return None

    def _in_window_of_day_after(self, window: DailyWindow, day: date, instant: datetime) -> datetime | None:
        zone = self.limits.zone_info
        opening = zones.wall_time(day, window.opens)
        closing = zones.wall_time(day, window.closes) + (DAY if window.closes < window.opens else timedelta())
        opens_at, closes_at = zones.first_instant_of(zone, opening), zones.first_instant_of(zone, closing)
        anchor = self.anchor or opens_at
        found = self._step_after(anchor, max(instant, opens_at - MICROSECOND))
        if found <= closes_at and zones.wall_time_at(zone, found) < opening:  # the clock was set back meanwhile
            found = self._step_after(anchor, zones.last_instant_of(zone, opening) - MICROSECOND)
        return found if found <= closes_at and zones.wall_time_at(zone, found) <= closing else None

    def _count_from(self) -> datetime:
        return self.anchor or self.limits.starts_at or zones.start_of_day(self.limits.zone_info, _DEFAULT_ANCHOR_DAY)

    def _step_after(self, anchor: datetime, instant: datetime) -> datetime:
        step = timedelta(seconds=self.seconds)
        return anchor + ((instant - anchor) // step + 1) * step

    def _next_day(self, day: date) -> date:
        day += DAY
        while day.weekday() not in self.days:
            day += DAY
        return day

    def _describe_times(self) -> str:
        parts = [f"Every {descriptions.format_duration(self.seconds)}"]
        if self.window is not None:
            opens, closes = map(descriptions.format_time_of_day, (self.window.opens, self.window.closes))
            parts.append(f"from {opens} to {closes}")
        if self.days != field_parser.EVERY_DAY:
            parts.append(descriptions.sentence_end_days(self.days))
        if self.anchor is not None:
            parts.append(f"in step with {self.anchor:%Y-%m-%d %H:%M:%S} UTC")
        return " ".join(parts)

    def _time_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"every": self.seconds}
        if self.window is not None:
            fields["between"] = [
                descriptions.format_time_of_day(self.window.opens),
                descriptions.format_time_of_day(self.window.closes),
            ]
        if self.days != field_parser.EVERY_DAY:
            fields["days"] = [field_parser.WEEKDAY_NAMES[day][:3] for day in self.days]
        if self.anchor is not None:
            fields["anchor"] = self.anchor.isoformat()
        return fields


def every(
    interval: field_parser.DurationInput,
    *,
    between: tuple[str | time, str | time] | None = None,
    days: field_parser.DaysInput = None,
    anchor: datetime | str | None = None,
    **limits: Unpack[CalendarOptions],
) -> IntervalTrigger:
    """Run at an interval: ``every("15m", between=("22:00", "06:00"), days="mon-fri", zone="Europe/London")``."""
    counted_from = None if anchor is None else field_parser.parse_instant(anchor, field="anchor").replace(microsecond=0)
    return check_has_runs(
        IntervalTrigger(
            parse_calendar_limits(**limits),
            field_parser.parse_whole_seconds(interval, field="every", minimum=1, maximum=MAX_INTERVAL_SECONDS),
            _parse_window(between),
            field_parser.parse_weekdays(days),
            counted_from,
        )
    )


def _parse_window(between: object) -> DailyWindow | None:
    if between is None:
        return None
    times = field_parser.to_list(between, field="between", maximum=2, remedy=_WINDOW_REMEDY)
    if len(times) != 2:
        raise Invalid("between needs two times", code="trigger.between.invalid", field="between", remedy=_WINDOW_REMEDY)
    opens, closes = (field_parser.parse_minute_of_day(value, field="between") for value in times)
    if opens == closes:
        raise Invalid(
            "the window of between opens and closes at the same time",
            code="trigger.between.invalid",
            field="between",
            remedy=_WINDOW_REMEDY,
        )
    return DailyWindow(opens, closes)
