"""Conversion between instants and the wall clock of a time zone.

A wall clock can be set forward (a *gap*: wall times that do not exist) and back (an *overlap*: wall times that happen
twice). One rule applies: a wall time happens at the first instant at which the wall clock has reached or passed it. In
a gap that is the instant of the change, in an overlap the first of the two. The rule preserves order: a later wall time
never happens earlier.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from zoneinfo import ZoneInfo

from tenuto.errors import Invalid, quoted

MICROSECOND = timedelta(microseconds=1)
"""The resolution of instants: "just before" an instant is one microsecond earlier."""
DAY = timedelta(days=1)
FIRST_YEAR, LAST_YEAR = 1970, 9000

_PLACEHOLDER_ZONE = "Factory"  # listed in tzdata, but means that no zone is configured
_ABBREVIATIONS = {
    "BST": "Europe/London",
    "CDT": "America/Chicago",
    "CEST": "Europe/Berlin",
    "CST": "America/Chicago",
    "EDT": "America/New_York",
    "EEST": "Europe/Helsinki",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MDT": "America/Denver",
    "MESZ": "Europe/Berlin",
    "MEZ": "Europe/Berlin",
    "PDT": "America/Los_Angeles",
    "PST": "America/Los_Angeles",
    "WEST": "Europe/Lisbon",
}
"""Frequent abbreviations that are not zones, each with a region that uses it. Some have several meanings."""
_ABBREVIATION = re.compile(r"[A-Z]{2,5}")
_NOT_IN_ZONE_NAMES = re.compile(r"[^A-Za-z0-9_+/-]")


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """An instant at which a zone's offset from UTC changes."""

    at: datetime
    offset_before: timedelta
    offset_after: timedelta


def load_zone(name: str) -> ZoneInfo:
    """Return the zone of an IANA name such as ``Europe/London``. Old names (``Europe/Kiev``, ``EST5EDT``) are valid."""
    if isinstance(name, str):
        return _load_zone(name)
    raise _unknown_zone(name, None)


@lru_cache(maxsize=1024)
def _load_zone(name: str) -> ZoneInfo:
    known = _known_names()
    if name in known and name != _PLACEHOLDER_ZONE:
        return ZoneInfo(name)
    if _ABBREVIATION.fullmatch(name):
        raise Invalid(
            f"{name!r} is not the name of a time zone",
            code="trigger.zone.abbreviation",
            field="zone",
            remedy=f"name a region, such as {_ABBREVIATIONS.get(name, 'Europe/Berlin')}: abbreviations are ambiguous",
        )
    raise _unknown_zone(name, _nearest_name(name, known))


def _unknown_zone(name: object, suggestion: str | None) -> Invalid:
    return Invalid(
        f"unknown time zone {quoted(name)}",
        code="trigger.zone.unknown",
        field="zone",
        remedy=f"did you mean {suggestion}?" if suggestion else "give an IANA name, such as Europe/London or UTC",
    )


def _nearest_name(name: str, known: frozenset[str]) -> str | None:
    if len(name) > 64 or _NOT_IN_ZONE_NAMES.search(name):
        return None
    lowered = {candidate.lower(): candidate for candidate in sorted(known - {_PLACEHOLDER_ZONE})}
    near = get_close_matches(name.lower(), lowered, 1, cutoff=0.8)
    return lowered[near[0]] if near else None


def wall_time_at(zone: ZoneInfo, instant: datetime) -> datetime:
    """Return what the wall clock shows at an instant."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def latest_wall_time(zone: ZoneInfo, instant: datetime) -> datetime:
    """Return the latest wall time reached: what the clock shows or, in a repeated hour, where it was set back."""
    shown = instant.astimezone(zone)
    if not shown.fold:
        return shown.replace(tzinfo=None)
    change = _last_change(zone, instant)
    return change.at.replace(tzinfo=None) + change.offset_before - MICROSECOND


def first_instant_of(zone: ZoneInfo, wall: datetime) -> datetime:
    """Return the first instant at which the wall clock has reached a wall time."""
    instant = wall.replace(tzinfo=zone).astimezone(UTC)
    if wall_time_at(zone, instant) == wall:
        return instant
    return _last_change(zone, instant).at


def last_instant_of(zone: ZoneInfo, wall: datetime) -> datetime:
    """Return the last instant at which the wall clock shows a wall time that it shows twice."""
    return wall.replace(tzinfo=zone, fold=1).astimezone(UTC)


def wall_time(day: date, minute: int) -> datetime:
    """Return the wall time of a minute of the day on a date."""
    return datetime.combine(day, time(minute // 60, minute % 60))


def start_of_day(zone: ZoneInfo, day: date) -> datetime:
    """Return the instant at which a date begins."""
    return first_instant_of(zone, datetime.combine(day, time()))


def next_offset_change(zone: ZoneInfo, after: datetime, until: datetime) -> OffsetChange | None:
    """Return the first change later than `after` and not later than `until`."""
    for year in range(after.year, until.year + 1):
        for change in _changes_in_year(zone, year):
            if after < change.at:
                return change if change.at <= until else None
    return None


def _last_change(zone: ZoneInfo, instant: datetime) -> OffsetChange:
    """Return the latest change not later than an instant that is known to follow one closely."""
    nearby = (*_changes_in_year(zone, instant.year - 1), *_changes_in_year(zone, instant.year))
    return next(change for change in reversed(nearby) if change.at <= instant)


@lru_cache(maxsize=4096)
def _changes_in_year(zone: ZoneInfo, year: int) -> tuple[OffsetChange, ...]:
    """Return the changes of a UTC year. Since 1970 no zone has changed twice within a day, so daily probes suffice."""
    found: list[OffsetChange] = []
    day = datetime(year, 1, 1, tzinfo=UTC) - DAY
    before = _offset(zone, day)
    for _ in range(367):
        following = day + DAY
        after = _offset(zone, following)
        if after != before:
            found.append(OffsetChange(_find_change(zone, day, following), before, after))
        day, before = following, after
    return tuple(change for change in found if change.at.year == year)


def _find_change(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    """Return the second at which the offset differs from the one at `low`, by bisection."""
    before = _offset(zone, low)
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
        if _offset(zone, middle) == before:
            low = middle
        else:
            high = middle
    return high


def _offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    offset = instant.astimezone(zone).utcoffset()
    assert offset is not None, "a ZoneInfo always has an offset"
    return offset


@lru_cache(maxsize=1)
def _known_names() -> frozenset[str]:
    """The names in the tzdata package, so that all machines accept the same names."""
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="ascii").split())
