"""An execution told step by step: the plan beside what has become of it so far. Only puts together what is there."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tenuto.model.schedules import plan_from_json
from tenuto.model.steps import Step

Record = dict[str, Any]


def told(execution: Record, attempts: list[Record], now: datetime) -> Record:
    """The execution with a list of its steps, in the order of the plan."""
    plan = plan_from_json(execution["plan"])
    by_step: dict[int, list[Record]] = {}
    for attempt in attempts:
        by_step.setdefault(attempt["step_index"], []).append(attempt)
    steps = [
        _step(step, group, number, by_step.get(number, []), execution, now) for group, number, step in plan.numbered()
    ]
    shown = {key: value for key, value in execution.items() if key != "plan"}
    return {**shown, "duration": _seconds(execution["started_at"], execution["ended_at"] or now), "steps": steps}


def _step(step: Step, group: int, number: int, attempts: list[Record], execution: Record, now: datetime) -> Record:
    last: Record = attempts[-1] if attempts else {}
    began = last.get("started_at")
    return {
        "group": group,
        "number": number,
        "name": step.name,
        "kind": step.kind,
        "target": step.target,
        "continue_on_failure": step.continue_on_failure,
        "status": last.get("status") or ("done_before" if group < execution["first_group"] else "not_run"),
        "reason": last.get("reason"),
        "attempt": last.get("attempt", 0),
        "task_id": last.get("task_id"),
        "activity_id": last.get("id"),
        "activities": [attempt["id"] for attempt in attempts],
        "run_at": last.get("run_at"),
        "started_at": began,
        "ended_at": last.get("ended_at"),
        "wait": _seconds(last["run_at"], began) if began is not None else None,
        "duration": _seconds(began, last.get("ended_at") or now) if began is not None else None,
        "progress": last.get("progress"),
        "worker": last.get("worker"),
        "error": _message(last),
        "last_error": _last_error(attempts),
    }


def _last_error(attempts: list[Record]) -> Record | None:
    """What went wrong with a step: in its last attempt, or, as long as it is tried again, in the latest before."""
    is_over = bool(attempts) and attempts[-1].get("ended_at") is not None
    for attempt in attempts[-1:] if is_over else reversed(attempts):
        if message := _message(attempt):
            return {"attempt": attempt["attempt"], "activity_id": attempt["id"], "message": message}
    return None


def _message(attempt: Record) -> str | None:
    return (attempt.get("error") or {}).get("message")


def _seconds(start: datetime, end: datetime) -> float:
    return max(0.0, (end - start).total_seconds())
