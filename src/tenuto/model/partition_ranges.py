"""Decide which ranges of time get a partition, by month or by day, beside those that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

MONTHS_AHEAD = 3
DAYS_AHEAD = 7
_SUFFIX = re.compile(r"(\d{4})_(\d\d)(?:_(\d\d))?")


class PartitionPeriod(StrEnum):
    """Length of a partition."""

    MONTH = "month"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """A month or a day that has a partition, or gets one."""

    start: datetime
    period: PartitionPeriod

    @property
    def end(self) -> datetime:
        if self.period is PartitionPeriod.DAY:
            return self.start + timedelta(days=1)
        return month_start(self.start, 1)

    @property
    def suffix(self) -> str:
        """Return the last part of the name of the partition."""
        return f"{self.start:%Y_%m}" if self.period is PartitionPeriod.MONTH else f"{self.start:%Y_%m_%d}"

    def overlaps(self, other: PartitionRange) -> bool:
        return self.start < other.end and other.start < self.end


def parse_range(suffix: str) -> PartitionRange | None:
    """Return the range of a partition by the last part of its name; None for the default partition."""
    if (found := _SUFFIX.fullmatch(suffix)) is None:
        return None
    year, month, day = found.groups()
    try:
        start = datetime(int(year), int(month), int(day or 1), tzinfo=UTC)
    except ValueError:
        return None
    return PartitionRange(start, PartitionPeriod.DAY if day else PartitionPeriod.MONTH)


def find_period(present: Sequence[PartitionRange]) -> PartitionPeriod:
    """Return the period by which partitions are created: that of the newest one, also if it has ended."""
    newest = max(present, key=lambda each: each.end, default=None)
    return PartitionPeriod.MONTH if newest is None else newest.period


def find_missing_ranges(
    present: Sequence[PartitionRange], now: datetime, period: PartitionPeriod, *, ahead: int | None = None
) -> list[PartitionRange]:
    """Return what is missing from now until so many periods ahead. A month with days in it is completed by days.

    The newest one is of this period, so that `find_period` returns it from a change on: a day follows the last month.
    """
    if period is PartitionPeriod.DAY:
        count = DAYS_AHEAD if ahead is None else ahead
        wanted = [PartitionRange(day_start(now, days), period) for days in range(count + 1)]
        months_end = max((each.end for each in present if each.period is PartitionPeriod.MONTH), default=now)
        if months_end > wanted[-1].start:
            wanted.append(PartitionRange(months_end, period))
        return [each for each in wanted if not any(each.overlaps(other) for other in present)]
    count = MONTHS_AHEAD if ahead is None else ahead
    missing: list[PartitionRange] = []
    for months in range(count + 1):
        month = PartitionRange(month_start(now, months), period)
        inside = [each for each in present if each.overlaps(month)]
        if not inside:
            missing.append(month)
        elif month not in inside:
            days = [day for day in _days_of(month) if day.end > now]
            missing += [day for day in days if day not in inside]
    return missing


def find_replaceable_ranges(
    present: Sequence[PartitionRange], now: datetime, period: PartitionPeriod
) -> list[PartitionRange]:
    """Return the ranges of another period that are replaced if they are empty: months, or days of months, to come."""
    return [
        each
        for each in present
        if each.period is not period and (each if period is PartitionPeriod.DAY else _month_of(each)).start > now
    ]


def find_retained_start(present: Sequence[PartitionRange], now: datetime) -> datetime:
    """Return the start of the first range since which no partition was dropped."""
    since = month_start(now, 0)
    for each in sorted(present, key=lambda each: each.end, reverse=True):
        if each.start <= now < each.end or each.end == since:
            since = each.start
    return since


def month_start(instant: datetime, months: int) -> datetime:
    """Return the start of the month so many months after the month of an instant."""
    total = instant.year * 12 + instant.month - 1 + months
    return datetime(total // 12, total % 12 + 1, 1, tzinfo=UTC)


def day_start(instant: datetime, days: int) -> datetime:
    """Return the start of the day so many days after the day of an instant, in UTC."""
    at = instant.astimezone(UTC)
    return datetime(at.year, at.month, at.day, tzinfo=UTC) + timedelta(days=days)


def _month_of(each: PartitionRange) -> PartitionRange:
    return PartitionRange(month_start(each.start, 0), PartitionPeriod.MONTH)


def _days_of(month: PartitionRange) -> Iterator[PartitionRange]:
    start = month.start
    while start < month.end:
        yield PartitionRange(start, PartitionPeriod.DAY)
        start += timedelta(days=1)
