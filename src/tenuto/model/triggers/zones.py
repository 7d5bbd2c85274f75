"""Between real time and the clock on the wall of a zone.

A wall clock can jump ahead (a *gap*: wall times that do not exist) and be set back (an *overlap*: wall times that
happen twice). Everything here follows from one rule: a wall time happens at the first instant at which the wall clock
has reached or passed it. In a gap that is the instant of the jump, in an overlap the first of the two. The rule never
turns order around: a later wall time never happens earlier.

The rules of the zones are read once, from the system or from the `tzdata` package, and kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from zoneinfo import ZoneInfo

from tenuto.errors import Invalid

MOMENT = timedelta(microseconds=1)
"""The shortest step of time: "just before" an instant is one of it earlier."""
DAY = timedelta(days=1)
FIRST_YEAR, LAST_YEAR = 1970, 9000

_NOT_A_PLACE = "Factory"  # in the list of zones, but it stands for "nobody has set one"
_OUTLANDISH = re.compile(r"[^A-Za-z0-9_+/-]")


@dataclass(frozen=True, slots=True)
class Change:
    """An instant at which a zone's offset from UTC changes."""

    at: datetime
    before: timedelta
    after: timedelta


@lru_cache(maxsize=1024)
def zone_named(name: str) -> ZoneInfo:
    """The zone of an IANA name, such as ``Europe/London``; old names (``Europe/Kiev``, ``EST5EDT``) do as well."""
    known = _known_names()
    if name in known and name != _NOT_A_PLACE:
        return ZoneInfo(name)
    near = _nearest(name, known)
    raise Invalid(
        f"{name!r:.80} is not a time zone",
        field="zone",
        remedy=f"did you mean {near}?" if near else "give an IANA name, such as Europe/London or UTC",
    )


def _nearest(name: str, known: frozenset[str]) -> str | None:
    """What somebody who wrote this may have meant."""
    if len(name) > 64 or _OUTLANDISH.search(name):
        return None
    lowered = {candidate.lower(): candidate for candidate in sorted(known - {_NOT_A_PLACE})}
    near = get_close_matches(name.lower(), lowered, 1, cutoff=0.8)
    return lowered[near[0]] if near else None


def local(zone: ZoneInfo, instant: datetime) -> datetime:
    """What the clock on the wall shows."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def reached(zone: ZoneInfo, instant: datetime) -> datetime:
    """The furthest the wall clock has come by then: what it shows, or, while an hour repeats, where it was set back."""
    shown = instant.astimezone(zone)
    if not shown.fold:
        return shown.replace(tzinfo=None)
    change = _last_change(zone, instant)
    return change.at.replace(tzinfo=None) + change.before - MOMENT


def instant_of(zone: ZoneInfo, wall: datetime) -> datetime:
    """The first instant at which the wall clock has reached this time."""
    instant = wall.replace(tzinfo=zone).astimezone(UTC)
    if local(zone, instant) == wall:
        return instant
    return _last_change(zone, instant).at


def wall(day: date, minute: int) -> datetime:
    """A time of day, in minutes since midnight, on a day."""
    return datetime.combine(day, time(minute // 60, minute % 60))


def midnight(zone: ZoneInfo, day: date) -> datetime:
    """The instant at which a day begins."""
    return instant_of(zone, datetime.combine(day, time()))


def next_change(zone: ZoneInfo, after: datetime, until: datetime) -> Change | None:
    """The first change later than `after` and not later than `until`."""
    for year in range(after.year, until.year + 1):
        for change in _changes(zone, year):
            if after < change.at:
                return change if change.at <= until else None
    return None


def _last_change(zone: ZoneInfo, instant: datetime) -> Change:
    """The latest change not later than an instant that is known to be close behind one."""
    nearby = (*_changes(zone, instant.year - 1), *_changes(zone, instant.year))
    return next(change for change in reversed(nearby) if change.at <= instant)


@lru_cache(maxsize=4096)
def _changes(zone: ZoneInfo, year: int) -> tuple[Change, ...]:
    """The changes of a year (of UTC). Since 1970 no zone has had two within a day, so looking once a day finds all."""
    found: list[Change] = []
    day = datetime(year, 1, 1, tzinfo=UTC) - DAY
    before = _offset(zone, day)
    for _ in range(367):
        following = day + DAY
        after = _offset(zone, following)
        if after != before:
            found.append(Change(_when(zone, day, following), before, after))
        day, before = following, after
    return tuple(change for change in found if change.at.year == year)


def _when(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    """The second at which the offset stops being what it is at `low`."""
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
    assert offset is not None, "a ZoneInfo always knows its offset"
    return offset


@lru_cache(maxsize=1)
def _known_names() -> frozenset[str]:
    """The names of the package, so that what is accepted does not differ from machine to machine."""
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="ascii").split())
