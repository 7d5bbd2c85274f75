"""What the end of a step group means for its execution (S8, S9)."""

from __future__ import annotations

import pytest

from tenuto.model.executions import CompleteExecution, FailExecution, FailedStep, StartNextGroup, decide_advance, describe_step_failure
from tests.support.schedules import make_plan, make_step

BROKE = "failed: it broke"


def test_a_group_without_failures_leads_to_the_next() -> None:
    assert decide_advance(make_plan("a", "b"), 0, [], 0) == StartNextGroup(1, 0)


def test_after_the_last_group_the_execution_is_complete() -> None:
    assert decide_advance(make_plan("a", "b"), 1, [], 0) == CompleteExecution(0)


def test_a_failed_step_that_others_depend_on_fails_the_execution_and_is_named_with_its_reason() -> None:
    assert decide_advance(make_plan("a", "b"), 0, [FailedStep(0, BROKE)], 0) == FailExecution(1, "step 'a' failed: it broke")


def test_a_failed_step_in_the_last_group_fails_the_execution_too() -> None:
    assert isinstance(decide_advance(make_plan("a", "b"), 1, [FailedStep(1, BROKE)], 0), FailExecution)


def test_a_failed_step_that_may_fail_does_not_stop_the_others_but_is_counted() -> None:
    plan = make_plan(make_step("a", continue_on_failure=True), "b")
    assert decide_advance(plan, 0, [FailedStep(0, BROKE)], 0) == StartNextGroup(1, 1)
    assert decide_advance(plan, 1, [], 1) == CompleteExecution(1)


def test_every_failed_step_of_a_group_is_asked_by_itself() -> None:
    """The original asked one of them for all."""
    plan = make_plan([make_step("a", continue_on_failure=True), make_step("b"), make_step("c", continue_on_failure=True)], "d")
    may_fail = [FailedStep(0, BROKE), FailedStep(2, BROKE)]
    assert decide_advance(plan, 0, may_fail, 0) == StartNextGroup(1, 2)
    assert decide_advance(plan, 0, [may_fail[0], FailedStep(1, "timed out"), may_fail[1]], 0) == FailExecution(3, "step 'b' timed out")


def test_the_error_names_each_step_that_stopped_it_and_no_other() -> None:
    plan = make_plan([make_step("a"), make_step("b", continue_on_failure=True), make_step("c")])
    decided = decide_advance(plan, 0, [FailedStep(0, BROKE), FailedStep(1, BROKE), FailedStep(2, "was cancelled")], 0)
    assert decided == FailExecution(3, "step 'a' failed: it broke; step 'c' was cancelled")


def test_the_error_of_a_thousand_failed_steps_is_cut_to_a_length_that_can_be_read() -> None:
    decided = decide_advance(make_plan([f"s{n}" for n in range(1000)]), 0, [FailedStep(n, BROKE) for n in range(1000)], 0)
    assert isinstance(decided, FailExecution)
    assert decided.failed_step_count == 1000
    assert len(decided.error) <= 4100


def test_a_retry_that_begins_in_the_middle_goes_on_from_there() -> None:
    assert decide_advance(make_plan("a", "b", "c"), 1, [], 0) == StartNextGroup(2, 0)


@pytest.mark.parametrize(
    ("status", "reason", "message", "words"),
    [
        ("failed", "error", "no such host", "failed: no such host"),
        ("failed", "error", None, "failed"),
        ("failed", "timed_out", "took longer than 3 s", "timed out: took longer than 3 s"),
        ("failed", "lost", None, "was lost with its worker"),
        ("cancelled", "requested", "cancelled by Ana", "was cancelled: cancelled by Ana"),
        ("completed_with_error", None, "2 of 3", "completed with an error: 2 of 3"),
    ],
)
def test_the_reason_is_told_in_words(status: str, reason: str | None, message: str | None, words: str) -> None:
    assert describe_step_failure(status, reason, message) == words
