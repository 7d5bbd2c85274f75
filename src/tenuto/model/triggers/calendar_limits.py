"""The options that all clock triggers share: time zone, first and last date, excluded dates and jitter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from typing import Any, TypedDict
from zoneinfo import ZoneInfo

from tenuto.errors import Invalid
from tenuto.model.triggers import field_parser, zones
from tenuto.model.triggers.zones import DAY

MAX_JITTER_SECONDS = 86_400


class CalendarOptions(TypedDict, total=False):
    """The options as given. Dates are in the time zone; `end` is inclusive."""

    zone: str
    start: date | str | None
    end: date | str | None
    excluded: Iterable[date | str]
    jitter: field_parser.DurationInput


@dataclass(frozen=True)  # no slots: cached properties need a dict
class CalendarLimits:
    """The parsed options."""

    zone: str
    start: date | None
    end: date | None
    excluded: tuple[date, ...]
    jitter: int

    @cached_property
    def zone_info(self) -> ZoneInfo:
        return zones.load_zone(self.zone)

    @cached_property
    def starts_at(self) -> datetime | None:
        return None if self.start is None else zones.start_of_day(self.zone_info, self.start)

    @cached_property
    def _excluded(self) -> frozenset[date]:
        return frozenset(self.excluded)

    @cached_property
    def is_unrestricted(self) -> bool:
        """Whether every date is allowed."""
        return self.start is None and self.end is None and not self.excluded

    def next_allowed_day(self, day: date) -> date | None:
        """Return the day itself if it is allowed, or the next allowed day."""
        if self.start is not None and day < self.start:
            day = self.start
        while day in self._excluded:
            day += DAY
        return None if self.end is not None and day > self.end else day

    def to_fields(self) -> dict[str, Any]:
        """Return the stored form: the zone and the options that are set."""
        stored: dict[str, Any] = {"zone": self.zone}
        if self.start is not None:
            stored["start"] = self.start.isoformat()
        if self.end is not None:
            stored["end"] = self.end.isoformat()
        if self.excluded:
            stored["excluded"] = [day.isoformat() for day in self.excluded]
        if self.jitter:
            stored["jitter"] = self.jitter
        return stored


def parse_calendar_limits(
    zone: str = "UTC",
    start: date | str | None = None,
    end: date | str | None = None,
    excluded: Iterable[date | str] = (),
    jitter: field_parser.DurationInput = 0,
) -> CalendarLimits:
    zones.load_zone(zone)
    first = None if start is None else field_parser.parse_date(start, field="start")
    last = None if end is None else field_parser.parse_date(end, field="end")
    if first is not None and last is not None and last < first:
        raise Invalid(
            f"end {last} is before start {first}, so the trigger would never fire",
            code="trigger.end.before_start",
            field="end",
            remedy="give an end on or after the start",
        )
    return CalendarLimits(
        zone,
        first,
        last,
        field_parser.parse_dates(excluded, field="excluded"),
        field_parser.parse_whole_seconds(jitter, field="jitter", minimum=0, maximum=MAX_JITTER_SECONDS),
    )
