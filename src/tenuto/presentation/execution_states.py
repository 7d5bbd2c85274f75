"""States of an execution, its groups and its steps as they are shown, which the stored states do not distinguish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenuto.presentation.work_views import execution_display_state

_MOST_IMPORTANT_FIRST = ("failed", "cancelled", "running", "retrying", "queued", "waiting", "not run")
_OPEN_STATES = {"running", "retrying", "queued", "waiting"}


def step_state(step: Any, execution: Any) -> str:
    """Return the state of a step of an execution."""
    is_current = step.group == execution.current_group and execution.paused_at is None
    return display_step_state(step.state, step.reason, step.attempt, is_waiting_for_child=is_current, kind=step.kind)


def display_step_state(state: str, reason: str | None, attempt: int, *, kind: str, is_waiting_for_child: bool) -> str:
    """Return the state of a step, given the state and the reason of its last attempt.

    ``is_waiting_for_child``: the group of the step is the current one, and the execution is not paused.
    """
    match state:
        case "completed":
            return "done"
        case "completed_with_warning":
            return "done with warning"
        case "failed" | "completed_with_error":
            return "failed"
        case "running":
            return "running"
        case "cancelled":
            return "not run" if reason == "not_run" else "cancelled"
        case "queued" | "scheduled":
            return "retrying" if attempt > 1 else "queued"
        case "waiting":
            # A schedule step releases its worker while the child execution runs.
            return "running" if kind == "schedule" and is_waiting_for_child else "waiting"
        case status:
            return str(status).replace("_", " ")


def execution_state(execution: Any) -> str:
    """Return the state of an execution: running, paused, stopping, or how it ended."""
    state = execution_display_state(execution)
    return "running" if state == "in_progress" else state


def group_state(states: Sequence[str]) -> str:
    """Return the most important of the states of a group's steps."""
    present = set(states) - {"skipped"} or set(states)
    if "running" in present or (present & _OPEN_STATES and present - _OPEN_STATES):
        return "running"
    first = next(state for state in states if state in present)
    return next((state for state in _MOST_IMPORTANT_FIRST if state in present), first)
