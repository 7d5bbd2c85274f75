"""Formatting of times, days, durations and calendar limits for trigger descriptions in plain English."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tenuto.model.triggers.calendar_limits import CalendarLimits
from tenuto.model.triggers.field_parser import EVERY_DAY, WEEKDAY_NAMES, WEEKDAYS

MAX_NAMED_TIMES = 12
MAX_NAMED_DATES = 5

_UNITS = (("hour", 3600), ("minute", 60), ("second", 1))


def describe_limits(limits: CalendarLimits) -> str:
    """Return the zone and the options that are set."""
    parts = [limits.zone]
    if limits.start is not None:
        parts.append(f"from {limits.start}")
    if limits.end is not None:
        parts.append(f"until {limits.end}")
    if limits.excluded:
        listed = len(limits.excluded) <= MAX_NAMED_DATES
        parts.append(f"except {join_words(map(str, limits.excluded)) if listed else f'{len(limits.excluded)} dates'}")
    if limits.jitter:
        parts.append(f"spread over {format_duration(limits.jitter, one='1 ')}")
    return ", ".join(parts)


def join_words(items: Iterable[str], last: str = "and") -> str:
    """Return ``a``, ``a and b`` or ``a, b and c``."""
    *others, final = items
    return f"{', '.join(others)} {last} {final}" if others else final


def format_time_of_day(minute: int) -> str:
    """Return minutes since midnight as a time: 1110 is 18:30."""
    return f"{minute // 60:02}:{minute % 60:02}"


def format_times_of_day(minutes: Sequence[int]) -> str:
    """Return times of day, or their number if they are too many to list."""
    if len(minutes) > MAX_NAMED_TIMES:
        return f"{len(minutes):,} times from {format_time_of_day(minutes[0])} to {format_time_of_day(minutes[-1])}"
    return join_words(format_time_of_day(minute) for minute in minutes)


def format_duration(seconds: int, *, one: str = "") -> str:
    """Return ``15 minutes``; a single unit is ``hour``, prefixed by `one`. Days are written as 24 hours."""
    if seconds > 86_400 and seconds % 86_400 == 0:
        return f"{seconds // 86_400} × 24 hours"
    unit, size = next(pair for pair in _UNITS if seconds % pair[1] == 0)
    count = seconds // size
    return f"{one}{unit}" if count == 1 else f"{count:,} {unit}s"


def sentence_start_days(days: Sequence[int]) -> str:
    """Return days of the week for the start of a sentence."""
    if tuple(days) == EVERY_DAY:
        return "Every day"
    return "Every weekday" if tuple(days) == WEEKDAYS else f"Every {join_words(weekday_names(days))}"


def sentence_end_days(days: Sequence[int]) -> str:
    """Return days of the week for the end of a sentence."""
    return "on weekdays" if tuple(days) == WEEKDAYS else f"on {join_words(f'{name}s' for name in weekday_names(days))}"


def weekday_names(days: Iterable[int]) -> list[str]:
    return [WEEKDAY_NAMES[day].capitalize() for day in days]
