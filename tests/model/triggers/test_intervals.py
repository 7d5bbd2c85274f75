"""Intervals and specific times (S3) without clock changes: intervals, anchors, windows and days."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from itertools import pairwise

import pytest

from tenuto.model.triggers import Trigger, at, every

SATURDAY = datetime(2031, 5, 17, 12, tzinfo=UTC)


def runs(trigger: Trigger, n: int, after: datetime = SATURDAY) -> list[str]:
    return [f"{run:%a %H:%M}" for run in trigger.preview(after, n)]


@pytest.mark.parametrize("interval", ["15m", "900s", 900, 900.0, "0.25h", timedelta(minutes=15)])
def test_interval_is_given_as_text_seconds_or_timedelta(interval: str | float | timedelta) -> None:
    assert every(interval) == every("15m")
    assert runs(every(interval), 3) == ["Sat 12:15", "Sat 12:30", "Sat 12:45"]


def test_hourly_interval_runs_on_full_hours_of_the_zone() -> None:
    first = every("1h", zone="Asia/Kathmandu").next_after(SATURDAY)
    assert first == datetime(2031, 5, 17, 12, 15, tzinfo=UTC)  # 18:00 there


def test_interval_of_days_starts_at_midnight_and_of_weeks_on_monday() -> None:
    assert runs(every("24h"), 2) == ["Sun 00:00", "Mon 00:00"]
    assert runs(every("7d"), 2) == ["Mon 00:00", "Mon 00:00"]


def test_interval_of_seven_hours_continues_across_midnight() -> None:
    found = every("7h").preview(SATURDAY, 50)
    assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(hours=7)}


def test_interval_anchor_applies_before_and_after_it() -> None:
    trigger = every("1h", anchor="2031-05-17T14:07:00+02:00")
    assert runs(trigger, 2) == ["Sat 12:07", "Sat 13:07"]
    assert runs(trigger, 1, SATURDAY - timedelta(days=400)) == ["Fri 12:07"]


def test_interval_without_anchor_counts_from_the_start_date() -> None:
    trigger = every("3d", start="2031-06-01")
    assert [f"{run:%d %b}" for run in trigger.preview(SATURDAY, 3)] == ["01 Jun", "04 Jun", "07 Jun"]


def test_interval_window_includes_both_ends_and_restarts_each_day() -> None:
    trigger = every("40m", between=("09:00", "10:20"))
    assert runs(trigger, 5) == ["Sun 09:00", "Sun 09:40", "Sun 10:20", "Mon 09:00", "Mon 09:40"]


def test_overnight_interval_window_belongs_to_its_opening_day() -> None:
    trigger = every("4h", between=("22:00", "06:00"), days="fri")
    assert runs(trigger, 4) == ["Fri 22:00", "Sat 02:00", "Sat 06:00", "Fri 22:00"]


def test_overnight_interval_window_is_open_after_midnight() -> None:
    trigger = every("1h", between=("22:30", "06:00"), days="fri")
    assert runs(trigger, 2, datetime(2031, 5, 17, 3, tzinfo=UTC)) == ["Sat 03:30", "Sat 04:30"]


def test_interval_window_with_anchor_counts_from_the_anchor() -> None:
    trigger = every("50m", between=("22:00", "00:30"), anchor="2031-05-17T12:05:00Z")
    found = trigger.preview(SATURDAY, 200)
    anchor = datetime(2031, 5, 17, 12, 5, tzinfo=UTC)
    assert {(run - anchor) % timedelta(minutes=50) for run in found} == {timedelta()}
    assert all(run.time() >= time(22) or run.time() <= time(0, 30) for run in found)
    assert len(found) == 200


def test_interval_with_days_and_without_window_runs_on_whole_days() -> None:
    trigger = every("8h", days=["mon", "thursday"])
    assert runs(trigger, 5) == ["Mon 00:00", "Mon 08:00", "Mon 16:00", "Thu 00:00", "Thu 08:00"]


def test_interval_longer_than_its_window_runs_once_a_day() -> None:
    assert runs(every("12h", between=("22:00", "06:00")), 3) == ["Sat 22:00", "Sun 22:00", "Mon 22:00"]


def test_interval_of_one_second_runs_every_second() -> None:
    assert every(1).next_after(SATURDAY) == SATURDAY + timedelta(seconds=1)
    assert every(1).next_after(SATURDAY + timedelta(microseconds=1)) == SATURDAY + timedelta(seconds=1)


def test_times_trigger_honours_every_minute() -> None:
    """Regression: only the minute of the first time was used, so that 12:30 ran at 12:00."""
    assert runs(at(["12:30", "09:00", "17:01"]), 4) == ["Sat 12:30", "Sat 17:01", "Sun 09:00", "Sun 12:30"]


@pytest.mark.parametrize(
    "days", ["weekdays", "mon-fri", "Mon,Tue,wed-FRIDAY", ["mon", "tue-thu", "fri"], ["weekdays", "mon"]]
)
def test_trigger_days_are_given_in_several_forms(days: str | list[str]) -> None:
    assert at("06:00", days=days) == at("6:00", days=["mon", "tue", "wed", "thu", "fri"])


def test_trigger_day_range_may_cross_the_end_of_the_week() -> None:
    assert runs(at("06:00", days="fri-mon"), 4) == ["Sun 06:00", "Mon 06:00", "Fri 06:00", "Sat 06:00"]


def test_duplicate_times_run_once() -> None:
    assert at(["06:00", "6:00", time(6)]) == at("06:00")
