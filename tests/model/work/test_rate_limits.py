"""Rate limits: the text, and a token bucket that never allows a start too many and never loses a token."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.model.work.rate_limits import RateLimit, parse_rate_limit
from tests.support.errors import raises_code

NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)
PERIODS = {"s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1)}
RATES = st.tuples(st.integers(1, 100_000), st.sampled_from("smh"), st.integers(1, 50)).map(
    lambda parts: RateLimit(parts[0], parts[1], min(parts[2], parts[0]))
)


@pytest.mark.parametrize(
    ("text", "limit", "stored"),
    [
        ("100/m", RateLimit(100, "m"), "100/m"),
        (" 5 / second ", RateLimit(5, "s"), "5/s"),
        ("1000/h burst 20", RateLimit(1000, "h", 20), "1000/h burst 20"),
        ("7/min burst 1", RateLimit(7, "m"), "7/m"),
    ],
)
def test_rate_limit_is_parsed_and_stored_in_one_form(text: str, limit: RateLimit, stored: str) -> None:
    assert parse_rate_limit(text) == limit
    assert str(limit) == stored
    assert parse_rate_limit(stored) == limit


@pytest.mark.parametrize("text", ["", "100", "m/100", "100/d", "1.5/s", "-1/s", "10/s burst", "ten/s"])
def test_text_that_is_no_rate_is_refused(text: str) -> None:
    with raises_code("rate_limit.text.invalid"):
        parse_rate_limit(text)


@pytest.mark.parametrize("text", ["0/s", "100001/s", "5/s burst 0", "5/s burst 6"])
def test_rate_out_of_range_is_refused(text: str) -> None:
    with raises_code("rate_limit.value.out_of_range"):
        parse_rate_limit(text)


def test_no_rate_limit_is_none() -> None:
    assert parse_rate_limit(None) is None


@given(RATES, st.lists(st.tuples(st.integers(0, 5_000_000), st.integers(1, 60)), max_size=60))
def test_no_window_has_a_start_too_many(rate: RateLimit, calls: list[tuple[int, int]]) -> None:
    """Callers ask at any time for any number of tokens and take all they get."""
    now, next_at = NOON, None
    starts: list[datetime] = []
    for wait, wanted in calls:
        now += timedelta(microseconds=wait)
        taken = min(wanted, rate.tokens_at(next_at, now))
        assert 0 <= taken <= rate.burst
        if taken:
            next_at = rate.next_after(next_at, now, taken)
        starts += [now] * taken
    period = PERIODS[rate.unit]
    for index, first in enumerate(starts):
        in_window = sum(1 for each in starts[index:] if each < first + period)
        assert in_window <= rate.count + rate.burst - 1


@given(RATES, st.integers(1, 200))
def test_caller_that_takes_each_token_as_it_comes_loses_none(rate: RateLimit, count: int) -> None:
    now, next_at = NOON, None
    for _ in range(count):
        if next_at is not None:
            assert rate.tokens_at(next_at, next_at - timedelta(microseconds=1)) == 0
            now = max(now, next_at)
        assert rate.tokens_at(next_at, now) >= 1
        next_at = rate.next_after(next_at, now, 1)
    assert next_at is not None
    assert now - NOON == rate.interval * max(count - rate.burst, 0)


@given(RATES, st.integers(0, 10_000_000_000))
def test_unused_bucket_fills_up_to_the_burst(rate: RateLimit, idle: int) -> None:
    next_at = rate.next_after(None, NOON, rate.burst)
    later = NOON + timedelta(microseconds=idle)
    expected = min(rate.burst, timedelta(microseconds=idle) // rate.interval)
    assert rate.tokens_at(next_at, later) == expected
