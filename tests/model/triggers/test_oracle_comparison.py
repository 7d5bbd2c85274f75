"""Cron, times and intervals (S3) compared with an oracle that checks every minute of years with clock changes."""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from cronsim import CronSim

from tenuto.model.triggers import Trigger, at, cron, every
from tests.model.triggers import oracle
from tests.model.triggers.oracle import Walk
from tests.support.repetition_counts import seed, times

pytestmark = pytest.mark.slow

YEARS = {
    "Europe/London": ("2024-01-01", "2026-03-03"),
    "America/New_York": ("2025-01-01", "2027-01-03"),
    "Australia/Lord_Howe": ("2025-01-01", "2027-01-03"),
    "Asia/Kathmandu": ("1985-01-01", "1987-01-03"),
    "Africa/Casablanca": ("2025-01-01", "2027-01-03"),
    "Pacific/Apia": ("2010-09-01", "2012-09-03"),
    "America/St_Johns": ("2009-06-01", "2011-12-03"),
    "Africa/Cairo": ("2025-01-01", "2026-06-01"),
}
FIXED = [
    "0 0 * * *",
    "30 1 * * *",
    "15 2 * * *",
    "0,10,45 0-3 * * *",
    "0 12 30 12 *",
    "30 2 1-7 * sun",
    "5 1 * mar,oct,nov fri-sun",
    "0 0 28,29 2 *",
]
REAL_TIME = [
    "30 * * * *",
    "*/20 0-3 * * *",
    "0 */3 * * *",
    "7,37 1,*/6 * * 0,7",
    "10-50/20 1-2 */2 * mon",
    "0 0-23 1,30 * *",
    "*/15 23,0 * dec,jan *",
]
TIMES = [(["00:00", "01:30", "02:15", "23:59"], [0, 1, 2, 3, 4, 5, 6]), (["00:30", "02:00", "06:07"], [4, 5, 6])]
WINDOWS = [
    (40, (22 * 60, 6 * 60), [0, 1, 2, 3, 4, 5, 6]),
    (45, (1 * 60 + 15, 2 * 60 + 45), [4, 5, 6]),
]
NAMES = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


@lru_cache(maxsize=len(YEARS))
def walk_in(zone: str) -> Walk:
    return oracle.walk(zone, *YEARS[zone])


def check_agreement(trigger: Trigger, expected: list[datetime], walk: Walk) -> None:
    """Check that each run, and any instant between two runs, leads to the next run."""
    assert expected, trigger.describe()
    run, found = walk.first, []
    while (following := trigger.next_after(run)) is not None and following <= expected[-1]:
        found.append(following)
        run = following
    astray = next((pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]), None)
    assert astray is None, trigger.describe()
    assert len(found) == len(expected), trigger.describe()
    chance = random.Random(f"{walk.zone} {trigger.describe()}")
    for _ in range(100):
        instant = walk.first + (expected[-1] - walk.first) * chance.random()
        assert trigger.next_after(instant) == expected[bisect_right(expected, instant)], (trigger.describe(), instant)


@pytest.mark.parametrize("zone", YEARS)
def test_oracle_detects_clock_changes(zone: str) -> None:
    walls = walk_in(zone).walls
    jumps = {after - before for before, after in pairwise(walls)} - {1}
    assert len(jumps) >= (1 if zone == "Asia/Kathmandu" else 2)


@pytest.mark.parametrize("zone", YEARS)
def test_cron_line_with_fixed_times_matches_the_oracle(zone: str) -> None:
    walk = walk_in(zone)
    runs = oracle.by_the_clock(walk, *map(oracle.cron_is_due, FIXED))
    for line, expected in zip(FIXED, runs, strict=True):
        check_agreement(cron(line, zone=zone), expected, walk)


@pytest.mark.parametrize("zone", YEARS)
def test_cron_line_with_wildcards_matches_the_oracle(zone: str) -> None:
    walk = walk_in(zone)
    runs = oracle.by_real_time(walk, *map(oracle.cron_is_due, REAL_TIME))
    for line, expected in zip(REAL_TIME, runs, strict=True):
        check_agreement(cron(line, zone=zone), expected, walk)


