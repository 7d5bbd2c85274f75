"""Reading what people write for times, days, dates and spans: each becomes a plain value, or is refused by name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta

from tenuto.errors import Invalid
from tenuto.model.tasks import seconds
from tenuto.model.triggers.zones import FIRST_YEAR, LAST_YEAR

Span = str | int | float | timedelta
Days = str | Iterable[str] | None

WEEK = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
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
_DAY_REMEDY = "name days as mon, tue, …, ranges as mon-fri, or say weekdays or weekends"


def minute_of_day(value: object, *, field: str) -> int:
    """A time of day as the minutes since midnight."""
    if isinstance(value, time) and value.tzinfo is None and not (value.second or value.microsecond):
        return value.hour * 60 + value.minute
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise Invalid(f"{value!r:.80} is not a time of day", field=field, remedy=_TIME_REMEDY)
    return int(match[1]) * 60 + int(match[2])


def minutes_of_day(values: object, *, field: str) -> tuple[int, ...]:
    """Times of day, in order, each once."""
    given = listed(values, field=field, most=MAX_TIMES, remedy=_TIME_REMEDY)
    if not given:
        raise Invalid("no time is given, so it would never run", field=field, remedy=_TIME_REMEDY)
    return tuple(sorted({minute_of_day(value, field=field) for value in given}))


def weekdays(values: object, *, field: str = "days") -> tuple[int, ...]:
    """Days of the week, Monday being 0, in order, each once; nothing said means every day."""
    if values is None:
        return EVERY_DAY
    found: set[int] = set()
    for value in listed(values, field=field, most=MAX_DAYS, remedy=_DAY_REMEDY):
        if not isinstance(value, str):
            raise Invalid(f"{value!r:.80} is not a day of the week", field=field, remedy=_DAY_REMEDY)
        for item in value.lower().split(",", MAX_DAYS):
            found.update(_some_days(item.strip(), field))
    if not found:
        raise Invalid("no day is given, so it would never run", field=field, remedy=_DAY_REMEDY)
    return tuple(sorted(found))


def _some_days(item: str, field: str) -> Iterable[int]:
    if item in _NAMED_DAYS:
        return _NAMED_DAYS[item]
    first, dash, last = item.partition("-")
    low = _weekday(first, field)
    high = _weekday(last, field) if dash else low
    # A range may run over the end of the week: fri-mon is four days.
    return ((low + step) % 7 for step in range((high - low) % 7 + 1))


def _weekday(name: str, field: str) -> int:
    for number, full in enumerate(WEEK):
        if name in (full, full[:3]):
            return number
    raise Invalid(f"{name!r:.80} is not a day of the week", field=field, remedy=_DAY_REMEDY)


def calendar_date(value: object, *, field: str) -> date:
    """A date, such as ``2031-12-25``."""
    found: date | None = None
    if isinstance(value, date) and not isinstance(value, datetime):
        found = value
    elif isinstance(value, str) and _DATE.fullmatch(value):
        try:
            found = date.fromisoformat(value)
        except ValueError:
            raise Invalid(f"there is no {value}", field=field, remedy=_DATE_REMEDY) from None
    if found is None:
        raise Invalid(f"{value!r:.80} is not a date", field=field, remedy=_DATE_REMEDY)
    if not FIRST_YEAR <= found.year <= LAST_YEAR:
        raise Invalid(f"the year {found.year} is out of reach", field=field)
    return found


def calendar_dates(values: object, *, field: str) -> tuple[date, ...]:
    """Dates, in order, each once."""
    given = listed(values, field=field, most=MAX_EXCLUDED, remedy=_DATE_REMEDY)
    return tuple(sorted({calendar_date(value, field=field) for value in given}))


def instant(value: object, *, field: str) -> datetime:
    """An aware datetime, or the same in ISO 8601 with its offset, as UTC."""
    remedy = "give it with its offset, such as 2031-05-17T12:00:00Z"
    if isinstance(value, str) and len(value) <= 40:
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise Invalid(f"{value!r:.80} is not an instant", field=field, remedy=remedy) from None
    if not isinstance(value, datetime):
        raise Invalid(f"{value!r:.80} is not an instant", field=field, remedy=remedy)
    if value.tzinfo is None:
        raise Invalid("has no time zone", field=field, remedy=remedy)
    if not FIRST_YEAR <= value.year <= LAST_YEAR:
        raise Invalid(f"the year {value.year} is out of reach", field=field)
    return value.astimezone(UTC)


def whole_seconds(value: object, *, field: str, least: int, most: int) -> int:
    """A span in seconds, as a timedelta or in words, such as ``"90s"``, ``"15m"``, ``"1h"``."""
    remedy = "write it as '90s', '15m', '1h' or '2d', in whole seconds"
    if isinstance(value, bool) or not isinstance(value, (str, int, float, timedelta)):
        raise Invalid(f"{value!r:.80} is not a span of time", field=field, remedy=remedy)
    if isinstance(value, str) and len(value) > 20:
        raise Invalid("is too long for a span of time", field=field, remedy=remedy)
    try:
        span = seconds(value, field=field)
    except OverflowError:
        span = math.inf
    if span is None or not math.isfinite(span) or not least <= span <= most:
        raise Invalid(f"must be from {least:,} to {most:,} seconds", field=field, remedy=remedy)
    if span != int(span):
        raise Invalid(f"{span:g} seconds are not whole seconds", field=field, remedy=remedy)
    return int(span)


def listed(values: object, *, field: str, most: int, remedy: str) -> list[object]:
    """One value or several, as a list that is not absurdly long."""
    if isinstance(values, (str, time, date)):
        return [values]
    if not isinstance(values, Iterable) or isinstance(values, (bytes, dict)):
        raise Invalid(f"{values!r:.80} is not a list", field=field, remedy=remedy)
    found: list[object] = []
    for value in values:
        found.append(value)
        if len(found) > most:
            raise Invalid(f"more than {most} are given", field=field, remedy=f"give at most {most}")
    return found
