"""Cron triggers: parsing of a cron line, its next run, and its description.

A line has five fields with lists, ranges, steps and names, or is an alias such as @daily. Extensions of some tools
(seconds, L, W, #) are rejected. Parsing and search are written here: the library cronsim does not say which item of a
line is wrong, and its search is wrong around clock changes (`test_cronsim_is_wrong_around_clock_changes`).

A line with fixed minute and hour names wall times: one that does not exist runs at the first instant after the clock
change, one that happens twice runs once. A line with a wildcard or a step in minute or hour follows real time: a
skipped hour has no runs, a repeated hour has them twice.
"""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import lru_cache
from itertools import chain
from typing import Any, ClassVar, Unpack

from tenuto.errors import Invalid, quoted
from tenuto.model.triggers import zones
from tenuto.model.triggers.calendar_limits import CalendarOptions, parse_calendar_limits
from tenuto.model.triggers.descriptions import (
    MAX_NAMED_TIMES,
    format_duration,
    format_time_of_day,
    format_times_of_day,
    join_words,
    sentence_end_days,
    sentence_start_days,
    weekday_names,
)
from tenuto.model.triggers.times_of_day import DailyTrigger
from tenuto.model.triggers.trigger import SEARCH_HORIZON, check_has_runs
from tenuto.model.triggers.zones import DAY, MICROSECOND

MAX_LINE_LENGTH = 256
MAX_FIELD_ITEMS = 60

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)

_MAX_DAYS_SEARCHED = SEARCH_HORIZON // DAY
_MAX_MONTHS_BETWEEN_RUNS = 8 * 12
_LONGEST_DAYS = tuple(monthrange(2000, month)[1] for month in range(1, 13))
_CALENDAR_CYCLE_YEARS = range(2000, 2400)  # then weekdays and leap years repeat
_ITEM = re.compile(r"(?P<low>\*|[0-9a-z]+)(?:-(?P<high>[0-9a-z]+))?(?:/(?P<step>[0-9]+))?")


