"""Clock changes (S3, fault 18, B92): the rule for daylight saving time, case by case.

Expected runs are local times with their offset, computed by hand.
"""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from tenuto.model.triggers import Trigger, at, cron, every

LONDON, NEW_YORK, LORD_HOWE = "Europe/London", "America/New_York", "Australia/Lord_Howe"
KATHMANDU, CASABLANCA, APIA = "Asia/Kathmandu", "Africa/Casablanca", "Pacific/Apia"

# zone, line, asked after (UTC), the runs that follow
LINES = [
    # London: on 29 March 2026 01:00 becomes 02:00, on 25 October 02:00 becomes 01:00.
    (LONDON, "30 1 * * *", "2026-03-28 12:00", ["03-29 02:00+01:00", "03-30 01:30+01:00"]),
    (LONDON, "0 1 * * *", "2026-03-28 12:00", ["03-29 02:00+01:00", "03-30 01:00+01:00"]),
    (LONDON, "10,20,30 1 * * *", "2026-03-28 12:00", ["03-29 02:00+01:00", "03-30 01:10+01:00"]),
    (LONDON, "0 1-3 * * *", "2026-03-28 12:00", ["03-29 02:00+01:00", "03-29 03:00+01:00", "03-30 01:00+01:00"]),
    (LONDON, "30 0,1,2 * * *", "2026-03-29 00:00", ["03-29 00:30+00:00", "03-29 02:00+01:00", "03-29 02:30+01:00"]),
    (LONDON, "*/30 1 * * *", "2026-03-28 12:00", ["03-30 01:00+01:00", "03-30 01:30+01:00"]),
    (LONDON, "0 * * * *", "2026-03-28 23:30", ["03-29 00:00+00:00", "03-29 02:00+01:00", "03-29 03:00+01:00"]),
    (LONDON, "30 1 * * *", "2026-10-24 12:00", ["10-25 01:30+01:00", "10-26 01:30+00:00"]),
    (LONDON, "0 2 * * *", "2026-10-24 12:00", ["10-25 02:00+00:00", "10-26 02:00+00:00"]),
    # Asked while the hour repeats, cronsim answers with an instant that has passed.
    (LONDON, "30 1 * * *", "2026-10-25 01:15", ["10-26 01:30+00:00"]),
    (LONDON, "0 2 * * *", "2026-10-25 01:15", ["10-25 02:00+00:00", "10-26 02:00+00:00"]),
    (LONDON, "0 * * * *", "2026-10-24 23:30", ["10-25 01:00+01:00", "10-25 01:00+00:00", "10-25 02:00+00:00"]),
    (LONDON, "@hourly", "2026-10-25 00:00", ["10-25 01:00+00:00", "10-25 02:00+00:00"]),
    (LONDON, "@daily", "2026-10-24 12:00", ["10-25 00:00+01:00", "10-26 00:00+00:00"]),
    # A full range, a stepped range and a wildcard in a list are wildcards, too; cronsim looks at the first sign only.
    (LONDON, "0 0-23 * * *", "2026-10-24 23:30", ["10-25 01:00+01:00", "10-25 01:00+00:00", "10-25 02:00+00:00"]),
    (LONDON, "0-59/30 1 * * *", "2026-10-25 00:00", ["10-25 01:30+01:00", "10-25 01:00+00:00", "10-25 01:30+00:00"]),
    (LONDON, "0,*/30 1 * * *", "2026-10-25 00:00", ["10-25 01:30+01:00", "10-25 01:00+00:00", "10-25 01:30+00:00"]),
    # New York: on 8 March 2026 02:00 becomes 03:00, on 1 November 02:00 becomes 01:00.
    (NEW_YORK, "30 2 * * *", "2026-03-07 12:00", ["03-08 03:00-04:00", "03-09 02:30-04:00"]),
    (NEW_YORK, "30 1 * * *", "2026-10-31 12:00", ["11-01 01:30-04:00", "11-02 01:30-05:00"]),
    (NEW_YORK, "0 * * * *", "2026-11-01 04:00", ["11-01 01:00-04:00", "11-01 01:00-05:00", "11-01 02:00-05:00"]),
    (NEW_YORK, "*/30 * * * *", "2026-03-08 06:00", ["03-08 01:30-05:00", "03-08 03:00-04:00", "03-08 03:30-04:00"]),
    # Lord Howe changes by half an hour: on 4 October 2026 02:00 becomes 02:30, on 5 April 02:00 becomes 01:30.
    (LORD_HOWE, "10 2 * * *", "2026-10-03 12:00", ["10-04 02:30+11:00", "10-05 02:10+11:00"]),
    (LORD_HOWE, "30 2 * * *", "2026-10-03 12:00", ["10-04 02:30+11:00", "10-05 02:30+11:00"]),
    (LORD_HOWE, "45 1 * * *", "2026-04-04 12:00", ["04-05 01:45+11:00", "04-06 01:45+10:30"]),
    (LORD_HOWE, "*/30 1 * * *", "2026-04-04 14:00", ["04-05 01:30+11:00", "04-05 01:30+10:30", "04-06 01:00+10:30"]),
    # cronsim steps by whole hours over the half one and begins at 03:30.
    (LORD_HOWE, "*/10 3 * * *", "2026-10-03 12:00", ["10-04 03:00+11:00", "10-04 03:10+11:00", "10-04 03:20+11:00"]),
    # Kathmandu has no summer time; on 1 January 1986 00:00 became 00:15.
    (KATHMANDU, "5 0 * * *", "1985-12-31 12:00", ["01-01 00:15+05:45", "01-02 00:05+05:45"]),
    (KATHMANDU, "*/5 0 * * *", "1985-12-31 12:00", ["01-01 00:15+05:45", "01-01 00:20+05:45"]),
    (KATHMANDU, "0 2 * * *", "2026-03-28 12:00", ["03-29 02:00+05:45", "03-30 02:00+05:45"]),
    # Casablanca leaves +01:00 for Ramadan: on 15 February 2026 03:00 becomes 02:00, on 22 March 02:00 becomes 03:00.
    (CASABLANCA, "30 2 * * *", "2026-02-14 12:00", ["02-15 02:30+01:00", "02-16 02:30+00:00"]),
    (CASABLANCA, "30 2 * * *", "2026-03-21 12:00", ["03-22 03:00+01:00", "03-23 02:30+01:00"]),
    (CASABLANCA, "0 * * * *", "2026-02-15 00:30", ["02-15 02:00+01:00", "02-15 02:00+00:00", "02-15 03:00+00:00"]),
    # Apia crossed the date line: 29 December 2011 was followed by the 31st.
    (APIA, "0 12 * * *", "2011-12-29 12:00", ["12-29 12:00-10:00", "12-31 00:00+14:00", "12-31 12:00+14:00"]),
    (APIA, "0 0 30 * *", "2011-12-01 12:00", ["12-31 00:00+14:00", "01-30 00:00+14:00"]),
    (APIA, "0 * * * *", "2011-12-30 08:30", ["12-29 23:00-10:00", "12-31 00:00+14:00", "12-31 01:00+14:00"]),
    (APIA, "*/30 * 30 12 *", "2011-12-01 12:00", ["12-30 00:00+14:00", "12-30 00:30+14:00"]),
    # Cairo jumps at midnight: 24 April 2026 began at 01:00. St John's was set back at one minute past midnight.
    ("Africa/Cairo", "0 0 * * *", "2026-04-23 12:00", ["04-24 01:00+03:00", "04-25 00:00+03:00"]),
    ("America/St_Johns", "0 0 * * *", "2010-11-06 12:00", ["11-07 00:00-02:30", "11-08 00:00-03:30"]),
    ("Europe/Dublin", "30 1 * * *", "2026-10-24 12:00", ["10-25 01:30+01:00", "10-26 01:30+00:00"]),
]


