"""Intervals: every so many seconds of real time, whatever the clock on the wall does.

The steps are counted from the anchor, if one is given. Without one they are counted from the opening of each day's
window or, if there is no window, from the start date; failing that, from a Monday's midnight of long ago, so that full
hours fall on full hours. A window lasts from the first instant its opening time is reached to the first its closing
time is, both included. It belongs to the day on which it opens, though it may close on the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any, ClassVar, Unpack

from tenuto.errors import Invalid
from tenuto.model.triggers import descriptions, parsing, zones
from tenuto.model.triggers.calendar_limits import Limits, bounds_of
from tenuto.model.triggers.trigger import REACH, Timed, check_ever_runs
from tenuto.model.triggers.zones import DAY, MOMENT

MAX_SECONDS = 366 * 86_400
MAX_STEPS = REACH // DAY

_A_MONDAY = date(2001, 1, 1)
_WINDOW_REMEDY = "give two different times, such as ('22:00', '06:00'); leave it out for the whole day"


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the day, in minutes since midnight; it crosses midnight if it closes before it opens."""

    opens: int
    closes: int


@dataclass(frozen=True, slots=True)
class Interval(Timed):
    """Runs every so many seconds, within a daily window and on certain days if so wished."""

    seconds: int
    window: Window | None
    days: tuple[int, ...]
    anchor: datetime | None

    kind: ClassVar[str] = "interval"
    said_in: ClassVar[str] = "every"

    def _after(self, instant: datetime) -> datetime | None:
        if self.window is not None:
            return self._in_window_after(self.window, instant)
        zone, anchor = self.bounds.zone_info, self._anchor()
        found = self._step_after(anchor, instant)
        for _ in range(MAX_STEPS):
            if self.days == parsing.EVERY_DAY:
                return found
            day = zones.reached(zone, found).date()
            if day.weekday() in self.days:
                return found
            found = self._step_after(anchor, zones.midnight(zone, self._next_day(day)) - MOMENT)
        return None

    def _in_window_after(self, window: Window, instant: datetime) -> datetime | None:
        zone = self.bounds.zone_info
        # Yesterday's window may still be open.
        day = zones.reached(zone, instant).date() - DAY
        for _ in range(MAX_STEPS):
            if day.weekday() in self.days:
                opens_at = zones.instant_of(zone, zones.wall(day, window.opens))
                overnight = DAY if window.closes < window.opens else timedelta()
                closes_at = zones.instant_of(zone, zones.wall(day, window.closes) + overnight)
                found = self._step_after(self.anchor or opens_at, max(instant, opens_at - MOMENT))
                if found <= closes_at:
                    return found
            day = self._next_day(day)
        return None

    def _anchor(self) -> datetime:
        return self.anchor or self.bounds.starts_at or zones.midnight(self.bounds.zone_info, _A_MONDAY)

    def _step_after(self, anchor: datetime, instant: datetime) -> datetime:
        step = timedelta(seconds=self.seconds)
        return anchor + ((instant - anchor) // step + 1) * step

    def _next_day(self, day: date) -> date:
        day += DAY
        while day.weekday() not in self.days:
            day += DAY
        return day

    def _phrase(self) -> str:
        parts = [f"Every {descriptions.span(self.seconds)}"]
        if self.window is not None:
            parts.append(f"from {descriptions.clock(self.window.opens)} to {descriptions.clock(self.window.closes)}")
        if self.days != parsing.EVERY_DAY:
            parts.append(descriptions.trailing_days(self.days))
        if self.anchor is not None:
            parts.append(f"in step with {self.anchor:%Y-%m-%d %H:%M:%S} UTC")
        return " ".join(parts)

    def _own_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"every": self.seconds}
        if self.window is not None:
            fields["between"] = [descriptions.clock(self.window.opens), descriptions.clock(self.window.closes)]
        if self.days != parsing.EVERY_DAY:
            fields["days"] = [parsing.WEEK[day][:3] for day in self.days]
        if self.anchor is not None:
            fields["anchor"] = self.anchor.isoformat()
        return fields


def every(
    interval: parsing.Span,
    *,
    between: tuple[str | time, str | time] | None = None,
    days: parsing.Days = None,
    anchor: datetime | str | None = None,
    **limits: Unpack[Limits],
) -> Interval:
    """An interval: ``every("15m", between=("22:00", "06:00"), days="mon-fri", zone="Europe/London")``."""
    counted_from = None if anchor is None else parsing.instant(anchor, field="anchor").replace(microsecond=0)
    return check_ever_runs(
        Interval(
            bounds_of(**limits),
            parsing.whole_seconds(interval, field="every", least=1, most=MAX_SECONDS),
            _window(between),
            parsing.weekdays(days),
            counted_from,
        )
    )


def _window(between: object) -> Window | None:
    if between is None:
        return None
    times = parsing.listed(between, field="between", most=2, remedy=_WINDOW_REMEDY)
    if len(times) != 2:
        raise Invalid("needs two times", field="between", remedy=_WINDOW_REMEDY)
    opens, closes = (parsing.minute_of_day(value, field="between") for value in times)
    if opens == closes:
        raise Invalid("opens and closes at the same time", field="between", remedy=_WINDOW_REMEDY)
    return Window(opens, closes)
