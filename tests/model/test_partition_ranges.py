"""Ranges of partitions: no two overlap, and nothing from now until the horizon is left out."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.model.partition_ranges import (
    DAYS_AHEAD,
    PartitionPeriod,
    PartitionRange,
    find_missing_ranges,
    find_period,
    find_replaceable_ranges,
    find_retained_start,
    parse_range,
)

MONTH, DAY = PartitionPeriod.MONTH, PartitionPeriod.DAY
NOW = datetime(2027, 6, 28, 12, tzinfo=UTC)


def suffixes(ranges: list[PartitionRange]) -> list[str]:
    return [each.suffix for each in ranges]


def parse(*found: str) -> list[PartitionRange]:
    ranges = [parse_range(each) for each in found]
    assert None not in ranges
    return [each for each in ranges if each is not None]


def test_days_are_created_a_week_ahead_and_across_the_end_of_a_month() -> None:
    assert suffixes(find_missing_ranges([], NOW, DAY)) == [
        "2027_06_28", "2027_06_29", "2027_06_30", "2027_07_01", "2027_07_02", "2027_07_03", "2027_07_04", "2027_07_05",
    ]  # fmt: skip


def test_days_follow_a_month_that_has_begun_and_replace_months_to_come() -> None:
    present = parse("2027_06", "2027_07", "2027_08")
    assert suffixes(find_replaceable_ranges(present, NOW, DAY)) == ["2027_07", "2027_08"]
    assert suffixes(find_missing_ranges(present[:1], NOW, DAY))[0] == "2027_07_01"
    assert suffixes(find_missing_ranges(present, NOW, DAY)) == ["2027_09_01"], "a month with rows stays, days follow it"


def test_day_after_a_month_is_created_when_the_period_changes() -> None:
    early = datetime(2027, 6, 2, tzinfo=UTC)
    assert suffixes(find_missing_ranges(parse("2027_06"), early, DAY)) == ["2027_07_01"]
    assert find_missing_ranges(parse("2027_06", "2027_07_01"), early, DAY) == []
    assert find_period(parse("2027_06", "2027_07_01")) is DAY


def test_months_follow_days_after_the_current_month_is_completed_by_days() -> None:
    present = parse("2027_06_27", "2027_06_28", "2027_07_01")
    assert suffixes(find_replaceable_ranges(present, NOW, MONTH)) == ["2027_07_01"]
    assert suffixes(find_missing_ranges(present[:2], NOW, MONTH)) == [
        "2027_06_29", "2027_06_30", "2027_07", "2027_08", "2027_09",
    ]  # fmt: skip


@given(
    st.lists(st.tuples(st.sampled_from([MONTH, DAY]), st.integers(0, 40)), max_size=12),
    st.sampled_from([MONTH, DAY]),
)
def test_any_changes_of_the_period_leave_no_gap_and_no_overlap(
    changes: list[tuple[PartitionPeriod, int]], last: PartitionPeriod
) -> None:
    present: list[PartitionRange] = []
    now = NOW
    for period, days in [*changes, (last, 0)]:
        now += timedelta(days=days)
        replaced = find_replaceable_ranges(present, now, period)
        present = [each for each in present if each not in replaced]
        present += find_missing_ranges(present, now, period)
        ordered = sorted(present, key=lambda each: each.start)
        assert all(before.end <= after.start for before, after in itertools.pairwise(ordered))
        for day in range(DAYS_AHEAD):
            at = now + timedelta(days=day)
            assert any(each.start <= at < each.end for each in present)
    assert find_missing_ranges(present, now, last) == []
    assert find_period(present) is last, "a process without the setting keeps the period"


@pytest.mark.parametrize("suffix", ["old", "default", "2027_13", "2027_02_30", "2027_06_1", "2027", "2027_06_01_x"])
def test_other_names_are_no_ranges(suffix: str) -> None:
    assert parse_range(suffix) is None


@pytest.mark.parametrize("suffix", ["2027_06", "2027_12", "2028_02_29"])
def test_range_is_known_by_its_suffix(suffix: str) -> None:
    assert suffixes(parse(suffix)) == [suffix]


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ([], MONTH),
        (["2027_04"], MONTH),
        (["2027_06"], MONTH),
        (["2027_06", "2027_07"], MONTH),
        (["2027_06", "2027_07_01"], DAY),
        (["2027_05", "2027_06_10"], DAY),
        (["2027_06_10", "2027_07"], MONTH),
    ],
)
def test_period_is_that_of_the_newest_partition_also_after_its_end(
    present: list[str], expected: PartitionPeriod
) -> None:
    assert find_period(parse(*present)) is expected


def test_retained_start_is_before_the_first_gap() -> None:
    present = parse("2027_04", "2027_05_30", "2027_05_31", "2027_06", "2027_07")
    assert find_retained_start(present, NOW) == datetime(2027, 5, 30, tzinfo=UTC)
    assert find_retained_start([], NOW) == datetime(2027, 6, 1, tzinfo=UTC)