@dataclass(frozen=True, slots=True)
class CronCalendar:
    """The expanded values of a cron line. Weekdays count from Monday as 0."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    matches_either_day: bool
    """The classic rule: if both day fields are restricted, a day has to match only one of them."""
    follows_real_time: bool
    """Whether minute or hour is a wildcard, a step or complete, so that runs follow real time across clock changes."""
    times: tuple[int, ...]
    """The minutes of the day in order."""


@dataclass(frozen=True, slots=True)
class CronTrigger(DailyTrigger):
    """Runs by a cron line."""

    line: str
    calendar: CronCalendar = field(compare=False, repr=False)

    kind: ClassVar[str] = "cron"
    time_field: ClassVar[str] = "cron"

    @property
    def _minutes_of_day(self) -> tuple[int, ...]:
        return self.calendar.times

    def _time_after(self, instant: datetime) -> datetime | None:
        if self.calendar.follows_real_time:
            return self._real_time_after(instant)
        # Two-argument super: a dataclass with slots is a new class, and the short form refers to the old one.
        return super(CronTrigger, self)._time_after(instant)

    def _real_time_after(self, instant: datetime) -> datetime | None:
        """Return the first real minute whose wall time matches, searching each period between clock changes."""
        zone = self.limits.zone_info
        passed = zones.wall_time_at(zone, instant)
        offset = passed - instant.replace(tzinfo=None)
        wall = self._wall_time_after(passed)
        while wall is not None:
            found = (wall - offset).replace(tzinfo=UTC)
            change = zones.next_offset_change(zone, instant, found)
            if change is None:
                return found
            instant, offset = change.at, change.offset_after
            begins = instant.replace(tzinfo=None) + offset
            # No wall time between `passed` and `wall` matches: search again only if the period begins outside of it.
            if not passed < begins <= wall:
                passed = begins - MICROSECOND
                wall = self._wall_time_after(passed)
        return None

    def _day_from(self, day: date) -> date | None:
        calendar = self.calendar
        for _ in range(_MAX_DAYS_SEARCHED):
            if day.month not in calendar.months:
                day = date(day.year + day.month // 12, day.month % 12 + 1, 1)
                continue
            matches, weekday_matches = day.day in calendar.days, day.weekday() in calendar.weekdays
            if (matches or weekday_matches) if calendar.matches_either_day else (matches and weekday_matches):
                return day
            day += DAY
        return None

    def _describe_times(self) -> str:
        return _describe_calendar(self.calendar)

    def _time_fields(self) -> dict[str, Any]:
        return {"cron": self.line}


def cron(line: str, **limits: Unpack[CalendarOptions]) -> CronTrigger:
    """Run by a cron line: ``cron("0 2 * * mon-fri", zone="Europe/London")``."""
    normalized = _normalize_line(line)
    return check_has_runs(CronTrigger(parse_calendar_limits(**limits), normalized, _parse_line(normalized)))


# --- parsing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"cron.{self.name}"

    @property
    def title(self) -> str:
        return self.name.replace("_", " ")

    @property
    def remedy(self) -> str:
        named = f", or {self.names[0]}, {self.names[1]}, …" if self.names else ""
        return f"use *, {self.low} to {self.high}{named}; ranges a-b, steps */n and a-b/n, lists a,b"


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day_of_month", 1, 31),
    _Field("month", 1, 12, tuple(month[:3] for month in MONTHS)),
    _Field("day_of_week", 0, 7, ("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)


def _normalize_line(text: object) -> str:
    """Return the stored form: lower case, single spaces."""
    if not isinstance(text, str):
        raise Invalid(
            f"{quoted(text)} is not a cron line",
            code="trigger.cron.invalid",
            field="cron",
            remedy="write it as '0 2 * * *'",
        )
    if len(text) > MAX_LINE_LENGTH:
        raise Invalid(
            f"the cron line is longer than {MAX_LINE_LENGTH} characters",
            code="trigger.cron.too_long",
            field="cron",
            remedy="use several schedules",
        )
    if not text.isascii() or not all(character.isprintable() or character == "\t" for character in text):
        raise Invalid(
            f"the cron line {quoted(text)} contains a character that is not valid in cron lines",
            code="trigger.cron.invalid",
            field="cron",
            remedy="write it as '0 2 * * *'",
        )
    return " ".join(text.lower().split())


@lru_cache(maxsize=4096)
def _parse_line(line: str) -> CronCalendar:
    """Expand a normalized line, or raise `Invalid` with the field at fault."""
    texts = _split_fields(line)
    minutes, hours, days, months, weekdays = (_parse_field(*each) for each in zip(_FIELDS, texts, strict=True))
    is_either_day_open = texts[2].startswith("*") or texts[4].startswith("*")  # as in the cron of Debian
    if is_either_day_open and min(days) > max(_LONGEST_DAYS[month - 1] for month in months):
        raise Invalid(
            f"the cron line {line!r} would never run: its months have no such day",
            code="trigger.cron.no_such_day",
            field="cron.day_of_month",
            remedy="choose a day that those months have",
        )
    calendar = CronCalendar(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=frozenset((day - 1) % 7 for day in weekdays),
        matches_either_day=not is_either_day_open,
        follows_real_time=any("*" in text or "/" in text for text in texts[:2])
        or len(minutes) == 60
        or len(hours) == 24,
        times=tuple(sorted(hour * 60 + minute for hour in hours for minute in minutes)),
    )
    _check_not_too_rare(calendar)
    return calendar


def _split_fields(line: str) -> list[str]:
    texts = ALIASES.get(line, line).split()
    if line.startswith("@") and line not in ALIASES:
        raise Invalid(
            f"unknown cron alias {quoted(line, 40)}",
            code="trigger.cron.alias.unknown",
            field="cron",
            remedy=f"use one of {', '.join(sorted(ALIASES))}",
        )
    if len(texts) != 5:
        raise Invalid(
            f"the cron line has {len(texts)} fields instead of five",
            code="trigger.cron.field_count",
            field="cron",
            remedy="leave out the seconds; for periods shorter than a minute use an interval"
            if len(texts) == 6
            else "write minute, hour, day of month, month and day of week, as in '0 2 * * *'",
        )
    return texts


def _parse_field(field: _Field, text: str) -> frozenset[int]:
    items = text.split(",")
    if len(items) > MAX_FIELD_ITEMS:
        raise Invalid(
            f"the cron {field.title} has {len(items):,} items",
            code="trigger.cron.too_many_items",
            field=field.label,
            remedy=f"use at most {MAX_FIELD_ITEMS}",
        )
    return frozenset(chain.from_iterable(_parse_item(field, item) for item in items))


def _parse_item(field: _Field, item: str) -> range:
    match = _ITEM.fullmatch(item)
    if match is None or (match["low"] == "*" and match["high"]):
        raise _item_error(field, item)
    step = _parse_step(field, item, match["step"]) if match["step"] else 1
    if match["low"] == "*":
        return range(field.low, field.high + 1, step)
    low = _parse_number(field, match["low"])
    if not match["high"]:
        return range(low, (field.high if match["step"] else low) + 1, step)
    high = _parse_number(field, match["high"])
    if field.name == "day_of_week" and high == 0 < low:
        high = 7  # fri-sun ends at the Sunday that ends the week
    if high < low:
        raise Invalid(
            f"the cron {field.title} range {quoted(item, 40)} runs backwards",
            code="trigger.cron.range.backwards",
            field=field.label,
            remedy=f"write it as two ranges, {low}-{field.high},{field.low}-{high}",
        )
    return range(low, high + 1, step)


def _parse_number(field: _Field, text: str) -> int:
    if text in field.names:
        return field.names.index(text) + (field.name == "month")
    if not (text.isdigit() and len(text) <= 2 and field.low <= int(text) <= field.high):
        raise _item_error(field, text)
    return int(text)


def _item_error(field: _Field, item: str) -> Invalid:
    return Invalid(
        f"{quoted(item, 40)} is not a valid cron {field.title}"
        if item
        else f"the cron {field.title} has an empty item",
        code="trigger.cron.item.invalid",
        field=field.label,
        remedy=field.remedy,
    )


def _parse_step(field: _Field, item: str, text: str) -> int:
    values = field.high - field.low + (field.name != "day_of_week")  # Sunday has two numbers
    step = int(text) if len(text) <= 2 else 0
    if not 1 <= step <= values:
        raise Invalid(
            f"the step of the cron {field.title} {quoted(item, 40)} is not from 1 to {values}",
            code="trigger.cron.step.out_of_range",
            field=field.label,
            remedy="choose another step, or use an interval instead of cron",
        )
    return step


def _check_not_too_rare(calendar: CronCalendar) -> None:
    """Raise `Invalid` if a required day and weekday, as in `*/30 2 mon`, coincide once in decades or never."""
    if calendar.matches_either_day or len(calendar.weekdays) == 7 or len(calendar.days) == 31:
        return
    months_without_run = 0
    for year in _CALENDAR_CYCLE_YEARS:
        for month in range(1, 13):
            months_without_run += 1
            if month in calendar.months:
                first, length = monthrange(year, month)
                if any((first + day - 1) % 7 in calendar.weekdays for day in calendar.days if day <= length):
                    months_without_run = 0
            if months_without_run > _MAX_MONTHS_BETWEEN_RUNS:
                raise Invalid(
                    "day of month and day of week of the cron line coincide less than once in eight years",
                    code="trigger.cron.too_rare",
                    field="cron.day_of_week",
                    remedy="with a * at the start of either field a day must match both: restrict only one of them",
                )


# --- description ----------------------------------------------------------------------------------------------------


def _describe_calendar(calendar: CronCalendar) -> str:
    repeated = _describe_repeated_times(calendar)
    if repeated is None:
        return f"{_days_at_start(calendar)} at {format_times_of_day(calendar.times)}"
    return f"{repeated}{_days_at_end(calendar)}"


def _describe_repeated_times(calendar: CronCalendar) -> str | None:
    """Return the times of a line that runs often; None if they are better listed."""
    minutes, hours = sorted(calendar.minutes), sorted(calendar.hours)
    every_hour = len(hours) == 24
    minute_step, hour_step = _even_step(minutes, 60), _even_step(hours, 24)
    if minute_step:
        often = f"Every {format_duration(minute_step * 60)}"
        if every_hour:
            return often
        if hours[-1] - hours[0] == len(hours) - 1:
            first, last = format_time_of_day(hours[0] * 60), format_time_of_day(hours[-1] * 60 + minutes[-1])
            return f"{often} from {first} to {last}"
        return f"{often} in the {_plural('hour', hours)} {_format_ranges(hours)}"
    if every_hour:
        if minutes == [0]:
            return "Every hour"
        return f"Every hour at {_plural('minute', minutes)} {_format_ranges(minutes)}"
    if hour_step and len(minutes) == 1:
        return f"Every {format_duration(hour_step * 3600)} from {format_time_of_day(minutes[0])}"
    if len(calendar.times) > MAX_NAMED_TIMES:
        of_hours = f"of the {_plural('hour', hours)} {_format_ranges(hours)}"
        return f"At {_plural('minute', minutes)} {_format_ranges(minutes)} {of_hours}"
    return None


def _days_at_start(calendar: CronCalendar) -> str:
    weekdays = sorted(calendar.weekdays)
    if calendar.matches_either_day:
        either = f"{_dates(calendar)} and every {join_words(weekday_names(weekdays))}"
        return f"On {either}" if len(calendar.months) == 12 else f"In {_month_names(calendar)}, on {either}"
    if _restricts_dates(calendar) and len(weekdays) < 7:
        return f"Every {_weekday_and_date(calendar)}"
    if _restricts_dates(calendar):
        return f"On {_dates(calendar)}"
    return f"{sentence_start_days(weekdays)}{_in_months(calendar)}"


def _days_at_end(calendar: CronCalendar) -> str:
    weekdays = sorted(calendar.weekdays)
    if calendar.matches_either_day:
        either = f"on {_dates(calendar)} and {sentence_end_days(weekdays)}"
        return f" {either}" if len(calendar.months) == 12 else f"{_in_months(calendar)}, {either}"
    if _restricts_dates(calendar) and len(weekdays) < 7:
        return f" on every {_weekday_and_date(calendar)}"
    if _restricts_dates(calendar):
        return f" on {_dates(calendar)}"
    return f"{'' if len(weekdays) == 7 else f' {sentence_end_days(weekdays)}'}{_in_months(calendar)}"


def _restricts_dates(calendar: CronCalendar) -> bool:
    return len(calendar.days) < 31


def _weekday_and_date(calendar: CronCalendar) -> str:
    return f"{join_words(weekday_names(sorted(calendar.weekdays)), 'or')} that falls on {_dates(calendar, 'or')}"


def _dates(calendar: CronCalendar, last: str = "and") -> str:
    """Return days of the month, with the months unless they were named before."""
    days = sorted(calendar.days)
    numbers = f"{'day' if last == 'or' else _plural('day', days)} {_format_ranges(days, last)}"
    if len(calendar.months) == 12:
        return f"{numbers} of the month"
    return numbers if calendar.matches_either_day else f"{numbers} of {_month_names(calendar)}"


def _in_months(calendar: CronCalendar) -> str:
    return "" if len(calendar.months) == 12 else f" in {_month_names(calendar)}"


def _month_names(calendar: CronCalendar) -> str:
    return join_words(MONTHS[month - 1].capitalize() for month in sorted(calendar.months))


def _even_step(numbers: list[int], whole: int) -> int:
    """Return the step from zero that gives these numbers and divides the whole; 0 if there is none."""
    step = numbers[1] if len(numbers) > 1 else whole
    return step if whole % step == 0 and len(numbers) > 1 and numbers == list(range(0, whole, step)) else 0


def _plural(noun: str, numbers: list[int]) -> str:
    return noun if len(numbers) == 1 else f"{noun}s"


def _format_ranges(numbers: list[int], last: str = "and") -> str:
    """Return ``1, 2 and 5 to 9``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    items: list[str] = []
    for run in found:
        items += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
    return join_words(items, last)
