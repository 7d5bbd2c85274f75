"""Retries (J3): how many failures are allowed, and how long the waits between them are."""

from __future__ import annotations

import math
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.errors import Invalid
from tenuto.model.policies import MAX_WORKER_LOSSES, RetryPolicy, delay_after_loss
from tests.support.model_values import NOON

policies = st.builds(
    RetryPolicy,
    max_retries=st.integers(0, 1000),
    base_seconds=st.floats(0, 86_400 * 30),
    factor=st.floats(1, 100),
    cap_seconds=st.floats(0, 86_400 * 366),
    jitter=st.floats(0, 1),
)
seeds = st.text(max_size=40)
counts = st.integers(1, 1000)


@pytest.mark.parametrize(
    ("max_retries", "failures", "final"),
    [
        (0, 1, True),
        (1, 1, True),
        (2, 1, False),
        (2, 2, True),
        (3, 1, False),
        (3, 2, False),
        (3, 3, True),
        (3, 4, True),
    ],
)
def test_max_retries_counts_failures_and_none_is_as_good_as_one(max_retries: int, failures: int, final: bool) -> None:
    assert RetryPolicy(max_retries=max_retries).is_final_failure(failures) is final


def test_waits_grow_by_the_factor_until_the_cap() -> None:
    policy = RetryPolicy(max_retries=9, base_seconds=10, factor=3, cap_seconds=200, jitter=0)
    assert [policy.delay_after(n, "seed").total_seconds() for n in range(1, 6)] == [10, 30, 90, 200, 200]


def test_a_final_failure_has_no_next_run() -> None:
    policy = RetryPolicy(max_retries=2, base_seconds=10, jitter=0)
    assert policy.next_attempt_at(1, NOON, "seed") == NOON + timedelta(seconds=10)
    assert policy.next_attempt_at(2, NOON, "seed") is None


@given(policies, counts, seeds)
def test_the_next_run_is_missing_exactly_if_the_failure_is_final(policy: RetryPolicy, failures: int, seed: str) -> None:
    assert (policy.next_attempt_at(failures, NOON, seed) is None) == policy.is_final_failure(failures)


@given(policies, counts, seeds)
def test_a_wait_is_never_longer_than_the_cap_and_never_shorter_than_jitter_allows(
    policy: RetryPolicy, failures: int, seed: str
) -> None:
    grown = Fraction(policy.base_seconds) * Fraction(policy.factor) ** (failures - 1)
    whole = float(min(grown, Fraction(policy.cap_seconds)))
    wait = policy.delay_after(failures, seed).total_seconds()
    assert whole * (1 - policy.jitter) - 1e-5 <= wait <= whole + 1e-5


@given(policies, counts, seeds)
def test_the_same_failure_waits_the_same_time_whoever_asks(policy: RetryPolicy, failures: int, seed: str) -> None:
    assert policy.delay_after(failures, seed) == policy.delay_after(failures, seed)


@given(counts, seeds, st.floats(1, 10))
def test_without_jitter_no_wait_is_shorter_than_the_one_before(failures: int, seed: str, factor: float) -> None:
    policy = RetryPolicy(max_retries=1000, factor=factor, jitter=0)
    assert policy.delay_after(failures, seed) <= policy.delay_after(failures + 1, seed)


def test_a_wave_of_failures_comes_back_spread_out() -> None:
    policy = RetryPolicy(base_seconds=100, jitter=0.2)
    waits = {policy.delay_after(1, f"task {n}").total_seconds() for n in range(1000)}
    assert len(waits) > 900
    assert min(waits) < 82
    assert max(waits) > 98


def test_the_first_loss_is_tried_again_at_once_and_later_ones_ever_more_slowly() -> None:
    waits = [delay_after_loss(losses).total_seconds() for losses in range(1, MAX_WORKER_LOSSES + 2)]
    assert waits[0] == 0
    assert waits[1] > 0
    assert waits == sorted(waits)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_retries", -1),
        ("max_retries", 1001),
        ("base_seconds", -0.1),
        ("base_seconds", math.nan),
        ("base_seconds", math.inf),
        ("factor", 0.99),
        ("factor", 101),
        ("cap_seconds", -1),
        ("cap_seconds", math.nan),
        ("jitter", -0.1),
        ("jitter", 1.1),
        ("jitter", math.nan),
    ],
)
def test_a_policy_out_of_bounds_is_refused_by_the_name_of_its_field(field: str, value: float) -> None:
    with pytest.raises(Invalid) as refusal:
        RetryPolicy(**{field: value})  # type: ignore[arg-type]
    assert field in str(refusal.value)
