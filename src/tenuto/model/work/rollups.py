"""Time buckets of ended attempts: outcomes, and histograms of waits and durations with logarithmic bounds.

A histogram is a list of counts. Bin 0 counts values below the first bound, bin n values from bound n - 1 up to bound n.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import zip_longest

BOUND_FACTOR = 1.25
HISTOGRAM_BOUNDS = tuple(0.001 * BOUND_FACTOR**number for number in range(100))
"""Bounds of the bins in seconds: from a millisecond to more than a month."""
BUCKET_SECONDS = (10, 60, 3600)
BUCKET_RETENTION = {10: timedelta(hours=2), 60: timedelta(days=2)}
"""Longer buckets are kept as long as activities."""
MAX_POINTS = 120
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class Dimension(StrEnum):
    """Attribute by which a series is divided."""

    ALL = "all"
    QUEUE = "queue"
    NAME = "name"


@dataclass(slots=True)
class RollupCounts:
    """Outcomes of attempts, and histograms of their waits and durations."""

    completed: int = 0
    warnings: int = 0
    errors: int = 0
    failed: int = 0
    cancelled: int = 0
    wait_bins: list[int] = field(default_factory=list)
    run_bins: list[int] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.completed + self.warnings + self.errors + self.failed + self.cancelled

    def count(self, outcome: str, wait_bin: int | None, run_bin: int | None, count: int) -> None:
        """Count attempts with one outcome and similar times."""
        name = OUTCOME_FIELDS[outcome]
        setattr(self, name, getattr(self, name) + count)
        _count_in_bin(self.wait_bins, wait_bin, count)
        _count_in_bin(self.run_bins, run_bin, count)

    def add(self, other: RollupCounts) -> None:
        self.completed += other.completed
        self.warnings += other.warnings
        self.errors += other.errors
        self.failed += other.failed
        self.cancelled += other.cancelled
        self.wait_bins = add_histograms(self.wait_bins, other.wait_bins)
        self.run_bins = add_histograms(self.run_bins, other.run_bins)


OUTCOME_FIELDS = {
    "completed": "completed",
    "completed_with_warning": "warnings",
    "completed_with_error": "errors",
    "failed": "failed",
    "cancelled": "cancelled",
}
"""The count of each outcome."""


def add_histograms(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return the sum of two histograms. ``tenuto.add_histograms`` of the database does the same."""
    return [a + b for a, b in zip_longest(first, second, fillvalue=0)]


def _count_in_bin(bins: list[int], bin: int | None, count: int) -> None:
    if bin is not None:
        bins.extend([0] * (bin + 1 - len(bins)))
        bins[bin] += count


def percentile(bins: Sequence[int], fraction: float) -> float | None:
    """Return the value below which this fraction lies; exact to the width of a bin. None if the histogram is empty."""
    total = sum(bins)
    if not total:
        return None
    wanted, below = fraction * total, 0
    for number, count in enumerate(bins):
        if count and below + count >= wanted:
            share = (wanted - below) / count
            high = HISTOGRAM_BOUNDS[min(number, len(HISTOGRAM_BOUNDS) - 1)]
            low = HISTOGRAM_BOUNDS[number - 1] if number else 0.0
            return low + (high - low) * share
        below += count
    return None


def floor_to_bucket(instant: datetime, seconds: int) -> datetime:
    """Return the start of the bucket that contains an instant."""
    return _EPOCH + (instant - _EPOCH) // timedelta(seconds=seconds) * timedelta(seconds=seconds)


def choose_buckets(window: timedelta, *, is_divided: bool) -> tuple[int, int]:
    """Return the stored bucket size and the size of a point, both in seconds, for a window.

    A series that is divided by queue or name has many rows per bucket, so it uses larger buckets.
    """
    if window <= timedelta(seconds=10 * MAX_POINTS):
        stored = 10
    elif window <= (timedelta(hours=6) if is_divided else BUCKET_RETENTION[60]):
        stored = 60
    else:
        stored = 3600
    return stored, choose_point_seconds(stored, window)


def choose_point_seconds(stored: int, window: timedelta) -> int:
    """Return the smallest round multiple of a bucket that divides the window into at most 120 points."""
    sizes: Iterable[int] = (10, 60, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 7 * 86_400)
    least = window.total_seconds() / MAX_POINTS
    return next((size for size in sizes if size >= max(stored, least)), 30 * 86_400)
