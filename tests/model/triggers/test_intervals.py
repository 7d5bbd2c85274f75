"""Intervals and specific times on days without surprises (S3): steps, anchors, windows, days."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from itertools import pairwise

import pytest

from tenuto.model.triggers import Trigger, at, every

SATURDAY = datetime(2031, 5, 17, 12, tzinfo=UTC)


def runs(trigger: Trigger, n: int, after: datetime = SATURDAY) -> list[str]:
    return [f"{run:%a %H:%M}" for run in trigger.preview(after, n)]


@pytest.mark.parametrize("interval", ["15m", "900s", 900, 900.0, "0.25h", timedelta(minutes=15)])
def test_an_interval_may_be_said_in_words_in_seconds_or_as_a_timedelta(interval: str | float | timedelta) -> None:
    assert every(interval) == every("15m")
    assert runs(every(interval), 3) == ["Sat 12:15", "Sat 12:30", "Sat 12:45"]


def test_full_hours_fall_on_full_hours_of_the_zone() -> None:
    first = every("1h", zone="Asia/Kathmandu").next_after(SATURDAY)
    assert first == datetime(2031, 5, 17, 12, 15, tzinfo=UTC)  # 18:00 there


def test_days_of_24_hours_begin_at_midnight_and_weeks_on_a_monday() -> None:
    assert runs(every("24h"), 2) == ["Sun 00:00", "Mon 00:00"]
    assert runs(every("7d"), 2) == ["Mon 00:00", "Mon 00:00"]


def test_seven_hours_are_seven_hours_over_midnight_too() -> None:
    found = every("7h").preview(SATURDAY, 50)
    assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(hours=7)}


def test_the_anchor_sets_the_step_before_it_as_after_it() -> None:
    trigger = every("1h", anchor="2031-05-17T14:07:00+02:00")
    assert runs(trigger, 2) == ["Sat 12:07", "Sat 13:07"]
    assert runs(trigger, 1, SATURDAY - timedelta(days=400)) == ["Fri 12:07"]


def test_without_an_anchor_steps_count_from_the_start_date() -> None:
    trigger = every("3d", start="2031-06-01")
    assert [f"{run:%d %b}" for run in trigger.preview(SATURDAY, 3)] == ["01 Jun", "04 Jun", "07 Jun"]


def test_a_window_includes_both_its_ends_and_starts_counting_anew_each_day() -> None:
    trigger = every("40m", between=("09:00", "10:20"))
    assert runs(trigger, 5) == ["Sun 09:00", "Sun 09:40", "Sun 10:20", "Mon 09:00", "Mon 09:40"]


def test_a_window_over_midnight_belongs_to_the_day_on_which_it_opens() -> None:
    trigger = every("4h", between=("22:00", "06:00"), days="fri")
    assert runs(trigger, 4) == ["Fri 22:00", "Sat 02:00", "Sat 06:00", "Fri 22:00"]


def test_asked_in_the_middle_of_the_night_the_window_of_the_evening_before_is_still_open() -> None:
    trigger = every("1h", between=("22:30", "06:00"), days="fri")
    assert runs(trigger, 2, datetime(2031, 5, 17, 3, tzinfo=UTC)) == ["Sat 03:30", "Sat 04:30"]


def test_an_anchored_interval_in_a_window_keeps_the_step_of_its_anchor() -> None:
    trigger = every("50m", between=("22:00", "00:30"), anchor="2031-05-17T12:05:00Z")
    found = trigger.preview(SATURDAY, 200)
    anchor = datetime(2031, 5, 17, 12, 5, tzinfo=UTC)
    assert {(run - anchor) % timedelta(minutes=50) for run in found} == {timedelta()}
    assert all(run.time() >= time(22) or run.time() <= time(0, 30) for run in found)
    assert len(found) == 200


def test_days_without_a_window_are_whole_days() -> None:
    trigger = every("8h", days=["mon", "thursday"])
    assert runs(trigger, 5) == ["Mon 00:00", "Mon 08:00", "Mon 16:00", "Thu 00:00", "Thu 08:00"]


def test_a_step_longer_than_its_window_runs_once_a_day() -> None:
    assert runs(every("12h", between=("22:00", "06:00")), 3) == ["Sat 22:00", "Sun 22:00", "Mon 22:00"]


def test_an_interval_of_a_second_runs_every_second() -> None:
    assert every(1).next_after(SATURDAY) == SATURDAY + timedelta(seconds=1)
    assert every(1).next_after(SATURDAY + timedelta(microseconds=1)) == SATURDAY + timedelta(seconds=1)


def test_specific_times_honour_every_minute() -> None:
    """The original kept only the minute of the first: 09:00 and 12:30 ran at 09:00 and 12:00."""
    assert runs(at(["12:30", "09:00", "17:01"]), 4) == ["Sat 12:30", "Sat 17:01", "Sun 09:00", "Sun 12:30"]


@pytest.mark.parametrize(
    "days", ["weekdays", "mon-fri", "Mon,Tue,wed-FRIDAY", ["mon", "tue-thu", "fri"], ["weekdays", "mon"]]
)
def test_days_may_be_said_in_many_ways(days: str | list[str]) -> None:
    assert at("06:00", days=days) == at("6:00", days=["mon", "tue", "wed", "thu", "fri"])


def test_a_range_of_days_may_run_over_the_end_of_the_week() -> None:
    assert runs(at("06:00", days="fri-mon"), 4) == ["Sun 06:00", "Mon 06:00", "Fri 06:00", "Sat 06:00"]


def test_the_same_time_twice_is_once() -> None:
    assert at(["06:00", "6:00", time(6)]) == at("06:00")
