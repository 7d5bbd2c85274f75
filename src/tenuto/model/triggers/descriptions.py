"""Triggers in plain words, such as "Every weekday at 06:00 and 18:30, Europe/London".

The words are for people and are never read back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tenuto.model.triggers.calendar_limits import Bounds
from tenuto.model.triggers.cron_parser import MONTHS, Calendar
from tenuto.model.triggers.parsing import EVERY_DAY, WEEK, WEEKDAYS

MAX_NAMED_TIMES = 12
MAX_NAMED_DATES = 5

_UNITS = (("hour", 3600), ("minute", 60), ("second", 1))


def bounds_phrase(bounds: Bounds) -> str:
    """The zone, and the dates if there are any."""
    parts = [bounds.zone]
    if bounds.start is not None:
        parts.append(f"from {bounds.start}")
    if bounds.end is not None:
        parts.append(f"until {bounds.end}")
    if bounds.excluded:
        few = len(bounds.excluded) <= MAX_NAMED_DATES
        parts.append(f"except {listing(map(str, bounds.excluded)) if few else f'{len(bounds.excluded)} dates'}")
    if bounds.jitter:
        parts.append(f"spread over {span(bounds.jitter, one='1 ')}")
    return ", ".join(parts)


def listing(items: Iterable[str], last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *others, final = items
    return f"{', '.join(others)} {last} {final}" if others else final


def clock(minute: int) -> str:
    """A time of day: 1110 is 18:30."""
    return f"{minute // 60:02}:{minute % 60:02}"


def times(minutes: Sequence[int]) -> str:
    """Times of day, or how many there are if they are too many to name."""
    if len(minutes) > MAX_NAMED_TIMES:
        return f"{len(minutes):,} times from {clock(minutes[0])} to {clock(minutes[-1])}"
    return listing(clock(minute) for minute in minutes)


def span(seconds: int, *, one: str = "") -> str:
    """``15 minutes``; a single unit is ``hour``, with `one` before it. Days are 24 hours, and said so."""
    if seconds > 86_400 and seconds % 86_400 == 0:
        return f"{seconds // 86_400} × 24 hours"
    unit, size = next(pair for pair in _UNITS if seconds % pair[1] == 0)
    count = seconds // size
    return f"{one}{unit}" if count == 1 else f"{count:,} {unit}s"


def leading_days(days: Sequence[int]) -> str:
    """Days of the week at the start of a sentence."""
    if tuple(days) == EVERY_DAY:
        return "Every day"
    return "Every weekday" if tuple(days) == WEEKDAYS else f"Every {listing(_names(days))}"


def trailing_days(days: Sequence[int]) -> str:
    """Days of the week at its end."""
    return "on weekdays" if tuple(days) == WEEKDAYS else f"on {listing(f'{name}s' for name in _names(days))}"


def cron_phrase(calendar: Calendar) -> str:
    """What a cron line says."""
    repeated = _repeated(calendar)
    if repeated is None:
        return f"{_leading(calendar)} at {times(calendar.times)}"
    return f"{repeated}{_trailing(calendar)}"


def _repeated(calendar: Calendar) -> str | None:
    """The times of a line that runs often; None if they are better named one by one."""
    minutes, hours = sorted(calendar.minutes), sorted(calendar.hours)
    every_hour = len(hours) == 24
    minute_step, hour_step = _step(minutes, 60), _step(hours, 24)
    if minute_step:
        often = f"Every {span(minute_step * 60)}"
        if every_hour:
            return often
        if hours[-1] - hours[0] == len(hours) - 1:
            return f"{often} from {clock(hours[0] * 60)} to {clock(hours[-1] * 60 + minutes[-1])}"
        return f"{often} in the {_plural('hour', hours)} {_ranges(hours)}"
    if every_hour:
        return "Every hour" if minutes == [0] else f"Every hour at {_plural('minute', minutes)} {_ranges(minutes)}"
    if hour_step and len(minutes) == 1:
        return f"Every {span(hour_step * 3600)} from {clock(minutes[0])}"
    if len(calendar.times) > MAX_NAMED_TIMES:
        return f"At {_plural('minute', minutes)} {_ranges(minutes)} of the {_plural('hour', hours)} {_ranges(hours)}"
    return None


def _leading(calendar: Calendar) -> str:
    weekdays = sorted(calendar.weekdays)
    if calendar.either_day:
        either = f"{_dates(calendar)} and every {listing(_names(weekdays))}"
        return f"On {either}" if len(calendar.months) == 12 else f"In {_month_names(calendar)}, on {either}"
    if _by_date(calendar) and len(weekdays) < 7:
        return f"Every {_both(calendar)}"
    if _by_date(calendar):
        return f"On {_dates(calendar)}"
    return f"{leading_days(weekdays)}{_in_months(calendar)}"


def _trailing(calendar: Calendar) -> str:
    weekdays = sorted(calendar.weekdays)
    if calendar.either_day:
        either = f"on {_dates(calendar)} and {trailing_days(weekdays)}"
        return f" {either}" if len(calendar.months) == 12 else f"{_in_months(calendar)}, {either}"
    if _by_date(calendar) and len(weekdays) < 7:
        return f" on every {_both(calendar)}"
    if _by_date(calendar):
        return f" on {_dates(calendar)}"
    return f"{'' if len(weekdays) == 7 else f' {trailing_days(weekdays)}'}{_in_months(calendar)}"


def _by_date(calendar: Calendar) -> bool:
    return len(calendar.days) < 31


def _both(calendar: Calendar) -> str:
    return f"{listing(_names(sorted(calendar.weekdays)), 'or')} that falls on {_dates(calendar, 'or')}"


def _dates(calendar: Calendar, last: str = "and") -> str:
    """Days of the month: of every month, or of these months, unless those have been named before."""
    days = sorted(calendar.days)
    numbers = f"{'day' if last == 'or' else _plural('day', days)} {_ranges(days, last)}"
    if len(calendar.months) == 12:
        return f"{numbers} of the month"
    return numbers if calendar.either_day else f"{numbers} of {_month_names(calendar)}"


def _in_months(calendar: Calendar) -> str:
    return "" if len(calendar.months) == 12 else f" in {_month_names(calendar)}"


def _month_names(calendar: Calendar) -> str:
    return listing(MONTHS[month - 1].capitalize() for month in sorted(calendar.months))


def _names(days: Iterable[int]) -> list[str]:
    return [WEEK[day].capitalize() for day in days]


def _step(numbers: list[int], whole: int) -> int:
    """The even step from zero that gives these numbers and goes on over the end of the whole; 0 if there is none."""
    step = numbers[1] if len(numbers) > 1 else whole
    return step if whole % step == 0 and len(numbers) > 1 and numbers == list(range(0, whole, step)) else 0


def _plural(word: str, numbers: list[int]) -> str:
    return word if len(numbers) == 1 else f"{word}s"


def _ranges(numbers: list[int], last: str = "and") -> str:
    """``1, 2 and 5 to 9``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    items: list[str] = []
    for run in found:
        items += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
    return listing(items, last)
