"""Executions (runs of a schedule) and the decision what the end of a step group means.

An execution is in progress until it is completed, failed or cancelled; these states are final. `decide_advance` is the
rule; `lifecycle.advancement` calls it under the execution's lock. The SQL statement ``finish_group`` of
store/work/executions.sql repeats the rule for groups without failures: a measured fast path (benchmark ``executions``).
Equivalence test: tests/lifecycle/test_advancement.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tenuto.model.definitions.schedules import Plan
from tenuto.model.validation import truncate_text

MAX_ERROR_LENGTH = 4000


class ExecutionState(StrEnum):
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StepState(StrEnum):
    """State of a step: that of its last attempt, or one of a step without attempts."""

    WAITING = "waiting"
    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    COMPLETED_WITH_WARNING = "completed_with_warning"
    COMPLETED_WITH_ERROR = "completed_with_error"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DONE_BEFORE = "done_before"
    """The execution that this one retries has done it."""
    NOT_RUN = "not_run"
    SKIPPED = "skipped"
    """Its condition was not met."""


@dataclass(frozen=True, slots=True)
class FailedStep:
    """A step whose last attempt failed, completed with an error or was cancelled. A warning counts as success."""

    position: int
    """In the plan, counted from 0."""
    reason: str


@dataclass(frozen=True, slots=True)
class StartNextGroup:
    group: int
    failed_step_count: int


@dataclass(frozen=True, slots=True)
class CompleteExecution:
    """There is no next group."""

    failed_step_count: int


@dataclass(frozen=True, slots=True)
class FailExecution:
    """A step failed that does not allow the execution to continue; the remaining steps do not run."""

    failed_step_count: int
    error: str


AdvanceDecision = StartNextGroup | CompleteExecution | FailExecution


def decide_advance(
    plan: Plan, group: int, failures: Sequence[FailedStep], failed_step_count_before: int
) -> AdvanceDecision:
    """Decide how an execution continues after a group has ended."""
    failed = failed_step_count_before + len(failures)
    fatal = [failure for failure in failures if not plan.step_at(failure.position).continue_on_failure]
    if fatal:
        return FailExecution(failed, _execution_error(plan, fatal))
    if group + 1 < len(plan.groups):
        return StartNextGroup(group + 1, failed)
    return CompleteExecution(failed)


def _execution_error(plan: Plan, fatal: Sequence[FailedStep]) -> str:
    causes = [f"step '{plan.step_at(failure.position).name}' {failure.reason}" for failure in fatal]
    return truncate_text("; ".join(causes), MAX_ERROR_LENGTH)


def describe_step_failure(status: str, reason: str | None, message: str | None) -> str:
    """Return why a step counts as failed, as part of the error of its execution."""
    if reason == "expired":
        return "expired before it started"
    how = {"cancelled": "was cancelled", "completed_with_error": "completed with an error"}.get(status, "failed")
    if reason == "timed_out":
        how = "timed out"
    elif reason == "lost":
        how = "was lost with its worker"
    return f"{how}: {message}" if message else how
