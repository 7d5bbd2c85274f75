"""Jitter: fixed for each schedule, spread over many schedules, and in order."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.model.triggers import Trigger, at, cron, every, zones
from tenuto.model.triggers.trigger import ClockTrigger
from tests.model.triggers import test_trigger_properties as properties
from tests.support.repetition_counts import times

NOON = datetime(2031, 5, 17, 12, tzinfo=UTC)
TRIGGERS = [
    cron("0 2 * * *", zone="Europe/London", jitter="10m"),
    cron("* * * * *", jitter=3600),
    cron("0,1,30 * * * *", jitter=300),
    at(["06:00", "06:01", "18:30"], days="weekdays", jitter=90),
    every(1, jitter=5),
    every("7s", between=("23:59", "00:01"), jitter=86_400),
    every("1h", end="2031-05-20", excluded=["2031-05-18"], jitter=7200),
]


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: trigger.describe())
@settings(max_examples=times(25, in_a_proof=500), deadline=None)
@given(seed=st.text(min_size=1, max_size=8), seconds=st.integers(0, 86_400 * 2))
def test_jitter_keeps_the_order_of_runs(trigger: Trigger, seed: str, seconds: int) -> None:
    after = NOON + timedelta(seconds=seconds)
    before = after - timedelta(days=1, seconds=1)
    times = trigger.preview(before, 12)
    moved = trigger.preview(before, 12, seed)
    if moved and moved[0] < times[0]:
        moved = moved[1:]  # a run of the time before, moved past the instant asked about
    for (time, following), run in zip(pairwise(times), moved, strict=False):
        assert time <= run < following
    assert moved == sorted(set(moved))


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: trigger.describe())
@settings(max_examples=times(25, in_a_proof=500), deadline=None)
@given(seed=st.text(min_size=1, max_size=8), seconds=st.integers(0, 86_400 * 2), fraction=st.integers(0, 999_999))
def test_jitter_loses_and_repeats_no_run(trigger: Trigger, seed: str, seconds: int, fraction: int) -> None:
    runs = trigger.preview(NOON, 50, seed)
    instant = NOON + timedelta(seconds=seconds, microseconds=fraction)
    if runs and NOON <= instant < runs[-1]:
        assert trigger.next_after(instant, seed) == next(run for run in runs if run > instant)


@pytest.mark.parametrize(
    "trigger",
    [
        at("23:50", days="fri", zone="Europe/London", jitter="1h"),
        at("23:50", excluded=["2031-05-18", "2031-05-20"], end="2031-05-24", jitter="12h"),
        cron("30 22 * * mon,wed", zone="America/Sao_Paulo", jitter=86_400),
        cron("*/20 23 * * sat", zone="Pacific/Auckland", excluded=["2031-05-24"], jitter=7200),
        every("5h", days="tue,sat", zone="Asia/Kolkata", end="2031-07-01", jitter=18_000),
    ],
    ids=lambda trigger: trigger.describe(),
)
@settings(max_examples=times(25, in_a_proof=500), deadline=None)
@given(seed=st.text(min_size=1, max_size=8))
def test_jitter_keeps_runs_within_their_day(trigger: ClockTrigger, seed: str) -> None:
    zone = trigger.limits.zone_info
    on_time, moved = trigger.preview(NOON, 20), trigger.preview(NOON, 20, seed)
    assert on_time
    if len(moved) == len(on_time) + 1 or moved[0] < on_time[0]:
        moved = moved[1:]  # a run of the time before, moved past the instant asked about
    for due, run in zip(on_time, moved, strict=False):
        assert due <= run
        assert run.astimezone(zone).date() == due.astimezone(zone).date()


@pytest.mark.slow
@settings(max_examples=times(200, in_a_proof=5000), deadline=None)
@given(
    trigger=properties.triggers(),
    instant=properties.instants,
    seed=st.text(min_size=1, max_size=8),
    jitter=st.sampled_from([600, 7200, 86_400]),
)
def test_jitter_keeps_runs_of_any_trigger_on_their_day(
    trigger: Trigger, instant: datetime, seed: str, jitter: int
) -> None:
    assert isinstance(trigger, ClockTrigger)
    spread = replace(trigger, limits=replace(trigger.limits, jitter=jitter))
    zone = spread.limits.zone_info
    for run in spread.preview(instant, 8, seed):
        day = zones.latest_wall_time(zone, run).date()
        assert spread.limits.next_allowed_day(day) == day, "a date on which it runs"
        due = spread.next_after(zones.start_of_day(zone, day) - zones.MICROSECOND)
        assert due is not None
        assert due <= run, "and on that day there is a time to be moved from"


def test_jitter_is_the_same_every_day_for_one_seed() -> None:
    trigger = cron("0 2 * * *", jitter=600)
    first, *others = trigger.preview(NOON, 10, "nightly")
    assert {run.time() for run in others} == {first.time()}


def test_jitter_spreads_schedules_over_its_whole_range() -> None:
    trigger = cron("0 2 * * *", jitter=59)
    seconds = [run.second for number in range(2000) if (run := trigger.next_after(NOON, f"schedule {number}"))]
    assert set(seconds) == set(range(60))


def test_jitter_is_limited_by_the_distance_between_runs() -> None:
    trigger = cron("* * * * *", jitter=3600)
    seconds = [run.second for number in range(2000) if (run := trigger.next_after(NOON, f"schedule {number}"))]
    assert set(seconds) == set(range(60))
    assert max(seconds.count(second) for second in range(60)) < 100


def test_run_without_seed_has_no_jitter() -> None:
    assert cron("0 2 * * *", jitter=600).next_after(NOON) == cron("0 2 * * *").next_after(NOON)


def test_jittered_run_is_still_due_after_its_nominal_time() -> None:
    trigger = cron("0 2 * * *", jitter=600)
    run = trigger.next_after(NOON, "nightly")
    assert run is not None
    on_time = run.replace(minute=0, second=0)
    assert run > on_time
    assert trigger.next_after(on_time, "nightly") == run
    assert trigger.next_after(run - timedelta(microseconds=1), "nightly") == run
    assert trigger.next_after(run, "nightly") == run + timedelta(days=1)
