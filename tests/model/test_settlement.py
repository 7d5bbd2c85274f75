"""What an outcome means for its task (W5, W7, J2, J3, S10): the whole table, and what holds for every row of it."""

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
from tenuto.model.actors import Actor
from tenuto.model.policies import MAX_WORKER_LOSSES, TaskPolicy, RetryPolicy
from tenuto.model.tasks import Outcome, OutcomeReason, OutcomeStatus, cancelled_outcome, lost_outcome, settle
from tests.support.model_values import NOON, make_held_task

PLAIN = RetryPolicy(max_retries=3, base_seconds=60, factor=2, jitter=0)

OnLost: TypeAlias = Literal["retry", "fail"]
Verdict: TypeAlias = Literal["ends", "failed again", "lost again", "handed back"]

# (status, reason, may_retry, failures before, losses before, on_lost) -> verdict, with max_retries=3
Row: TypeAlias = tuple[OutcomeStatus, OutcomeReason | None, bool, int, int, OnLost, Verdict]
BOTH: tuple[OnLost, OnLost] = ("retry", "fail")
UNTIL_THE_THIRD: list[tuple[int, Verdict]] = [(0, "failed again"), (1, "failed again"), (2, "ends"), (3, "ends")]


TABLE: list[Row] = [
    # whatever is done is done
    (OutcomeStatus.COMPLETED, None, True, 0, 0, "retry", "ends"),
    (OutcomeStatus.COMPLETED_WITH_WARNING, None, True, 0, 0, "retry", "ends"),
    (OutcomeStatus.COMPLETED_WITH_ERROR, None, True, 0, 0, "retry", "ends"),
    # failures are tried again until the third
    *(
        (OutcomeStatus.FAILED, reason, True, failures, losses, on_lost, verdict)
        for reason in (OutcomeReason.ERROR, OutcomeReason.TIMED_OUT, OutcomeReason.REFUSED)
        for failures, verdict in UNTIL_THE_THIRD
        for losses in (0, 2)
        for on_lost in BOTH
    ),
    # unless the code, or an input that will never fit, says that it is of no use
    *(
        (OutcomeStatus.FAILED, reason, False, failures, 0, "retry", "ends")
        for reason in (OutcomeReason.ERROR, OutcomeReason.REFUSED)
        for failures in (0, 2)
    ),
    # a cancelled task is over, whatever its policy
    (OutcomeStatus.CANCELLED, OutcomeReason.REQUESTED, False, 0, 0, "retry", "ends"),
    (OutcomeStatus.CANCELLED, OutcomeReason.REQUESTED, True, 0, 0, "retry", "ends"),
    (OutcomeStatus.CANCELLED, OutcomeReason.REQUESTED, True, 2, 2, "fail", "ends"),
    # so is a step its execution never came to
    (OutcomeStatus.CANCELLED, OutcomeReason.NOT_RUN, False, 0, 0, "retry", "ends"),
    # a loss is the worker's doing: tried again until the third, failures do not count
    (OutcomeStatus.FAILED, OutcomeReason.LOST, True, 0, 0, "retry", "lost again"),
    (OutcomeStatus.FAILED, OutcomeReason.LOST, True, 2, 0, "retry", "lost again"),
    (OutcomeStatus.FAILED, OutcomeReason.LOST, True, 0, 1, "retry", "lost again"),
    (OutcomeStatus.FAILED, OutcomeReason.LOST, True, 0, 2, "retry", "ends"),
    (OutcomeStatus.FAILED, OutcomeReason.LOST, True, 2, 2, "retry", "ends"),
    *((OutcomeStatus.FAILED, OutcomeReason.LOST, True, failures, losses, "fail", "ends") for failures in (0, 2) for losses in (0, 1)),
    # handing back is nobody's fault and never the end
    *(
        (OutcomeStatus.CANCELLED, OutcomeReason.HANDED_BACK, True, failures, losses, on_lost, "handed back")
        for failures in (0, 2)
        for losses in (0, 2)
        for on_lost in BOTH
    ),
]  # fmt: skip


def test_the_table_speaks_of_every_status_and_every_reason() -> None:
    assert {row[0] for row in TABLE} == set(OutcomeStatus)
    assert {row[1] for row in TABLE} == {None, *OutcomeReason}


@pytest.mark.parametrize(("status", "reason", "may_retry", "failures", "losses", "on_lost", "verdict"), TABLE)
def test_an_outcome_means_what_the_table_says(
    status: OutcomeStatus,
    reason: OutcomeReason | None,
    may_retry: bool,
    failures: int,
    losses: int,
    on_lost: OnLost,
    verdict: Verdict,
) -> None:
    task = make_held_task(TaskPolicy(PLAIN, on_lost=on_lost), failures=failures, losses=losses)
    again = settle(task, Outcome(status, reason, may_retry=may_retry), NOON, new_id).retry
    match verdict:
        case "ends":
            assert again is None
        case "failed again":
            assert again is not None
            assert (again.failures, again.losses) == (failures + 1, losses)
            assert again.run_at == NOON + timedelta(seconds=60 * 2**failures)
        case "lost again":
            assert again is not None
            assert (again.failures, again.losses) == (failures, losses + 1)
            assert again.run_at >= NOON
        case "handed back":
            assert again is not None
            assert (again.failures, again.losses, again.run_at) == (failures, losses, NOON)


