"""`tenuto series`: the figures of the chart; `tenuto schedule explain`: a trigger of any kind without saving it."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from tests.cli.conftest import Shell

_BUCKETS = """
INSERT INTO tenuto.activity_rollups (bucket_seconds, dimension, label, bucket_at, completed, warnings, errors, failed,
                                     cancelled, wait_bins, run_bins)
SELECT 60, dimension, label, date_bin('60 s', now(), '2000-01-01 00:00:00+00'), 1234, 5, 1, 2, 3,
       array_fill(0, ARRAY[14]) || 1245, array_fill(0, ARRAY[38]) || 1245
FROM (VALUES ('all', ''), ('queue', 'mail'), ('name', 'resize')) AS divided (dimension, label)
"""


async def add_figures(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_BUCKETS)
    finally:
        await connection.close()


def test_series_prints_the_ended_attempts_of_each_span(shell: Shell, url: str) -> None:
    assert shell("task", "list").code == 0  # the first command creates the tables
    asyncio.run(add_figures(url))
    found = shell("series")
    assert found.code == 0, found.err
    lines = [line.split() for line in found.out.splitlines() if line.strip()]
    assert lines[0] == ["Last", "1", "h,", "1", "min", "each"]
    assert lines[1][:5] == ["from", "completed", "warning", "failed", "cancelled"]
    assert [line[-12:-8] for line in lines if "1,234" in line] == [["1,234", "5", "3", "3"]] * 2
    assert lines[-1][0] == "all"


def test_series_is_divided_and_filtered(shell: Shell, url: str) -> None:
    assert shell("task", "list").code == 0
    asyncio.run(add_figures(url))
    by_queue = shell("series", "--by", "queue").out.splitlines()
    assert by_queue[-1].split()[:2] == ["mail", "1,234"]
    report = shell("series", "--name", "resize", "-o", "json").json
    assert [(each["label"], each["total"]["completed_count"]) for each in report["series"]] == [("resize", 1234)]
    assert shell("series", "--name", "other", "-o", "json").json["series"][0]["total"]["completed_count"] == 0
    wrong = shell("series", "--by", "name", "--queue", "mail", "-o", "json")
    assert (wrong.code, wrong.error["code"]) == (2, "series.filter.conflict")
    too_long = shell("series", "--window", "10y", "-o", "json")
    assert too_long.error["field"] == "--window"


@pytest.mark.parametrize(
    ("options", "description"),
    [
        (["--cron", "0 2 * * *", "--zone", "Europe/London"], "Every day at 02:00, Europe/London"),
        (["--every", "15m", "--between", "22:00-06:00", "--on", "mon-fri"], "Every 15 minutes from 22:00 to 06:00"),
        (["--at", "06:00,18:30", "--exclude", "2031-12-25"], "Every day at 06:00 and 18:30"),
    ],
)
def test_schedule_explain_describes_triggers_of_every_kind(shell: Shell, options: list[str], description: str) -> None:
    found = shell("schedule", "explain", *options, "-n", "3", "-o", "json")
    assert found.code == 0, found.err
    assert found.json["description"].startswith(description)
    assert len(found.json["next_runs"]) == 3
    assert shell("schedule", "explain", *options).out.startswith(description)


def test_schedule_explain_names_clock_changes_and_invalid_options(shell: Shell) -> None:
    found = shell("schedule", "explain", "--at", "01:30", "--zone", "Europe/London").out
    assert "Clock changes" in found
    assert "01:30" in found.partition("Clock changes")[2]
    wrong = shell("schedule", "explain", "--at", "25:00", "-o", "json")
    assert (wrong.code, wrong.error["field"]) == (2, "--at")
    assert shell("schedule", "explain", "-o", "json").error["code"] == "schedule.trigger.missing"
