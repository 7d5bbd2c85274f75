"""Executions (S8, S9): the decision after a step group has ended."""

from __future__ import annotations

import pytest

from tenuto.model.work.executions import (
    CompleteExecution,
    FailedStep,
    FailExecution,
    StartNextGroup,
    decide_advance,
    describe_step_failure,
)
from tests.support.schedules import make_plan, make_step

BROKE = "failed: it broke"


def test_execution_continues_with_the_next_group_after_a_group_without_failures() -> None:
    assert decide_advance(make_plan("a", "b"), 0, [], 0) == StartNextGroup(1, 0)


def test_execution_completes_after_the_last_group() -> None:
    assert decide_advance(make_plan("a", "b"), 1, [], 0) == CompleteExecution(0)


def test_failed_step_fails_the_execution_with_step_and_reason() -> None:
    assert decide_advance(make_plan("a", "b"), 0, [FailedStep(0, BROKE)], 0) == FailExecution(
        1, "step 'a' failed: it broke"
    )


def test_failed_step_in_the_last_group_fails_the_execution() -> None:
    assert isinstance(decide_advance(make_plan("a", "b"), 1, [FailedStep(1, BROKE)], 0), FailExecution)


def test_step_with_continue_on_failure_does_not_stop_the_execution_but_is_counted() -> None:
    plan = make_plan(make_step("a", continue_on_failure=True), "b")
    assert decide_advance(plan, 0, [FailedStep(0, BROKE)], 0) == StartNextGroup(1, 1)
    assert decide_advance(plan, 1, [], 1) == CompleteExecution(1)


def test_continue_on_failure_applies_to_each_failed_step_of_a_group() -> None:
    plan = make_plan(
        [make_step("a", continue_on_failure=True), make_step("b"), make_step("c", continue_on_failure=True)], "d"
    )
    may_fail = [FailedStep(0, BROKE), FailedStep(2, BROKE)]
    assert decide_advance(plan, 0, may_fail, 0) == StartNextGroup(1, 2)
    assert decide_advance(plan, 0, [may_fail[0], FailedStep(1, "timed out"), may_fail[1]], 0) == FailExecution(
        3, "step 'b' timed out"
    )


def test_execution_error_names_only_the_steps_that_failed_it() -> None:
    plan = make_plan([make_step("a"), make_step("b", continue_on_failure=True), make_step("c")])
    decided = decide_advance(plan, 0, [FailedStep(0, BROKE), FailedStep(1, BROKE), FailedStep(2, "was cancelled")], 0)
    assert decided == FailExecution(3, "step 'a' failed: it broke; step 'c' was cancelled")


def test_execution_error_of_many_failed_steps_is_truncated() -> None:
    decided = decide_advance(
        make_plan([f"s{n}" for n in range(1000)]), 0, [FailedStep(n, BROKE) for n in range(1000)], 0
    )
    assert isinstance(decided, FailExecution)
    assert decided.failed_step_count == 1000
    assert len(decided.error) <= 4100


def test_execution_that_starts_at_a_later_group_continues_from_there() -> None:
    assert decide_advance(make_plan("a", "b", "c"), 1, [], 0) == StartNextGroup(2, 0)


@pytest.mark.parametrize(
    ("status", "reason", "message", "description"),
    [
        ("failed", "error", "no such host", "failed: no such host"),
        ("failed", "error", None, "failed"),
        ("failed", "timed_out", "took longer than 3 s", "timed out: took longer than 3 s"),
        ("failed", "lost", None, "was lost with its worker"),
        ("cancelled", "requested", "cancelled by Ana", "was cancelled: cancelled by Ana"),
        ("completed_with_error", None, "2 of 3", "completed with an error: 2 of 3"),
    ],
)
def test_step_failure_is_described_by_status_reason_and_message(
    status: str, reason: str | None, message: str | None, description: str
) -> None:
    assert describe_step_failure(status, reason, message) == description