outcomes = st.builds(
    Outcome,
    status=st.sampled_from(OutcomeStatus),
    reason=st.none() | st.sampled_from(OutcomeReason),
    may_retry=st.booleans(),
    retry_at=st.none() | st.datetimes(timezones=st.just(NOON.tzinfo)),
)
any_policy = st.builds(
    TaskPolicy,
    st.builds(RetryPolicy, max_retries=st.integers(0, 6)),
    on_lost=st.sampled_from(["retry", "fail"]),
)
small = st.integers(0, 6)


@given(any_policy, small, small, st.booleans())
def test_a_cancelled_task_never_comes_back(policy: TaskPolicy, failures: int, losses: int, may_retry: bool) -> None:
    task = make_held_task(policy, failures=failures, losses=losses)
    outcome = cancelled_outcome(task, NOON, Actor.user("ana"))
    outcome.may_retry = may_retry
    assert settle(task, outcome, NOON, new_id).retry is None


@given(any_policy, small, small, outcomes)
def test_a_failure_is_final_exactly_if_retrying_is_of_no_use_or_used_up(
    policy: TaskPolicy, failures: int, losses: int, outcome: Outcome
) -> None:
    outcome.status = OutcomeStatus.FAILED
    if outcome.reason in (OutcomeReason.LOST, OutcomeReason.HANDED_BACK):
        outcome.reason = OutcomeReason.ERROR
    task = make_held_task(policy, failures=failures, losses=losses)
    ends = not outcome.may_retry or failures + 1 >= max(policy.retry.max_retries, 1)
    assert (settle(task, outcome, NOON, new_id).retry is None) == ends


@given(any_policy, small, small, outcomes)
def test_an_attempt_adds_to_failures_or_to_losses_or_to_neither_but_never_to_both(
    policy: TaskPolicy, failures: int, losses: int, outcome: Outcome
) -> None:
    task = make_held_task(policy, failures=failures, losses=losses)
    again = settle(task, outcome, NOON, new_id).retry
    if again is not None:
        added = (again.failures - failures, again.losses - losses)
        by_reason = {OutcomeReason.LOST: (0, 1), OutcomeReason.HANDED_BACK: (0, 0)}
        assert added == by_reason.get(outcome.reason or OutcomeReason.ERROR, (1, 0))


@given(any_policy, small, small, outcomes)
def test_what_is_repeated_leaves_a_record_of_its_own_and_takes_a_new_id(
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
def test_the_same_question_has_the_same_answer(policy: TaskPolicy, failures: int, losses: int, outcome: Outcome) -> None:
    task = make_held_task(policy, failures=failures, losses=losses)
    assert settle(task, outcome, NOON, lambda: UUID(int=7)) == settle(task, outcome, NOON, lambda: UUID(int=7))


def test_only_success_and_completed_with_error_end_without_asking_the_policy() -> None:
    generous = TaskPolicy(RetryPolicy(max_retries=1000))
    ends = {
        (status, reason)
        for status, reason in product(OutcomeStatus, (None, *OutcomeReason))
        if settle(make_held_task(generous), Outcome(status, reason), NOON, new_id).retry is None
    }
    unblamed = {None, OutcomeReason.ERROR, OutcomeReason.TIMED_OUT, OutcomeReason.REFUSED, OutcomeReason.REQUESTED, OutcomeReason.NOT_RUN}
    assert ends == {(status, reason) for status in OutcomeStatus if status is not OutcomeStatus.FAILED for reason in unblamed}


def test_a_task_whose_worker_died_three_times_is_set_aside_and_says_so() -> None:
    task = make_held_task(losses=MAX_WORKER_LOSSES - 1)
    settlement = settle(task, lost_outcome(task, NOON), NOON, new_id)
    assert settlement.retry is None
    assert settlement.outcome.error is not None
    error = json.loads(settlement.outcome.error)
    assert (error["type"], error["step"]) == ("tenuto.SetAside", "bake")
    assert "3 times" in error["message"]


def test_a_task_that_must_not_run_twice_fails_at_its_first_loss_and_says_lost() -> None:
    task = make_held_task(TaskPolicy(on_lost="fail"))
    settlement = settle(task, lost_outcome(task, NOON), NOON, new_id)
    assert settlement.retry is None
    assert settlement.outcome.error is not None
    assert json.loads(settlement.outcome.error)["type"] == "tenuto.Lost"


def test_the_wait_a_job_asks_for_goes_before_the_one_of_its_policy() -> None:
    later = NOON + timedelta(hours=5)
    outcome = Outcome(OutcomeStatus.FAILED, OutcomeReason.ERROR, retry_at=later)
    again = settle(make_held_task(TaskPolicy(PLAIN)), outcome, NOON, new_id).retry
    assert again is not None
    assert again.run_at == later


def test_asking_for_a_wait_does_not_make_a_last_failure_less_final() -> None:
    outcome = Outcome(OutcomeStatus.FAILED, OutcomeReason.ERROR, retry_at=NOON + timedelta(hours=5))
    assert settle(make_held_task(TaskPolicy(PLAIN), failures=2), outcome, NOON, new_id).retry is None


def test_who_cancelled_stands_in_the_record() -> None:
    outcome = cancelled_outcome(make_held_task(), NOON, Actor.user("ben", "Ben"))
    assert outcome.error is not None
    assert "Ben" in json.loads(outcome.error)["message"]
    assert (outcome.status, outcome.reason, outcome.may_retry) == (OutcomeStatus.CANCELLED, OutcomeReason.REQUESTED, False)
