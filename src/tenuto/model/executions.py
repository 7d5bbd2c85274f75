"""Executions: one run of a schedule, and what the end of a step group means for it.

An execution is in progress until it is completed, failed or cancelled; each of these is final. `advance` is the one
place that decides; the store asks it under the execution's lock and moves the rows as told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tenuto.model.schedules import Plan
from tenuto.model.stored_values import kept_text

MAX_ERROR = 4000


class ExecutionState(StrEnum):
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class FailedStep:
    """A step whose last attempt ended failed, with an error or cancelled. A warning is success."""

    number: int
    """Its position in the plan."""
    why: str


@dataclass(frozen=True, slots=True)
class GoOn:
    """The next group begins."""

    group: int
    failed: int


@dataclass(frozen=True, slots=True)
class Complete:
    """There is no next group."""

    failed: int


@dataclass(frozen=True, slots=True)
class Fail:
    """A step failed that others depend on; what is still to come does not run."""

    failed: int
    error: str


Advance = GoOn | Complete | Fail


def advance(plan: Plan, group: int, failures: Sequence[FailedStep], failed_before: int) -> Advance:
    """What the end of a group means: on, done, or stop."""
    failed = failed_before + len(failures)
    fatal = [failure for failure in failures if not plan.step(failure.number).continue_on_failure]
    if fatal:
        return Fail(failed, _error(plan, fatal))
    if group + 1 < len(plan.groups):
        return GoOn(group + 1, failed)
    return Complete(failed)


def _error(plan: Plan, fatal: Sequence[FailedStep]) -> str:
    told = [f"step '{plan.step(failure.number).name}' {failure.why}" for failure in fatal]
    return kept_text("; ".join(told), MAX_ERROR)


def failure_words(status: str, reason: str | None, message: str | None) -> str:
    """Why a step counts as failed, as the error of its execution tells it."""
    how = {"cancelled": "was cancelled", "completed_with_error": "completed with an error"}.get(status, "failed")
    if reason == "timed_out":
        how = "timed out"
    elif reason == "lost":
        how = "was lost with its worker"
    return f"{how}: {message}" if message else how