@pytest.mark.parametrize(
    ("zone", "line", "after", "by_rule"),
    [
        # The clock was set back at 01:00 UTC: the answer is 01:30 summer time, which was 45 minutes ago.
        ("Europe/London", "30 1 * * *", "2025-10-26 01:15", oracle.by_the_clock),
        # The clock is set forward by half an hour: it steps by whole hours and skips the runs at 03:00, 03:10, 03:20.
        ("Australia/Lord_Howe", "*/10 3 * * *", "2025-10-04 12:00", oracle.by_real_time),
    ],
)
def test_cronsim_is_wrong_around_clock_changes(zone: str, line: str, after: str, by_rule: Any) -> None:
    """The reason why `model.triggers.cron` searches itself. If this fails, cronsim has been corrected: use it."""
    (expected,) = by_rule(walk_in(zone), oracle.cron_is_due(line))
    instant = datetime.fromisoformat(after).replace(tzinfo=UTC)
    run = expected[bisect_right(expected, instant)]
    assert cron(line, zone=zone).next_after(instant) == run
    assert next(CronSim(line, instant.astimezone(ZoneInfo(zone)))).astimezone(UTC) != run


@pytest.mark.parametrize("zone", YEARS)
def test_times_trigger_matches_the_oracle(zone: str) -> None:
    walk = walk_in(zone)
    runs = oracle.by_the_clock(walk, *(oracle.times_are_due(*each) for each in TIMES))
    for (hours, days), expected in zip(TIMES, runs, strict=True):
        check_agreement(at(hours, days=[NAMES[day] for day in days], zone=zone), expected, walk)


@pytest.mark.parametrize("zone", YEARS)
def test_interval_with_window_matches_the_oracle(zone: str) -> None:
    walk = walk_in(zone)
    for minutes, edges, days in WINDOWS:
        expected = oracle.in_windows(walk, minutes, edges, days)
        opens, closes = (f"{edge // 60:02}:{edge % 60:02}" for edge in edges)
        named = [NAMES[day] for day in days]
        trigger = every(timedelta(minutes=minutes), between=(opens, closes), days=named, zone=zone)
        begin = replace(walk, first=expected[0] - oracle.MINUTE)  # a window may have been open when the walk began
        check_agreement(trigger, expected, begin)


@lru_cache(maxsize=1)
def changes_since_2000() -> list[tuple[str, datetime]]:
    """One zone for each different clock change of all zones from 2000 to 2031, with its instant to the hour."""
    found: dict[tuple[datetime, object, object], tuple[str, datetime]] = {}
    for zone in sorted(available_timezones()):
        info, day = ZoneInfo(zone), datetime(2000, 1, 1, tzinfo=UTC)
        offset = day.astimezone(info).utcoffset()
        while day.year < 2031:
            following = day + timedelta(days=1)
            after = following.astimezone(info).utcoffset()
            if after != offset:
                hour = next(
                    each
                    for each in (day + timedelta(hours=hours) for hours in range(25))
                    if each.astimezone(info).utcoffset() != offset
                )
                found.setdefault((hour, offset, after), (zone, hour))
            day, offset = following, after
    return list(found.values())


@pytest.mark.slow
def test_interval_with_window_matches_the_oracle_at_clock_changes_of_all_zones() -> None:
    chance = random.Random(seed())
    changes = changes_since_2000()
    assert len(changes) > 500
    for zone, at_hour in chance.sample(changes, min(len(changes), times(60, in_a_proof=len(changes)))):
        begin, end = at_hour - timedelta(days=3), at_hour + timedelta(days=3)
        walk = oracle.walk(zone, begin.date().isoformat(), end.date().isoformat())
        shown = at_hour.astimezone(ZoneInfo(zone))
        for _ in range(4):
            opens = (shown.hour * 60 + chance.randrange(-150, 90)) % 1440
            closes = (opens + chance.choice((10, 25, 45, 90, 150, 600, 1400))) % 1440
            days = sorted(chance.sample(range(7), chance.choice((3, 5, 7))))
            minutes = chance.choice((5, 10, 30, 45, 90))
            expected = oracle.in_windows(walk, minutes, (opens, closes), days)
            trigger = every(
                timedelta(minutes=minutes),
                between=(f"{opens // 60:02}:{opens % 60:02}", f"{closes // 60:02}:{closes % 60:02}"),
                days=[NAMES[day] for day in days],
                zone=zone,
            )
            known = [run for run in expected if run >= walk.first + timedelta(days=2)]
            found, run = [], walk.first + timedelta(days=2) - oracle.MINUTE
            while (run := trigger.next_after(run) or end) < walk.instant(len(walk.walls)):
                found.append(run)
            assert found == known, (zone, at_hour, trigger.describe())


@pytest.mark.parametrize("zone", YEARS)
def test_interval_without_window_keeps_its_distance_across_clock_changes(zone: str) -> None:
    walk = walk_in(zone)
    runs = every("35m", zone=zone).preview(walk.first, 1000)
    assert {later - earlier for earlier, later in pairwise(runs)} == {timedelta(minutes=35)}
