"""Cron lines (S3): their meaning, compared with cronsim where there are no clock changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.model.triggers import cron
from tests.model.triggers.cron_lines import cron_lines
from tests.support.repetition_counts import times

NEW_YEAR = datetime(2031, 1, 1, tzinfo=UTC)


def days(line: str, n: int = 5) -> list[str]:
    return [f"{run:%a %d %b}" for run in cron(line).preview(NEW_YEAR, n)]


@settings(max_examples=times(150, in_a_proof=3000), deadline=None)
@given(cron_lines(), st.datetimes(datetime(2024, 1, 1), datetime(2034, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_cron_trigger_in_utc_matches_cronsim(line: str, after: datetime) -> None:
    engine = CronSim(line, after)
    assert cron(line).preview(after, 3) == [next(engine) for _ in range(3)]


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        (" @Daily ", "0 0 * * *"),
        ("0 2 * * MON-Fri", "0 2 * * 1-5"),
        ("0 2 * JAN,jul *", "0 2 * 1,7 *"),
        ("0\t2  * * 7", "0 2 * * 0"),
        ("0 2 * * fri-sun", "0 2 * * 5,6,0"),
        ("0 2 * * sun-tue", "0 2 * * 0-2"),
        ("0 2 * * 5-7", "0 2 * * 0,5,6"),
        ("5/15 * * * *", "5-59/15 * * * *"),
        ("5-5/15 * * * *", "5 * * * *"),
        ("00 02 01 01 *", "0 2 1 1 *"),
    ],
)
def test_equivalent_cron_lines_have_the_same_runs(word: str, line: str) -> None:
    assert cron(word).preview(NEW_YEAR, 20) == cron(line).preview(NEW_YEAR, 20)


def test_cron_with_both_day_fields_restricted_matches_either() -> None:
    assert days("0 0 13 * fri") == ["Fri 03 Jan", "Fri 10 Jan", "Mon 13 Jan", "Fri 17 Jan", "Fri 24 Jan"]


def test_cron_with_one_day_field_open_matches_the_other() -> None:
    assert days("0 0 13 * *", 2) == ["Mon 13 Jan", "Thu 13 Feb"]
    assert days("0 0 * * fri", 2) == ["Fri 03 Jan", "Fri 10 Jan"]


def test_cron_day_field_with_star_and_step_counts_as_open() -> None:
    """The same rule as in Vixie cron and Debian."""
    assert days("0 0 */10 * fri", 3) == ["Fri 31 Jan", "Fri 21 Feb", "Fri 21 Mar"]


def test_cron_leap_day_recurs_across_a_century_without_leap_year() -> None:
    runs = cron("0 0 29 2 *").preview(datetime(2093, 1, 1, tzinfo=UTC), 3)
    assert [run.year for run in runs] == [2096, 2104, 2108]


def test_cron_next_run_is_strictly_later() -> None:
    noon = datetime(2031, 5, 17, 12, tzinfo=UTC)
    trigger = cron("0 12 * * *")
    assert trigger.next_after(noon - timedelta(microseconds=1)) == noon
    assert trigger.next_after(noon) == noon + timedelta(days=1)
    assert trigger.next_after(noon + timedelta(microseconds=1)) == noon + timedelta(days=1)


def test_cron_accepts_instants_of_any_zone_and_returns_utc() -> None:
    tokyo = datetime(2031, 5, 17, 21, tzinfo=timezone(timedelta(hours=9)))
    run = cron("0 12 * * *").next_after(tokyo)
    assert run == datetime(2031, 5, 18, 12, tzinfo=UTC)
    assert run.tzinfo is UTC
