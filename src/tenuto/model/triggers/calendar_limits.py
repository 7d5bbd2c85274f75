"""What every trigger with a clock carries: its zone, the dates it keeps to, and how far its runs are spread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from typing import Any, TypedDict
from zoneinfo import ZoneInfo

from tenuto.errors import Invalid
from tenuto.model.triggers import parsing, zones
from tenuto.model.triggers.zones import DAY

MAX_JITTER = 86_400


class Limits(TypedDict, total=False):
    """What may be said of any trigger with a clock. Dates are those of the zone; `end` is the last that counts."""

    zone: str
    start: date | str | None
    end: date | str | None
    excluded: Iterable[date | str]
    jitter: parsing.Span


@dataclass(frozen=True)  # no slots: it keeps what it has worked out
class Bounds:
    """The limits, read."""

    zone: str
    start: date | None
    end: date | None
    excluded: tuple[date, ...]
    jitter: int

    @cached_property
    def zone_info(self) -> ZoneInfo:
        return zones.zone_named(self.zone)

    @cached_property
    def starts_at(self) -> datetime | None:
        return None if self.start is None else zones.midnight(self.zone_info, self.start)

    @cached_property
    def _excluded(self) -> frozenset[date]:
        return frozenset(self.excluded)

    @cached_property
    def plain(self) -> bool:
        """Whether every date will do."""
        return self.start is None and self.end is None and not self.excluded

    def next_kept(self, day: date) -> date | None:
        """The day itself if something may run on it, or else the next on which it may."""
        if self.start is not None and day < self.start:
            day = self.start
        while day in self._excluded:
            day += DAY
        return None if self.end is not None and day > self.end else day

    def fields(self) -> dict[str, Any]:
        """As stored: the zone, and what was said beside it."""
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


def bounds_of(
    zone: str = "UTC",
    start: date | str | None = None,
    end: date | str | None = None,
    excluded: Iterable[date | str] = (),
    jitter: parsing.Span = 0,
) -> Bounds:
    """Read the limits, or refuse the one that is wrong by its name."""
    if not isinstance(zone, str):
        raise Invalid(f"{zone!r:.80} is not a name", field="zone", remedy="give an IANA name, such as Europe/London")
    zones.zone_named(zone)
    first = None if start is None else parsing.calendar_date(start, field="start")
    last = None if end is None else parsing.calendar_date(end, field="end")
    if first is not None and last is not None and last < first:
        raise Invalid(
            f"{last} is before the start, {first}, so it would never run",
            field="end",
            remedy="give an end on or after the start",
        )
    return Bounds(
        zone,
        first,
        last,
        parsing.calendar_dates(excluded, field="excluded"),
        parsing.whole_seconds(jitter, field="jitter", least=0, most=MAX_JITTER),
    )
