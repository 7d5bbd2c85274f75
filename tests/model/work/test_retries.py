"""Retry policy (J3): the number of allowed failures and the delays between them."""

from __future__ import annotations

import math
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.model.definitions.policies import (
    MAX_WORKER_LOSSES,
    RetryPolicy,
    TaskPolicy,
    default_step_policy,
    delay_after_loss,
)
from tests.support.errors import raises_code
from tests.support.model_values import NOON

policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 1000),
    base_seconds=st.floats(0, 86_400 * 30),
    factor=st.floats(1, 100),
    cap_seconds=st.floats(0, 86_400 * 366),
    jitter=st.floats(0, 1),
)
seeds = st.text(max_size=40)
counts = st.integers(1, 1000)


@pytest.mark.parametrize(
    ("max_attempts", "failures", "final"),
    [
        (1, 1, True),
        (2, 1, False),
        (2, 2, True),
        (3, 1, False),
        (3, 2, False),
        (3, 3, True),
        (3, 4, True),
    ],
)
def test_retry_policy_max_attempts_counts_failures(max_attempts: int, failures: int, final: bool) -> None:
    assert RetryPolicy(max_attempts=max_attempts).is_final_failure(failures) is final


def test_default_retry_policy_spreads_its_attempts_over_hours() -> None:
    policy = RetryPolicy()
    hours = [
        sum(policy.delay_after(n, seed).total_seconds() for n in range(1, policy.max_attempts)) / 3600
        for seed in ("a", "b", "c")
    ]
    assert all(5 < each < 6.5 for each in hours)


def test_step_has_three_attempts_unless_its_job_has_a_policy() -> None:
    assert default_step_policy(TaskPolicy(timeout_seconds=5)) == TaskPolicy(RetryPolicy(max_attempts=3), 5)
    own = TaskPolicy(RetryPolicy(max_attempts=7))
    assert default_step_policy(own) is own


def test_retry_delays_grow_by_the_factor_up_to_the_cap() -> None:
    policy = RetryPolicy(max_attempts=9, base_seconds=10, factor=3, cap_seconds=200, jitter=0)
    assert [policy.delay_after(n, "seed").total_seconds() for n in range(1, 6)] == [10, 30, 90, 200, 200]


def test_final_failure_has_no_next_attempt() -> None:
    policy = RetryPolicy(max_attempts=2, base_seconds=10, jitter=0)
    assert policy.next_attempt_at(1, NOON, "seed") == NOON + timedelta(seconds=10)
    assert policy.next_attempt_at(2, NOON, "seed") is None


@given(policies, counts, seeds)
def test_next_attempt_is_missing_exactly_for_final_failures(policy: RetryPolicy, failures: int, seed: str) -> None:
    assert (policy.next_attempt_at(failures, NOON, seed) is None) == policy.is_final_failure(failures)


@given(policies, counts, seeds)
def test_retry_delay_is_within_cap_and_jitter(policy: RetryPolicy, failures: int, seed: str) -> None:
    grown = Fraction(policy.base_seconds) * Fraction(policy.factor) ** (failures - 1)
    whole = float(min(grown, Fraction(policy.cap_seconds)))
    delay = policy.delay_after(failures, seed).total_seconds()
    assert whole * (1 - policy.jitter) - 1e-5 <= delay <= whole + 1e-5


@given(policies, counts, seeds)
def test_retry_delay_is_deterministic(policy: RetryPolicy, failures: int, seed: str) -> None:
    assert policy.delay_after(failures, seed) == policy.delay_after(failures, seed)


@given(counts, seeds, st.floats(1, 10))
def test_retry_delays_without_jitter_do_not_decrease(failures: int, seed: str, factor: float) -> None:
    policy = RetryPolicy(max_attempts=1000, factor=factor, jitter=0)
    assert policy.delay_after(failures, seed) <= policy.delay_after(failures + 1, seed)


def test_retry_jitter_spreads_simultaneous_failures() -> None:
    policy = RetryPolicy(base_seconds=100, jitter=0.2)
    delays = {policy.delay_after(1, f"task {n}").total_seconds() for n in range(1000)}
    assert len(delays) > 900
    assert min(delays) < 82
    assert max(delays) > 98


def test_first_worker_loss_is_retried_immediately_and_later_ones_with_growing_delay() -> None:
    delays = [delay_after_loss(losses).total_seconds() for losses in range(1, MAX_WORKER_LOSSES + 2)]
    assert delays[0] == 0
    assert delays[1] > 0
    assert delays == sorted(delays)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_attempts", 0),
        ("max_attempts", 1001),
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
def test_retry_policy_out_of_range_is_rejected(field: str, value: float) -> None:
    with raises_code("retry.value.out_of_range") as rejected:
        RetryPolicy(**{field: value})  # type: ignore[arg-type]
    assert field in str(rejected.value)
