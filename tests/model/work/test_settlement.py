"""Settlement (W5, W7, J2, J3, S10): the decision table for outcomes, and properties of every decision."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import count, product
from typing import Literal, TypeAlias
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.ids import new_id
from tenuto.model.access.actors import Actor
from tenuto.model.definitions.policies import MAX_WORKER_LOSSES, RetryPolicy, TaskPolicy
from tenuto.model.work.tasks import Outcome, OutcomeReason, OutcomeStatus, cancelled_outcome, lost_outcome, settle
from tests.support.model_values import NOON, make_held_task

WITHOUT_JITTER = RetryPolicy(max_attempts=3, base_seconds=60, factor=2, jitter=0)

OnLost: TypeAlias = Literal["retry", "fail"]
Verdict: TypeAlias = Literal["ends", "failed again", "lost again", "handed back"]

# (status, reason, may_retry, failures before, losses before, on_lost) -> verdict, with max_attempts=3
Row: TypeAlias = tuple[OutcomeStatus, OutcomeReason | None, bool, int, int, OnLost, Verdict]
BOTH: tuple[OnLost, OnLost] = ("retry", "fail")
UNTIL_THE_THIRD: list[tuple[int, Verdict]] = [(0, "failed again"), (1, "failed again"), (2, "ends"), (3, "ends")]


TABLE: list[Row] = [
    # a completed task ends
    (OutcomeStatus.COMPLETED, None, True, 0, 0, "retry", "ends"),
    (OutcomeStatus.COMPLETED_WITH_WARNING, None, True, 0, 0, "retry", "ends"),
    (OutcomeStatus.COMPLETED_WITH_ERROR, None, True, 0, 0, "retry", "ends"),
    # failures are retried until the third
    *(
        (OutcomeStatus.FAILED, reason, True, failures, losses, on_lost, verdict)
        for reason in (OutcomeReason.ERROR, OutcomeReason.TIMED_OUT, OutcomeReason.REFUSED)
        for failures, verdict in UNTIL_THE_THIRD
        for losses in (0, 2)
        for on_lost in BOTH
    ),
    # unless the job or its input rules out a retry
    *(
        (OutcomeStatus.FAILED, reason, False, failures, 0, "retry", "ends")
        for reason in (OutcomeReason.ERROR, OutcomeReason.REFUSED)
        for failures in (0, 2)
    ),
    # a cancelled task ends under every policy
    (OutcomeStatus.CANCELLED, OutcomeReason.REQUESTED, False, 0, 0, "retry", "ends"),
    (OutcomeStatus.CANCELLED, OutcomeReason.REQUESTED, True, 0, 0, "retry", "ends"),
    (OutcomeStatus.CANCELLED, OutcomeReason.REQUESTED, True, 2, 2, "fail", "ends"),
    # so does a step that its execution did not reach
    (OutcomeStatus.CANCELLED, OutcomeReason.NOT_RUN, False, 0, 0, "retry", "ends"),
    # and a task that expired before it started
    *(
        (OutcomeStatus.CANCELLED, OutcomeReason.EXPIRED, may_retry, failures, losses, on_lost, "ends")
        for may_retry in (False, True)
        for failures in (0, 2)
        for losses in (0, 2)
        for on_lost in BOTH
    ),
    # and a skipped step
    *(
        (OutcomeStatus.SKIPPED, None, may_retry, failures, 0, on_lost, "ends")
        for may_retry in (False, True)
        for failures in (0, 2)
        for on_lost in BOTH
    ),
    # a lost worker: retried until the third loss, whatever the failures
    (OutcomeStatus.FAILED, OutcomeReason.LOST, True, 0, 0, "retry", "lost again"),
    (OutcomeStatus.FAILED, OutcomeReason.LOST, True, 2, 0, "retry", "lost again"),
    (OutcomeStatus.FAILED, OutcomeReason.LOST, True, 0, 1, "retry", "lost again"),
    (OutcomeStatus.FAILED, OutcomeReason.LOST, True, 0, 2, "retry", "ends"),
    (OutcomeStatus.FAILED, OutcomeReason.LOST, True, 2, 2, "retry", "ends"),
    *(
        (OutcomeStatus.FAILED, OutcomeReason.LOST, True, failures, losses, "fail", "ends")
        for failures in (0, 2)
        for losses in (0, 1)
    ),
    # a task that was handed back is always retried, without counting a failure
    *(
        (OutcomeStatus.CANCELLED, OutcomeReason.HANDED_BACK, True, failures, losses, on_lost, "handed back")
        for failures in (0, 2)
        for losses in (0, 2)
        for on_lost in BOTH
    ),
]  # fmt: skip


def test_settlement_table_covers_every_status_and_reason() -> None:
    assert {row[0] for row in TABLE} == set(OutcomeStatus)
    assert {row[1] for row in TABLE} == {None, *OutcomeReason}


@pytest.mark.parametrize(("status", "reason", "may_retry", "failures", "losses", "on_lost", "verdict"), TABLE)
def test_settle_decides_by_the_table(
    status: OutcomeStatus,
    reason: OutcomeReason | None,
    may_retry: bool,
    failures: int,
    losses: int,
    on_lost: OnLost,
    verdict: Verdict,
) -> None:
    task = make_held_task(TaskPolicy(WITHOUT_JITTER, on_lost=on_lost), failures=failures, losses=losses)
    retry = settle(task, Outcome(status, reason, may_retry=may_retry), NOON, new_id).retry
    match verdict:
        case "ends":
            assert retry is None
        case "failed again":
            assert retry is not None
            assert (retry.failures, retry.losses) == (failures + 1, losses)
            assert retry.run_at == NOON + timedelta(seconds=60 * 2**failures)
        case "lost again":
            assert retry is not None
            assert (retry.failures, retry.losses) == (failures, losses + 1)
            assert retry.run_at >= NOON
        case "handed back":
            assert retry is not None
            assert (retry.failures, retry.losses, retry.run_at) == (failures, losses, NOON)


outcomes = st.builds(
    Outcome,
    status=st.sampled_from(OutcomeStatus),
    reason=st.none() | st.sampled_from(OutcomeReason),
    may_retry=st.booleans(),
    retry_at=st.none() | st.datetimes(timezones=st.just(NOON.tzinfo)),
)
any_policy = st.builds(
    TaskPolicy,
    st.builds(RetryPolicy, max_attempts=st.integers(1, 6)),
    on_lost=st.sampled_from(["retry", "fail"]),
)
small = st.integers(0, 6)


@given(any_policy, small, small, st.booleans())
def test_settle_never_retries_a_cancelled_task(policy: TaskPolicy, failures: int, losses: int, may_retry: bool) -> None:
    task = make_held_task(policy, failures=failures, losses=losses)
    outcome = cancelled_outcome(task, NOON, Actor.user("ana"))
    outcome.may_retry = may_retry
    assert settle(task, outcome, NOON, new_id).retry is None


@given(any_policy, small, small, outcomes)
def test_settle_ends_a_failed_task_exactly_if_retries_are_not_allowed_or_used_up(
    policy: TaskPolicy, failures: int, losses: int, outcome: Outcome
) -> None:
    outcome.status = OutcomeStatus.FAILED
    if outcome.reason in (OutcomeReason.LOST, OutcomeReason.HANDED_BACK):
        outcome.reason = OutcomeReason.ERROR
    task = make_held_task(policy, failures=failures, losses=losses)
    ends = not outcome.may_retry or failures + 1 >= policy.retry.max_attempts
    assert (settle(task, outcome, NOON, new_id).retry is None) == ends


@given(any_policy, small, small, outcomes)
def test_settle_counts_an_attempt_as_failure_or_loss_or_neither(
    policy: TaskPolicy, failures: int, losses: int, outcome: Outcome
) -> None:
    task = make_held_task(policy, failures=failures, losses=losses)
    retry = settle(task, outcome, NOON, new_id).retry
    if retry is not None:
        added = (retry.failures - failures, retry.losses - losses)
        by_reason = {OutcomeReason.LOST: (0, 1), OutcomeReason.HANDED_BACK: (0, 0)}
        assert added == by_reason.get(outcome.reason or OutcomeReason.ERROR, (1, 0))


@given(any_policy, small, small, outcomes)
def test_settle_gives_a_retry_a_new_activity_id(
    policy: TaskPolicy, failures: int, losses: int, outcome: Outcome
) -> None:
    numbers = count(1)
    task = make_held_task(policy, failures=failures, losses=losses)
    settlement = settle(task, outcome, NOON, lambda: UUID(int=next(numbers)))
    assert settlement.outcome is outcome
    assert settlement.task is task
    used = next(numbers) - 1
    assert used == (settlement.retry is not None)
    if settlement.retry is not None:
        assert settlement.retry.activity_id == UUID(int=1)


@given(any_policy, small, small, outcomes)
def test_settle_is_deterministic(policy: TaskPolicy, failures: int, losses: int, outcome: Outcome) -> None:
    task = make_held_task(policy, failures=failures, losses=losses)
    assert settle(task, outcome, NOON, lambda: UUID(int=7)) == settle(task, outcome, NOON, lambda: UUID(int=7))


def test_settle_retries_only_failed_attempts() -> None:
    generous = TaskPolicy(RetryPolicy(max_attempts=1000))
    ends = {
        (status, reason)
        for status, reason in product(OutcomeStatus, (None, *OutcomeReason))
        if settle(make_held_task(generous), Outcome(status, reason), NOON, new_id).retry is None
    }
    other_reasons = {
        None,
        OutcomeReason.ERROR,
        OutcomeReason.TIMED_OUT,
        OutcomeReason.REFUSED,
        OutcomeReason.REQUESTED,
        OutcomeReason.NOT_RUN,
        OutcomeReason.EXPIRED,
    }
    assert ends == {
        (status, reason) for status in OutcomeStatus if status is not OutcomeStatus.FAILED for reason in other_reasons
    }


def test_settle_ends_a_poison_task_after_three_worker_losses() -> None:
    task = make_held_task(losses=MAX_WORKER_LOSSES - 1)
    settlement = settle(task, lost_outcome(task, NOON), NOON, new_id)
    assert settlement.retry is None
    assert settlement.outcome.error is not None
    error = json.loads(settlement.outcome.error)
    assert (error["type"], error["step"]) == ("tenuto.SetAside", "bake")
    assert "3 times" in error["message"]


def test_settle_ends_a_task_with_on_lost_fail_at_its_first_loss() -> None:
    task = make_held_task(TaskPolicy(on_lost="fail"))
    settlement = settle(task, lost_outcome(task, NOON), NOON, new_id)
    assert settlement.retry is None
    assert settlement.outcome.error is not None
    assert json.loads(settlement.outcome.error)["type"] == "tenuto.Lost"


def test_settle_prefers_the_retry_instant_of_the_job() -> None:
    later = NOON + timedelta(hours=5)
    outcome = Outcome(OutcomeStatus.FAILED, OutcomeReason.ERROR, retry_at=later)
    retry = settle(make_held_task(TaskPolicy(WITHOUT_JITTER)), outcome, NOON, new_id).retry
    assert retry is not None
    assert retry.run_at == later


def test_retry_instant_of_the_job_does_not_allow_another_attempt() -> None:
    outcome = Outcome(OutcomeStatus.FAILED, OutcomeReason.ERROR, retry_at=NOON + timedelta(hours=5))
    assert settle(make_held_task(TaskPolicy(WITHOUT_JITTER), failures=2), outcome, NOON, new_id).retry is None


def test_cancelled_outcome_names_the_actor() -> None:
    outcome = cancelled_outcome(make_held_task(), NOON, Actor.user("ben", "Ben"))
    assert outcome.error is not None
    assert "Ben" in json.loads(outcome.error)["message"]
    assert (outcome.status, outcome.reason, outcome.may_retry) == (
        OutcomeStatus.CANCELLED,
        OutcomeReason.REQUESTED,
        False,
    )
