"""Start, end and excluded dates (S3): local dates of the zone, the end included."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from tenuto.errors import Invalid
from tenuto.model.triggers import Trigger, at, check_has_run_after, cron, every, manual

AUCKLAND = "Pacific/Auckland"
NOON = datetime(2031, 5, 17, 12, tzinfo=UTC)


def local(trigger: Trigger, zone: str, after: datetime, n: int) -> list[str]:
    return [f"{run.astimezone(ZoneInfo(zone)):%d %b %H:%M}" for run in trigger.preview(after, n)]


def test_start_and_end_are_dates_of_the_zone_and_both_count() -> None:
    trigger = cron("0 */12 * * *", zone=AUCKLAND, start="2031-06-01", end="2031-06-02")
    assert local(trigger, AUCKLAND, NOON, 9) == ["01 Jun 00:00", "01 Jun 12:00", "02 Jun 00:00", "02 Jun 12:00"]


def test_after_the_end_there_is_nothing() -> None:
    trigger = every("1m", end=date(2031, 5, 17))
    assert trigger.next_after(datetime(2031, 5, 17, 23, 58, 30, tzinfo=UTC)) == datetime(
        2031, 5, 17, 23, 59, tzinfo=UTC
    )
    assert trigger.next_after(datetime(2031, 5, 17, 23, 59, tzinfo=UTC)) is None
    assert trigger.preview(datetime(2040, 1, 1, tzinfo=UTC), 5) == []


@pytest.mark.parametrize(
    "trigger",
    [
        cron("0 6 * * *", excluded=["2031-05-18", date(2031, 5, 20)]),
        at("06:00", excluded=["2031-05-20", "2031-05-18", "2031-05-18"]),
        every("24h", anchor="2031-01-01T06:00:00Z", excluded=["2031-05-18", "2031-05-20"]),
        every("1h", between=("06:00", "06:30"), excluded=["2031-05-18", "2031-05-20"]),
    ],
    ids=lambda trigger: trigger.kind,
)
def test_nothing_runs_on_an_excluded_date(trigger: Trigger) -> None:
    assert local(trigger, "UTC", NOON, 3) == ["19 May 06:00", "21 May 06:00", "22 May 06:00"]


def test_a_night_is_cut_at_midnight_by_an_excluded_date() -> None:
    trigger = every("2h", between=("21:00", "03:00"), excluded=["2031-05-18"])
    assert local(trigger, "UTC", NOON, 5) == [
        "17 May 21:00",
        "17 May 23:00",
        "19 May 01:00",
        "19 May 03:00",
        "19 May 21:00",
    ]


def test_an_excluded_date_is_passed_at_once_however_dense_the_trigger() -> None:
    year = [date(2031, 5, 18) + timedelta(days=number) for number in range(365)]
    assert every(1, excluded=year).next_after(NOON.replace(hour=23, minute=59, second=59)) == datetime(
        2032, 5, 17, tzinfo=UTC
    )


def test_a_run_that_a_jump_moves_past_midnight_still_belongs_to_its_own_date() -> None:
    """Apia, 30 December 2011: the lost day's run comes on the 31st, unless either of the two is excluded."""
    after = datetime(2011, 12, 29, 23, tzinfo=UTC)
    for excluded, expected in [
        ([], ["31 Dec 00:00", "31 Dec 12:00"]),
        (["2011-12-30"], ["31 Dec 12:00", "01 Jan 12:00"]),
        (["2011-12-31"], ["01 Jan 12:00", "02 Jan 12:00"]),
    ]:
        trigger = at("12:00", zone="Pacific/Apia", excluded=excluded)
        assert local(trigger, "Pacific/Apia", after, 2) == expected


def test_a_date_is_excluded_even_where_an_hour_of_it_happens_twice() -> None:
    """St John's was set back from 00:01 on 7 November 2010 to 23:01 on the 6th."""
    trigger = cron("*/15 * * * *", zone="America/St_Johns", excluded=["2010-11-07"])
    found = trigger.preview(datetime(2010, 11, 7, 2, 0, tzinfo=UTC), 3)
    assert [f"{run:%d %H:%M}" for run in found] == ["07 02:15", "08 03:30", "08 03:45"]


def test_a_start_far_ahead_is_waited_for() -> None:
    trigger = cron("0 0 29 2 *", start="2061-01-01")
    assert trigger.next_after(NOON) == datetime(2064, 2, 29, tzinfo=UTC)


def test_what_is_excluded_for_eight_years_counts_as_never() -> None:
    trigger = cron("0 0 29 2 *", excluded=["2032-02-29", "2036-02-29"])
    assert trigger.next_after(NOON) is None
    with pytest.raises(Invalid, match="excluded"):
        check_has_run_after(trigger, NOON)


def test_a_trigger_that_has_ended_is_refused_where_it_is_saved() -> None:
    trigger = cron("0 2 * * *", end="2031-05-01")
    with pytest.raises(Invalid) as refusal:
        check_has_run_after(trigger, NOON)
    assert refusal.value.field == "end"
    assert check_has_run_after(cron("0 2 * * *"), NOON).line == "0 2 * * *"
    assert check_has_run_after(manual(), NOON) == manual()


def test_dates_do_not_change_when_a_run_is_asked_for_one_by_one() -> None:
    trigger = at(["06:00", "18:30"], zone="Europe/London", start="2031-05-01", excluded=["2031-05-04"])
    found = trigger.preview(datetime(2031, 4, 1, tzinfo=UTC), 20)
    assert all(trigger.next_after(earlier) == later for earlier, later in pairwise(found))
