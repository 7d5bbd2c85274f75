"""Charts: the labels of the time axis stay inside of the chart and beside each other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tenuto.operations.reports import AttemptFigures, Series, SeriesPoint, SeriesReport
from tenuto.web.components.charts import draw_attempts
from tenuto.web.components.svg_geometry import Scale

START = datetime(2026, 11, 11, tzinfo=UTC)
FIGURES = (3, 0, 0, 1, 0, None, None, None, None)


@pytest.mark.parametrize("count", [1, 5, 15, 60, 84, 120])
def test_labels_of_a_chart_stay_inside_of_it(count: int) -> None:
    points = [SeriesPoint(*FIGURES, at=START + timedelta(hours=number)) for number in range(count)]
    series = Series(None, AttemptFigures(*FIGURES), points)
    report = SeriesReport(START, START + timedelta(hours=count), 3600, "outcome", [series], 0)
    chart = draw_attempts(report)
    assert chart is not None
    positions = [x for x, _ in chart.marks]
    assert 1 <= len(positions) <= 6
    assert positions == sorted(positions)
    assert positions[-1] <= 88


@pytest.mark.parametrize("seconds", [0.3, 1.9, 22, 47, 133, 214, 1500, 4000, 9000, 90_000, 800_000])
def test_labels_of_a_scale_fit_beside_each_other(seconds: float) -> None:
    scale = Scale.covering(START, START + timedelta(seconds=seconds), is_growing=False)
    labels = [tick.label for tick in scale.ticks]
    assert len(labels) >= 2
    assert sum(map(len, labels)) <= 35, "the narrowest column has 240 pixels"