def shown(trigger: Trigger, zone: str, after: str, n: int) -> list[str]:
    runs = trigger.preview(datetime.fromisoformat(after).replace(tzinfo=UTC), n)
    return [run.astimezone(ZoneInfo(zone)).isoformat(" ", "minutes")[5:] for run in runs]


@pytest.mark.parametrize(("zone", "line", "after", "expected"), LINES)
def test_cron_trigger_across_a_clock_change(zone: str, line: str, after: str, expected: list[str]) -> None:
    assert shown(cron(line, zone=zone), zone, after, len(expected)) == expected


def test_times_in_a_gap_run_together_at_the_clock_change() -> None:
    trigger = at(["00:59", "01:07", "01:53", "02:01"], days="sun", zone=LONDON)
    assert shown(trigger, LONDON, "2026-03-28 12:00", 4) == [
        "03-29 00:59+00:00",
        "03-29 02:00+01:00",
        "03-29 02:01+01:00",
        "04-05 00:59+01:00",
    ]


def test_times_trigger_runs_repeated_times_once() -> None:
    trigger = at(["01:07", "01:53"], zone=LONDON)
    assert shown(trigger, LONDON, "2026-10-24 12:00", 3) == [
        "10-25 01:07+01:00",
        "10-25 01:53+01:00",
        "10-26 01:07+00:00",
    ]


