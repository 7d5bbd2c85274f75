"""An oracle for triggers: checks every real minute of some years in a zone.

Written from the rules alone, without code of the implementation: slow and simple. All numbers are minutes since the
start of the period (real time) or since 1970 (wall time).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

Due = Callable[[date], bytes]
"""For a day, one byte per minute: 1 if a run is due."""

MINUTE = timedelta(minutes=1)
EPOCH = date(1970, 1, 1)
MONTHS = ["", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEK = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


@dataclass(frozen=True)
class Walk:
    """The wall clock of a zone at every real minute from `first` on."""

    zone: str
    first: datetime
    walls: array[int]

    def instant(self, minute: int) -> datetime:
        return self.first + minute * MINUTE


def walk(zone: str, first: str, last: str) -> Walk:
    info = ZoneInfo(zone)
    begin, end = (datetime.fromisoformat(day).replace(tzinfo=UTC) for day in (first, last))
    start = (begin.date() - EPOCH).days * 1440
    walls = array("i")
    for hour in range(0, (end - begin) // MINUTE, 60):
        offsets = {_offset(info, begin + minute * MINUTE) for minute in (hour, hour + 60)}
        for minute in range(hour, hour + 60):
            # Only in an hour in which the clock is changed is it worth asking for every minute.
            offset = min(offsets) if len(offsets) == 1 else _offset(info, begin + minute * MINUTE)
            walls.append(start + minute + offset)
    return Walk(zone, begin, walls)


def _offset(info: ZoneInfo, instant: datetime) -> int:
    offset = instant.astimezone(info).utcoffset()
    assert offset is not None
    return int(offset.total_seconds()) // 60


def fits(text: str, value: int, names: list[str], low: int, high: int) -> bool:
    """Whether one value fits one field of a cron line."""
    for item in text.lower().split(","):
        span, _, step = item.partition("/")
        begin, _, end = span.partition("-")
        if begin == "*":
            first, last = low, high
        else:
            first = names.index(begin) if begin in names else int(begin)
            last = high if step else first
        if end:
            last = names.index(end) if end in names else int(end)
            last = 7 if end == "sun" else last
        if first <= value <= last and (value - first) % int(step or 1) == 0:
            return True
    return False


def day_fits(line: str, day: date) -> bool:
    _, _, day_of_month, month, day_of_week = line.split()
    if not fits(month, day.month, MONTHS, 1, 12):
        return False
    by_date = fits(day_of_month, day.day, [], 1, 31)
    sunday_first = day.isoweekday() % 7
    by_week = any(fits(day_of_week, number, WEEK, 0, 7) for number in ({0, 7} if sunday_first == 0 else {sunday_first}))
    if day_of_month[0] != "*" and day_of_week[0] != "*":
        return by_date or by_week
    return by_date and by_week


def cron_is_due(line: str) -> Due:
    minute, hour, *_ = line.split()
    minutes = [fits(minute, value, [], 0, 59) for value in range(60)]
    named = bytes(fits(hour, value // 60, [], 0, 23) and minutes[value % 60] for value in range(1440))
    return lambda day: named if day_fits(line, day) else bytes(1440)


def times_are_due(times: list[str], days: list[int]) -> Due:
    named = bytes(f"{minute // 60:02}:{minute % 60:02}" in times for minute in range(1440))
    return lambda day: named if day.weekday() in days else bytes(1440)


def by_the_clock(walk: Walk, *due: Due) -> list[list[datetime]]:
    """Fixed wall times: due when the clock first reaches or passes them. For several triggers in one walk."""
    plan, origin = _plan(walk, due)
    found: list[tuple[int, int]] = []
    furthest = walk.walls[0]
    for minute, wall in enumerate(walk.walls):
        if wall > furthest:
            whose = plan[wall - origin]
            for skipped in range(furthest + 1, wall):
                whose |= plan[skipped - origin]
            if whose:
                found.append((minute, whose))
            furthest = wall
    return _sorted_out(walk, found, len(due))


def by_real_time(walk: Walk, *due: Due) -> list[list[datetime]]:
    """Wildcards: due whenever the clock shows a time that fits. For several triggers in one walk."""
    plan, origin = _plan(walk, due)
    found = [(minute, plan[wall - origin]) for minute, wall in enumerate(walk.walls) if plan[wall - origin]]
    return _sorted_out(walk, [(minute, whose) for minute, whose in found if minute], len(due))


def in_windows(walk: Walk, every: int, edges: tuple[int, int], days: list[int]) -> list[datetime]:
    """Steps of real time from each opening of a daily window to its closing, the closing minute included, while the
    wall clock shows a time within the window."""
    opens, closes = edges
    length = (closes - opens) % 1440
    found: list[datetime] = []
    furthest = walk.walls[0] - 1
    opened: dict[int, int] = {}
    """Real minute of the opening, by the wall minute at which a window opens."""
    for minute, wall in enumerate(walk.walls):
        before, furthest = furthest, max(furthest, wall)
        for reached in range(before + 1, furthest + 1):
            if reached % 1440 == opens and (EPOCH + timedelta(days=reached // 1440)).weekday() in days:
                opened[reached] = minute
        is_due = [
            (minute - since) % every == 0
            for opening, since in opened.items()
            if opening <= wall <= opening + length and before < opening + length
        ]
        if any(is_due):
            found.append(walk.instant(minute))
        opened = {opening: since for opening, since in opened.items() if furthest < opening + length}
    return found


def _plan(walk: Walk, due: Iterable[Due]) -> tuple[bytes, int]:
    """A byte for every minute on the wall, with a bit for each trigger; and the number of the first minute."""
    low, high = min(walk.walls) // 1440, max(walk.walls) // 1440
    days: list[bytes] = []
    for day in (EPOCH + timedelta(days=number) for number in range(low, high + 1)):
        bits = sum(int.from_bytes(is_due(day), "big") << number for number, is_due in enumerate(due))
        days.append(bits.to_bytes(1440, "big"))
    return b"".join(days), low * 1440


def _sorted_out(walk: Walk, found: list[tuple[int, int]], count: int) -> list[list[datetime]]:
    return [[walk.instant(minute) for minute, whose in found if whose >> number & 1] for number in range(count)]
