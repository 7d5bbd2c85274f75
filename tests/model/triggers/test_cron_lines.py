"""What a cron line means (S3); held against cronsim where clocks stand still."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.model.triggers import cron
from tests.model.triggers.cron_lines import cron_lines
from tests.support.proofs import times

NEW_YEAR = datetime(2031, 1, 1, tzinfo=UTC)


def days(line: str, n: int = 5) -> list[str]:
    return [f"{run:%a %d %b}" for run in cron(line).preview(NEW_YEAR, n)]


@settings(max_examples=times(150, in_a_proof=3000), deadline=None)
@given(cron_lines(), st.datetimes(datetime(2024, 1, 1), datetime(2034, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_in_utc_every_line_runs_when_cronsim_says(line: str, after: datetime) -> None:
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
def test_two_ways_to_say_the_same(word: str, line: str) -> None:
    assert cron(word).preview(NEW_YEAR, 20) == cron(line).preview(NEW_YEAR, 20)


def test_with_both_day_fields_restricted_a_day_needs_to_fit_only_one() -> None:
    assert days("0 0 13 * fri") == ["Fri 03 Jan", "Fri 10 Jan", "Mon 13 Jan", "Fri 17 Jan", "Fri 24 Jan"]


def test_with_one_day_field_open_a_day_must_fit_the_other() -> None:
    assert days("0 0 13 * *", 2) == ["Mon 13 Jan", "Thu 13 Feb"]
    assert days("0 0 * * fri", 2) == ["Fri 03 Jan", "Fri 10 Jan"]


def test_a_field_that_begins_with_a_star_counts_as_open_even_with_a_step() -> None:
    """As in the cron of Vixie and Debian."""
    assert days("0 0 */10 * fri", 3) == ["Fri 31 Jan", "Fri 21 Feb", "Fri 21 Mar"]


def test_leap_days_come_round_even_over_a_century_without_one() -> None:
    runs = cron("0 0 29 2 *").preview(datetime(2093, 1, 1, tzinfo=UTC), 3)
    assert [run.year for run in runs] == [2096, 2104, 2108]


def test_a_run_is_strictly_later_than_the_instant_asked_about() -> None:
    noon = datetime(2031, 5, 17, 12, tzinfo=UTC)
    trigger = cron("0 12 * * *")
    assert trigger.next_after(noon - timedelta(microseconds=1)) == noon
    assert trigger.next_after(noon) == noon + timedelta(days=1)
    assert trigger.next_after(noon + timedelta(microseconds=1)) == noon + timedelta(days=1)


def test_an_instant_of_any_zone_is_understood_and_the_answer_is_in_utc() -> None:
    tokyo = datetime(2031, 5, 17, 21, tzinfo=timezone(timedelta(hours=9)))
    run = cron("0 12 * * *").next_after(tokyo)
    assert run == datetime(2031, 5, 18, 12, tzinfo=UTC)
    assert run.tzinfo is UTC