def test_times_trigger_runs_a_skipped_day_at_the_start_of_the_next() -> None:
    trigger = at("09:00", days="fri", zone=APIA)
    assert shown(trigger, APIA, "2011-12-24 12:00", 2) == ["12-31 00:00+14:00", "01-06 09:00+14:00"]


def test_interval_counts_real_time_across_a_clock_change() -> None:
    trigger = every("1h", zone=NEW_YORK)
    assert shown(trigger, NEW_YORK, "2026-03-08 05:30", 3) == [
        "03-08 01:00-05:00",
        "03-08 03:00-04:00",
        "03-08 04:00-04:00",
    ]
    assert shown(trigger, NEW_YORK, "2026-11-01 04:30", 3) == [
        "11-01 01:00-04:00",
        "11-01 01:00-05:00",
        "11-01 02:00-05:00",
    ]


def test_interval_window_has_more_runs_in_a_long_night_and_fewer_in_a_short_one() -> None:
    trigger = every("1h", between=("22:00", "06:00"), zone=LONDON)
    nights = {"ordinary": "2026-10-23 12:00", "long": "2026-10-24 12:00", "short": "2026-03-28 12:00"}
    clocks = {night: [run[6:11] for run in shown(trigger, LONDON, after, 10)] for night, after in nights.items()}
    assert clocks["ordinary"].index("06:00") == 8
    assert clocks["long"].index("06:00") == 9
    assert clocks["short"].index("06:00") == 7


def test_interval_window_opens_and_closes_at_the_first_instant_of_its_times() -> None:
    trigger = every("30m", between=("01:30", "02:30"), zone=LONDON)
    assert shown(trigger, LONDON, "2026-03-28 12:00", 3) == [
        "03-29 02:00+01:00",
        "03-29 02:30+01:00",
        "03-30 01:30+01:00",
    ]
    assert shown(trigger, LONDON, "2026-10-24 12:00", 5) == [
        "10-25 01:30+01:00",
        "10-25 01:30+00:00",
        "10-25 02:00+00:00",
        "10-25 02:30+00:00",
        "10-26 01:30+00:00",
    ]


@pytest.mark.parametrize(
    ("zone", "between", "days", "after", "expected"),
    [
        # The whole window is in the gap.
        (NEW_YORK, ("02:10", "02:40"), None, "2030-03-09 12:00", ["03-11 02:10-04:00", "03-11 02:20-04:00"]),
        (LONDON, ("01:10", "01:50"), None, "2026-03-28 12:00", ["03-30 01:10+01:00", "03-30 01:20+01:00"]),
        # Friday 30 December 2011 does not exist in Apia; the clock went from Thursday to Saturday.
        (APIA, ("09:00", "17:30"), "mon-fri", "2011-12-30 03:15", ["12-29 17:20-10:00", "12-29 17:30-10:00"]),
        (APIA, ("09:00", "17:30"), "mon-fri", "2011-12-30 03:30", ["01-02 09:00+14:00", "01-02 09:10+14:00"]),
        # The window closes within the gap, or opens within it.
        (LONDON, ("00:40", "01:30"), None, "2026-03-29 00:45", ["03-29 00:50+00:00", "03-30 00:40+01:00"]),
        (LONDON, ("01:30", "02:10"), None, "2026-03-28 12:00", ["03-29 02:00+01:00", "03-29 02:10+01:00"]),
        # The clock is set back while the window is open: it waits until the opening time is shown again.
        (LONDON, ("01:40", "02:00"), None, "2026-10-25 00:45", ["10-25 01:50+01:00", "10-25 01:40+00:00"]),
    ],
)
def test_interval_never_runs_outside_its_window_and_days(
    zone: str, between: tuple[str, str], days: str | None, after: str, expected: list[str]
) -> None:
    trigger = every("10m", between=between, days=days, zone=zone)
    assert shown(trigger, zone, after, len(expected)) == expected
