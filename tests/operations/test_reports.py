"""Reports: series of ended attempts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tenuto import Tenuto
from tenuto.maintenance.activity_rollups import add_ended_activities
from tenuto.model.work.rollups import HISTOGRAM_BOUNDS, choose_buckets, percentile
from tenuto.settings import load_settings
from tests.maintenance.test_activity_rollups import write_activity
from tests.support.errors import raises_code


@pytest.fixture
async def app(url: str, tmp_path):  # type: ignore[no-untyped-def]
    app = Tenuto(settings=load_settings(database=url, home=tmp_path))
    yield app
    await app.close()


async def test_series_has_a_point_for_every_span_and_the_figures_of_its_attempts(app: Tenuto) -> None:
    database = await app.open()
    now = database.clock.now()
    async with database.connection() as connection:
        for number in range(20):
            await write_activity(connection, now - timedelta(minutes=7), ran=1.0 if number < 18 else 30.0)
        await write_activity(connection, now - timedelta(minutes=2), "failed")
        await write_activity(connection, now - timedelta(hours=3), "failed")
    await add_ended_activities(database, now)
    report = await app.reports.series("1h")
    (series,) = report.series
    assert (report.point_seconds, len(series.points), report.omitted_label_count) == (60, 60, 0)
    assert report.until - report.since == timedelta(hours=1)
    assert (series.label, series.total.completed_count, series.total.failed_count) == (None, 20, 1)
    filled = [point for point in series.points if point.completed_count or point.failed_count]
    assert [(point.completed_count, point.failed_count) for point in filled] == [(20, 0), (0, 1)]
    assert filled[0].run_p50_seconds == pytest.approx(1.0, rel=0.25)
    assert filled[0].run_p95_seconds == pytest.approx(30.0, rel=0.25)
    assert series.points[0].run_p50_seconds is None


@pytest.mark.parametrize("window", ["15m", "6h", "24h", "7d", "90d"])
async def test_series_by_name_and_queue_hold_all_attempts_in_at_most_120_points(app: Tenuto, window: str) -> None:
    database = await app.open()
    now = database.clock.now()
    async with database.connection() as connection:
        for number in range(30):
            for _ in range(2 if number < 5 else 1):
                await write_activity(connection, now - timedelta(seconds=30), name=f"job-{number:02}", queue="q")
    await add_ended_activities(database, now)
    names = await app.reports.series(window, by="name")
    assert [each.label for each in names.series][:6] == [f"job-{number:02}" for number in range(6)]
    assert (len(names.series), names.omitted_label_count) == (20, 10)
    (queue,) = (await app.reports.series(window, by="queue")).series
    assert (queue.label, queue.total.completed_count) == ("q", 35)
    (one,) = (await app.reports.series(window, name="job-01")).series
    assert one.total.completed_count == 2
    assert 1 <= len(one.points) <= 120
    figures = await app.reports.figures_by_name(["job-01", "job-07", "absent"], window)
    assert {name: each.completed_count for name, each in figures.items()} == {"job-01": 2, "job-07": 1}
    assert figures["job-01"] == one.total
    assert await app.reports.figures_by_name([], window) == {}


async def test_series_refuses_windows_and_filters_that_make_no_sense(app: Tenuto) -> None:
    for window in ("1s", "9999d", 0.0):
        with raises_code("series.window.out_of_range"):
            await app.reports.series(window)
    with raises_code("value.duration.invalid"):
        await app.reports.series("soon")
    with raises_code("series.filter.conflict"):
        await app.reports.series(queue="a", name="b")
    with raises_code("series.filter.conflict"):
        await app.reports.series(by="queue", name="b")


@pytest.mark.parametrize("hours", [0.25, 1, 6, 24, 48, 24 * 7, 24 * 366])
def test_window_is_divided_into_at_most_120_points(hours: float) -> None:
    window = timedelta(hours=hours)
    for is_divided in (False, True):
        stored, point = choose_buckets(window, is_divided=is_divided)
        assert point % stored == 0
        assert window.total_seconds() / point <= 120


def test_percentile_lies_in_the_bin_of_its_value() -> None:
    assert percentile([], 0.5) is None
    bins = [0] * 10 + [90] + [0] * 9 + [10]
    assert HISTOGRAM_BOUNDS[9] <= (percentile(bins, 0.5) or 0) <= HISTOGRAM_BOUNDS[10]
    assert HISTOGRAM_BOUNDS[19] <= (percentile(bins, 0.95) or 0) <= HISTOGRAM_BOUNDS[20]
