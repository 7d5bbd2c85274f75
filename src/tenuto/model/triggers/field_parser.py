"""Parsing of the times, days, dates, instants and durations in trigger options."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta

from tenuto.errors import Invalid, quoted
from tenuto.model.triggers.zones import FIRST_YEAR, LAST_YEAR
from tenuto.model.work.tasks import parse_duration_seconds

DurationInput = str | int | float | timedelta
DaysInput = str | Iterable[str] | None

WEEKDAY_NAMES = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
EVERY_DAY = tuple(range(7))
WEEKDAYS, WEEKENDS = EVERY_DAY[:5], EVERY_DAY[5:]
MAX_TIMES = 24 * 60
MAX_DAYS = 50
MAX_EXCLUDED = 500

_TIME = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NAMED_DAYS = {"daily": EVERY_DAY, "weekdays": WEEKDAYS, "weekends": WEEKENDS}
_TIME_REMEDY = "write it as 06:00 or 18:30, on the 24-hour clock"
_DATE_REMEDY = "write it as 2031-12-25"
_DAY_REMEDY = "write days as mon, tue, …, ranges as mon-fri, or use weekdays or weekends"
_INSTANT_REMEDY = "give it with its offset, such as 2031-05-17T12:00:00Z"
_DURATION_REMEDY = "write it as '90s', '15m', '1h' or '2d', in whole seconds"


def parse_minute_of_day(value: object, *, field: str) -> int:
    """Return a time of day as minutes since midnight."""
    if isinstance(value, time) and value.tzinfo is None and not (value.second or value.microsecond):
        return value.hour * 60 + value.minute
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise Invalid(
            f"{field} {quoted(value)} is not a time of day",
            code="trigger.time_of_day.invalid",
            field=field,
            remedy=_TIME_REMEDY,
        )
    return int(match[1]) * 60 + int(match[2])


def parse_minutes_of_day(values: object, *, field: str) -> tuple[int, ...]:
    """Return unique times of day in order."""
    given = to_list(values, field=field, maximum=MAX_TIMES, remedy=_TIME_REMEDY)
    if not given:
        raise Invalid(
            f"{field} is empty, so the trigger would never fire",
            code="trigger.times.empty",
            field=field,
            remedy=_TIME_REMEDY,
        )
    return tuple(sorted({parse_minute_of_day(value, field=field) for value in given}))


def parse_weekdays(values: object, *, field: str = "days") -> tuple[int, ...]:
    """Return unique days of the week in order, Monday being 0; None means every day."""
    if values is None:
        return EVERY_DAY
    found: set[int] = set()
    for value in to_list(values, field=field, maximum=MAX_DAYS, remedy=_DAY_REMEDY):
        if not isinstance(value, str):
            raise _not_a_weekday(value, field)
        for item in value.lower().split(",", MAX_DAYS):
            found.update(_parse_days_item(item.strip(), field))
    if not found:
        raise Invalid(
            f"{field} is empty, so the trigger would never fire",
            code="trigger.days.empty",
            field=field,
            remedy=_DAY_REMEDY,
        )
    return tuple(sorted(found))


def _parse_days_item(item: str, field: str) -> Iterable[int]:
    if item in _NAMED_DAYS:
        return _NAMED_DAYS[item]
    first, dash, last = item.partition("-")
    low = _parse_weekday(first, field)
    high = _parse_weekday(last, field) if dash else low
    # A range may cross the end of the week: fri-mon is four days.
    return ((low + step) % 7 for step in range((high - low) % 7 + 1))


def _parse_weekday(name: str, field: str) -> int:
    for number, full in enumerate(WEEKDAY_NAMES):
        if name in (full, full[:3]):
            return number
    raise _not_a_weekday(name, field)


def _not_a_weekday(value: object, field: str) -> Invalid:
    return Invalid(
        f"{field} {quoted(value)} is not a day of the week",
        code="trigger.days.invalid",
        field=field,
        remedy=_DAY_REMEDY,
    )


def parse_date(value: object, *, field: str) -> date:
    """Return a date, such as ``2031-12-25``."""
    found: date | None = None
    if isinstance(value, date) and not isinstance(value, datetime):
        found = value
    elif isinstance(value, str) and _DATE.fullmatch(value):
        try:
            found = date.fromisoformat(value)
        except ValueError:
            found = None
    if found is None:
        raise Invalid(
            f"{field} {quoted(value)} is not a date", code="trigger.date.invalid", field=field, remedy=_DATE_REMEDY
        )
    if not FIRST_YEAR <= found.year <= LAST_YEAR:
        raise _year_out_of_range(found, field)
    return found


def parse_dates(values: object, *, field: str) -> tuple[date, ...]:
    """Return unique dates in order."""
    given = to_list(values, field=field, maximum=MAX_EXCLUDED, remedy=_DATE_REMEDY)
    return tuple(sorted({parse_date(value, field=field) for value in given}))


def parse_instant(value: object, *, field: str) -> datetime:
    """Return a datetime with offset, or ISO 8601 text with offset, as UTC."""
    found = value
    if isinstance(value, str) and len(value) <= 40:
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            found = None
    if not isinstance(found, datetime):
        raise Invalid(
            f"{field} {quoted(value)} is not an instant",
            code="value.instant.invalid",
            field=field,
            remedy=_INSTANT_REMEDY,
        )
    if found.tzinfo is None:
        raise Invalid(
            f"{field} {found.isoformat()} has no UTC offset",
            code="value.instant.no_utc_offset",
            field=field,
            remedy=_INSTANT_REMEDY,
        )
    if not FIRST_YEAR <= found.year <= LAST_YEAR:
        raise _year_out_of_range(found, field)
    return found.astimezone(UTC)


def _year_out_of_range(value: date, field: str) -> Invalid:
    return Invalid(
        f"{field} {value.isoformat()} is not between the years {FIRST_YEAR} and {LAST_YEAR}",
        code="value.date.out_of_range",
        field=field,
    )


def parse_whole_seconds(value: object, *, field: str, minimum: int, maximum: int) -> int:
    """Return a duration in whole seconds, from seconds, a timedelta, or text such as ``"90s"``, ``"15m"``, ``"1h"``."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (str, int, float, timedelta))
        or (isinstance(value, str) and len(value) > 20)
    ):
        raise Invalid(
            f"{field} {quoted(value)} is not a duration",
            code="value.duration.invalid",
            field=field,
            remedy=_DURATION_REMEDY,
        )
    try:
        seconds = parse_duration_seconds(value, field=field)
    except OverflowError:
        seconds = math.inf
    if seconds is None or not math.isfinite(seconds) or not minimum <= seconds <= maximum:
        raise Invalid(
            f"{field} {seconds:g} s is not from {minimum:,} to {maximum:,} seconds",
            code="value.duration.out_of_range",
            field=field,
            remedy=_DURATION_REMEDY,
        )
    if seconds != int(seconds):
        raise Invalid(
            f"{field} {seconds:g} s is not a whole number of seconds",
            code="value.duration.not_whole_seconds",
            field=field,
            remedy=_DURATION_REMEDY,
        )
    return int(seconds)


def to_list(values: object, *, field: str, maximum: int, remedy: str) -> list[object]:
    """Return one value or several as a list of bounded length."""
    if isinstance(values, (str, time, date)):
        return [values]
    if not isinstance(values, Iterable) or isinstance(values, (bytes, dict)):
        raise Invalid(
            f"{field} {quoted(values)} is not a list", code="trigger.list.invalid", field=field, remedy=remedy
        )
    found: list[object] = []
    for value in values:
        found.append(value)
        if len(found) > maximum:
            raise Invalid(
                f"{field} has more than {maximum:,} entries",
                code="trigger.list.too_long",
                field=field,
                remedy=f"give at most {maximum:,}",
            )
    return found
