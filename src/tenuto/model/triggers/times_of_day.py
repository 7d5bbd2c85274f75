"""Specific times: any times of the day, on any days of the week. Every minute is honoured as written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, time
from typing import Any, ClassVar, Unpack

from tenuto.model.triggers import descriptions, parsing
from tenuto.model.triggers.calendar_limits import Limits, bounds_of
from tenuto.model.triggers.daily import Daily
from tenuto.model.triggers.trigger import check_ever_runs
from tenuto.model.triggers.zones import DAY


@dataclass(frozen=True, slots=True)
class Times(Daily):
    """Runs at these minutes of the day on these days of the week (Monday is 0)."""

    minutes: tuple[int, ...]
    days: tuple[int, ...]

    kind: ClassVar[str] = "times"
    said_in: ClassVar[str] = "times"

    @property
    def _times(self) -> tuple[int, ...]:
        return self.minutes

    def _day_from(self, day: date) -> date | None:
        while day.weekday() not in self.days:
            day += DAY
        return day

    def _phrase(self) -> str:
        return f"{descriptions.leading_days(self.days)} at {descriptions.times(self.minutes)}"

    def _own_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"times": [descriptions.clock(minute) for minute in self.minutes]}
        if self.days != parsing.EVERY_DAY:
            fields["days"] = [parsing.WEEK[day][:3] for day in self.days]
        return fields


def at(times: str | time | Iterable[str | time], *, days: parsing.Days = None, **limits: Unpack[Limits]) -> Times:
    """Specific times: ``at(["06:00", "18:30"], days="weekdays", zone="Europe/London")``."""
    return check_ever_runs(
        Times(bounds_of(**limits), parsing.minutes_of_day(times, field="times"), parsing.weekdays(days))
    )
