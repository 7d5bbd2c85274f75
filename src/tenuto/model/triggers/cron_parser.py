"""Reading a cron line: five fields, lists, ranges, steps, names, and words such as @daily.

Each field is first read here, so that a refusal names the field, the item and the remedy; `cronsim` then says which
values it stands for. What cronsim would take beyond the five classic fields (seconds, L, W, #) does not get that far.
Nor is it asked when the next run is: that it gets wrong around changes of the clock.
"""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from cronsim import CronSim, CronSimError

from tenuto.errors import Invalid

MAX_LENGTH = 256
MAX_ITEMS = 60

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

_RAREST_IN_MONTHS = 8 * 12
_YEARS_OF_THE_CALENDAR = range(2000, 2400)  # then weekdays and leap years come round again
_ITEM = re.compile(r"(?P<low>\*|[0-9a-z]+)(?:-(?P<high>[0-9a-z]+))?(?:/(?P<step>[0-9]+))?")


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


@dataclass(frozen=True, slots=True)
class Calendar:
    """What a cron line stands for. Weekdays are counted from Monday as 0."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool
    """The classic rule: if both day fields are restricted, a day needs to fit only one of them."""
    real_time: bool
    """Whether it follows real time through a change of the clock: if minute or hour is a wildcard, a step, or full."""
    times: tuple[int, ...]
    """The minutes of the day, in order."""


def tidy(text: object) -> str:
    """The line as it is kept: lower case, single spaces."""
    if not isinstance(text, str):
        raise Invalid(f"{text!r:.80} is not a cron line", field="cron", remedy="write it as '0 2 * * *'")
    if len(text) > MAX_LENGTH:
        raise Invalid(f"is longer than {MAX_LENGTH} characters", field="cron", remedy="use several schedules")
    if not text.isascii() or not all(letter.isprintable() or letter == "\t" for letter in text):
        raise Invalid("holds a letter or sign that no cron line has", field="cron", remedy="write it as '0 2 * * *'")
    return " ".join(text.lower().split())


@lru_cache(maxsize=4096)
def read(line: str) -> Calendar:
    """What a tidy line stands for, or a refusal that names the field and the reason."""
    texts = [_numbers(field, text) for field, text in zip(_FIELDS, _five_fields(line), strict=True)]
    try:
        cron = CronSim(" ".join(texts), datetime(2000, 1, 1))  # noqa: DTZ001 (it is read, never run)
    except CronSimError:
        # Every field is sound by itself, so what is left to complain of is a date like 30 February.
        raise Invalid(
            "there is no such day in the months it names, so it would never run",
            field="cron.day_of_month",
            remedy="name a day that those months have",
        ) from None
    calendar = Calendar(
        minutes=frozenset(cron.minutes),
        hours=frozenset(cron.hours),
        days=frozenset(cron.days),
        months=frozenset(cron.months),
        weekdays=frozenset((day - 1) % 7 for day in cron.weekdays if isinstance(day, int)),
        either_day=not cron.day_and,
        real_time=any("*" in text or "/" in text for text in texts[:2])
        or len(cron.minutes) == 60
        or len(cron.hours) == 24,
        times=tuple(sorted(hour * 60 + minute for hour in cron.hours for minute in cron.minutes)),
    )
    _refuse_too_rare(calendar)
    return calendar


def _five_fields(line: str) -> list[str]:
    texts = ALIASES.get(line, line).split()
    if line.startswith("@") and line not in ALIASES:
        raise Invalid(f"{line!r:.40} is not known", field="cron", remedy=f"use one of {', '.join(sorted(ALIASES))}")
    if len(texts) == 6:
        remedy = "leave out the seconds; for steps shorter than a minute use an interval"
        raise Invalid("has six fields instead of five", field="cron", remedy=remedy)
    if len(texts) != 5:
        remedy = "write minute, hour, day of month, month and day of week, as in '0 2 * * *'"
        raise Invalid(f"has {len(texts)} fields instead of five", field="cron", remedy=remedy)
    return texts


def _numbers(field: _Field, text: str) -> str:
    """The field with its names replaced by numbers, every item checked."""
    items = text.split(",")
    if len(items) > MAX_ITEMS:
        raise Invalid(f"lists {len(items)} items", field=field.label, remedy=f"list at most {MAX_ITEMS}")
    return ",".join(_item(field, item) for item in items)


def _item(field: _Field, item: str) -> str:
    match = _ITEM.fullmatch(item)
    if match is None or (match["low"] == "*" and match["high"]):
        wrong = "is empty" if not item else f"{item!r:.40} cannot be read"
        raise Invalid(wrong, field=field.label, remedy=field.remedy)
    step = f"/{_step(field, item, match['step'])}" if match["step"] else ""
    if match["low"] == "*":
        return f"*{step}"
    low = _number(field, match["low"])
    if not match["high"]:
        return f"{low}{step}"
    high = _number(field, match["high"])
    if field.name == "day_of_week" and high == 0 < low:
        high = 7  # fri-sun runs up to the Sunday that ends the week
    if high < low:
        remedy = f"write it as two ranges, {low}-{field.high},{field.low}-{high}"
        raise Invalid(f"the range {item!r:.40} runs backwards", field=field.label, remedy=remedy)
    # A range of one value is that value, whatever the step; cronsim would step on from it to the end of the field.
    return f"{low}" if low == high else f"{low}-{high}{step}"


def _number(field: _Field, text: str) -> int:
    if text in field.names:
        return field.names.index(text) + (field.name == "month")
    if not (text.isdigit() and len(text) <= 2 and field.low <= int(text) <= field.high):
        what = field.name.replace("_", " ")
        raise Invalid(f"{text!r:.40} is not a {what}", field=field.label, remedy=field.remedy)
    return int(text)


def _step(field: _Field, item: str, text: str) -> int:
    values = field.high - field.low + (field.name != "day_of_week")  # Sunday is there twice
    step = int(text) if len(text) <= 2 else 0
    if not 1 <= step <= values:
        remedy = f"give a step from 1 to {values}; for other intervals use an interval instead of cron"
        raise Invalid(f"the step of {item!r:.40} is out of range", field=field.label, remedy=remedy)
    return step


def _refuse_too_rare(calendar: Calendar) -> None:
    """Day and weekday both needed, as in `*/30 2 mon`, may meet once in decades, or never."""
    if calendar.either_day or len(calendar.weekdays) == 7 or len(calendar.days) == 31:
        return
    waited = 0
    for year in _YEARS_OF_THE_CALENDAR:
        for month in range(1, 13):
            waited += 1
            if month in calendar.months:
                first, length = monthrange(year, month)
                if any((first + day - 1) % 7 in calendar.weekdays for day in calendar.days if day <= length):
                    waited = 0
            if waited > _RAREST_IN_MONTHS:
                raise Invalid(
                    "day of month and day of week meet less than once in eight years",
                    field="cron.day_of_week",
                    remedy="with a * at the start of either field a day must fit both: restrict only one of them",
                )
