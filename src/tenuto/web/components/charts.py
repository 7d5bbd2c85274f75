"""Charts of ended attempts: stacked bars drawn by the server, with the same figures as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tenuto.operations.reports import AttemptFigures, SeriesPoint, SeriesReport

HEIGHT = 100.0
_LAST_MARK_PERCENT = 88
"""A label further right would leave the chart."""
_BAR_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class ColumnPart:
    y: float
    height: float
    tone: str


@dataclass(frozen=True, slots=True)
class Column:
    """One bar of the chart: its position in percent, and its parts from the bottom to the top."""

    x: float
    width: float
    at: datetime
    parts: Sequence[ColumnPart]
    point: SeriesPoint
    total: int


@dataclass(frozen=True, slots=True)
class AttemptChart:
    """Ended attempts over time."""

    columns: Sequence[Column]
    largest: int
    total: AttemptFigures
    total_count: int
    marks: Sequence[tuple[float, datetime]]
    point_seconds: int


def draw_attempts(report: SeriesReport) -> AttemptChart | None:
    """Draw the first series of a report; None if there is none."""
    if not report.series:
        return None
    series = report.series[0]
    counts = [_count(point) for point in series.points]
    largest = max(counts, default=0)
    width = 100 / max(len(counts), 1)
    columns = [
        Column(
            round(index * width + width * (1 - _BAR_SHARE) / 2, 3),
            round(width * _BAR_SHARE, 3),
            point.at,
            _parts(point, largest),
            point,
            total,
        )
        for index, (point, total) in enumerate(zip(series.points, counts, strict=True))
    ]
    every = max(len(columns) // 5, 1)
    positions = [index for index in range(0, len(columns), every) if index * width <= _LAST_MARK_PERCENT]
    marks = [(round(index * width, 3), columns[index].at) for index in positions]
    return AttemptChart(columns, largest, series.total, sum(counts), marks, report.point_seconds)


def _count(point: AttemptFigures) -> int:
    return point.completed_count + point.warning_count + point.error_count + point.failed_count + point.cancelled_count


def _parts(point: SeriesPoint, largest: int) -> list[ColumnPart]:
    parts, base = [], HEIGHT
    for tone, count in (
        ("done", point.completed_count),
        ("retry", point.warning_count),
        ("fail", point.failed_count + point.error_count),
        ("stop", point.cancelled_count),
    ):
        height = count / largest * HEIGHT if largest else 0.0
        if height:
            base -= height
            parts.append(ColumnPart(round(base, 2), round(height, 2), tone))
    return parts
