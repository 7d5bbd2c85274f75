"""Calendar limits (S3): start, end and excluded dates are local dates of the zone; the end is inclusive."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from tenuto.model.triggers import Trigger, at, check_has_run_after, cron, every, manual
from tests.support.errors import raises_code

AUCKLAND = "Pacific/Auckland"
NOON = datetime(2031, 5, 17, 12, tzinfo=UTC)


def local(trigger: Trigger, zone: str, after: datetime, n: int) -> list[str]:
    return [f"{run.astimezone(ZoneInfo(zone)):%d %b %H:%M}" for run in trigger.preview(after, n)]


def test_trigger_start_and_end_are_inclusive_dates_of_the_zone() -> None:
    trigger = cron("0 */12 * * *", zone=AUCKLAND, start="2031-06-01", end="2031-06-02")
    assert local(trigger, AUCKLAND, NOON, 9) == ["01 Jun 00:00", "01 Jun 12:00", "02 Jun 00:00", "02 Jun 12:00"]


def test_trigger_has_no_run_after_its_end() -> None:
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
def test_trigger_does_not_run_on_excluded_dates(trigger: Trigger) -> None:
    assert local(trigger, "UTC", NOON, 3) == ["19 May 06:00", "21 May 06:00", "22 May 06:00"]


def test_excluded_date_cuts_an_overnight_window_at_midnight() -> None:
    trigger = every("2h", between=("21:00", "03:00"), excluded=["2031-05-18"])
    assert local(trigger, "UTC", NOON, 5) == [
        "17 May 21:00",
        "17 May 23:00",
        "19 May 01:00",
        "19 May 03:00",
        "19 May 21:00",
    ]


def test_dense_trigger_skips_an_excluded_date_quickly() -> None:
    year = [date(2031, 5, 18) + timedelta(days=number) for number in range(365)]
    assert every(1, excluded=year).next_after(NOON.replace(hour=23, minute=59, second=59)) == datetime(
        2032, 5, 17, tzinfo=UTC
    )


def test_run_moved_past_midnight_by_a_clock_change_belongs_to_its_date() -> None:
    """Apia skipped 30 December 2011: its run comes on the 31st, unless either of the two is excluded."""
    after = datetime(2011, 12, 29, 23, tzinfo=UTC)
    for excluded, expected in [
        ([], ["31 Dec 00:00", "31 Dec 12:00"]),
        (["2011-12-30"], ["31 Dec 12:00", "01 Jan 12:00"]),
        (["2011-12-31"], ["01 Jan 12:00", "02 Jan 12:00"]),
    ]:
        trigger = at("12:00", zone="Pacific/Apia", excluded=excluded)
        assert local(trigger, "Pacific/Apia", after, 2) == expected


def test_excluded_date_with_a_repeated_hour_has_no_runs() -> None:
    """St John's was set back from 00:01 on 7 November 2010 to 23:01 on the 6th."""
    trigger = cron("*/15 * * * *", zone="America/St_Johns", excluded=["2010-11-07"])
    found = trigger.preview(datetime(2010, 11, 7, 2, 0, tzinfo=UTC), 3)
    assert [f"{run:%d %H:%M}" for run in found] == ["07 02:15", "08 03:30", "08 03:45"]


def test_trigger_with_a_distant_start_has_its_first_run_there() -> None:
    trigger = cron("0 0 29 2 *", start="2061-01-01")
    assert trigger.next_after(NOON) == datetime(2064, 2, 29, tzinfo=UTC)


def test_trigger_excluded_for_eight_years_never_fires() -> None:
    trigger = cron("0 0 29 2 *", excluded=["2032-02-29", "2036-02-29"])
    assert trigger.next_after(NOON) is None
    with raises_code("schedule.trigger.never_fires") as rejected:
        check_has_run_after(trigger, NOON)
    assert rejected.value.field == "excluded"


def test_ended_trigger_is_rejected() -> None:
    trigger = cron("0 2 * * *", end="2031-05-01")
    with raises_code("schedule.trigger.never_fires") as rejected:
        check_has_run_after(trigger, NOON)
    assert rejected.value.field == "end"
    assert check_has_run_after(cron("0 2 * * *"), NOON).line == "0 2 * * *"
    assert check_has_run_after(manual(), NOON) == manual()


def test_trigger_preview_within_dates_equals_repeated_next_runs() -> None:
    trigger = at(["06:00", "18:30"], zone="Europe/London", start="2031-05-01", excluded=["2031-05-04"])
    found = trigger.preview(datetime(2031, 4, 1, tzinfo=UTC), 20)
    assert all(trigger.next_after(earlier) == later for earlier, later in pairwise(found))
