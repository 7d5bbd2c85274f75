"""Records of executions and steps without a database, for tests and pictures of their drawing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tenuto.model.access.actors import ActorType
from tenuto.model.work.executions import ExecutionState
from tenuto.operations.work.executions import ExecutionDetails, StepDetails

NOW = datetime(2031, 5, 17, 12, tzinfo=UTC)


def make_step(number: int, group: int, state: Any, **more: Any) -> StepDetails:
    name = more.pop("name", f"step {number}")
    fields = {"kind": "job", "target": name, "continue_on_failure": False, "attempt": 1, "run_at": NOW, **more}
    return StepDetails(group=group, number=number, name=name, state=state, **fields)


def make_execution(*steps: StepDetails, **more: Any) -> ExecutionDetails:
    """Return an execution that started ten seconds ago."""
    id = UUID("01a1e242-455c-72c2-885f-37a6c45ee51c")
    optional = (
        "error", "ended_at", "paused_at", "paused_by", "initiator_id", "parent_task_id", "retry_of", "cancelled_at",
        "cancel_name", "cancel_type", "cancel_id", "cancel_reason", "interval_start",
    )  # fmt: skip
    fields: dict[str, Any] = {
        **dict.fromkeys(optional),
        "id": id,
        "schedule_id": id,
        "schedule_name": "Nightly HR Sync",
        "version": 1,
        "origin": "manual",
        "state": ExecutionState.IN_PROGRESS,
        "current_group": 0,
        "first_group": 0,
        "group_count": max(step.group for step in steps) + 1,
        "step_count": len(steps),
        "failed_step_count": 0,
        "due_at": NOW,
        "started_at": NOW - timedelta(seconds=10),
        "initiator_type": ActorType.USER,
        "initiator_name": "ana",
        "alone": False,
        "duration_seconds": 10.0,
        "steps": steps,
    }
    return ExecutionDetails(**(fields | more))
