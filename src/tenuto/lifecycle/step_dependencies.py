"""Advance executions whose steps depend on earlier ones by values, conditions or edges.

`model.work.step_advance.decide_steps` decides, from the plan and the results so far; `store.work.executions` writes.
The decision is made in the transaction that ends a step, under the lock of the execution, and can be repeated at any
time: after a pause, by the repair of stuck executions, and when a retry begins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.model.definitions.run_references import may_refer_to_run, resolve_run_references
from tenuto.model.definitions.schedules import Plan, plan_from_json
from tenuto.model.work.executions import ExecutionState, FailExecution, describe_step_failure
from tenuto.model.work.logical_time import Occurrence
from tenuto.model.work.step_advance import (
    ExecutionProgress,
    MissingOutputs,
    Progress,
    StepDecision,
    StepProgress,
    decide_steps,
)
from tenuto.model.work.tasks import Outcome, Settlement, Task, not_run_outcome, refused_outcome, skipped_outcome
from tenuto.postgres.database import Connection
from tenuto.store.work import executions
from tenuto.store.work.executions import DependentExecution
from tenuto.store.work.task_outcomes import end_tasks

_PROGRESS = {
    "waiting": Progress.WAITING,
    "open": Progress.OPEN,
    "completed": Progress.SUCCEEDED,
    "completed_with_warning": Progress.SUCCEEDED,
    "skipped": Progress.SKIPPED,
}


async def advance_dependent_execution(connection: Connection, id: UUID, now: datetime | None) -> bool:
    """Start, skip or refuse the steps of an execution whose time has come, or end it; return whether it changed.

    The caller holds the lock of the execution and has written its tasks. An execution whose steps do not depend on
    earlier ones is left as it is.
    """
    execution = await executions.load_step_dependencies(connection, id)
    if execution is None:
        return False
    decision = await _decide(connection, id, execution)
    await _end_steps(connection, id, decision, now)
    if decision.starts and not execution.is_paused:  # guard: executions.dependent_step_waits_while_paused
        await executions.start_steps(connection, id, decision.starts, now)
    if decision.is_failing:
        await _end_unreached_steps(connection, id, decision.error or "", now)
        if decision.end is None:  # all steps that started early may have been ended before a worker claimed them
            again = await _decide(connection, id, execution)
            assert not again.writes_steps
            decision.end, decision.failed_step_count = again.end, again.failed_step_count
    if decision.end is not None:
        state = "failed" if isinstance(decision.end, FailExecution) else "completed"
        await executions.move_execution(connection, id, decision.group, decision.failed_step_count)
        await executions.end_executions(connection, [(id, state, decision.failed_step_count, decision.error)], now)
    elif (decision.group, decision.failed_step_count) != (execution.current_group, execution.failed_step_count):
        await executions.move_execution(connection, id, decision.group, decision.failed_step_count)
    starts = bool(decision.starts) and not execution.is_paused
    return starts or bool(decision.skips or decision.refusals) or decision.end is not None


async def collect_kept_results(connection: Connection, id: UUID, plan: Plan, first_group: int) -> str | None:
    """Return the results of the steps of an ended execution that its retry from a group does not repeat, as JSON.

    Outputs are kept only of steps that a repeated step names. None if no step depends on an earlier one.
    """
    if plan.step_dependencies is None:
        return None
    results: dict[str, Any] = {}
    kept = await executions.load_kept_results(connection, id)
    if kept is not None:
        results.update(json.loads(kept))
    repeated = {position for group, position, _ in plan.enumerate_steps() if group >= first_group}
    named = {name for group, _, step in plan.enumerate_steps() if group >= first_group for name in step.predecessors}
    places = {step.name: position for _, position, step in plan.enumerate_steps()}
    states = [each for each in await executions.list_step_progress(connection, id) if each.step_index not in repeated]
    wanted = {places[name] for name in named if name in places} & {each.step_index for each in states}
    outputs = await executions.list_step_outputs(connection, id, wanted)
    for each in states:
        results[str(each.step_index)] = {"state": each.state, "reason": each.reason}
        if outputs.get(each.step_index) is not None:
            results[str(each.step_index)]["output"] = outputs[each.step_index]
    return json.dumps(results, ensure_ascii=False)


async def _decide(connection: Connection, id: UUID, execution: DependentExecution) -> StepDecision:
    kept: Mapping[str, Mapping[str, Any]] = {} if execution.kept_json is None else json.loads(execution.kept_json)
    steps = {int(position): _to_progress(each["state"], each.get("reason"), None) for position, each in kept.items()}
    outputs = {int(position): each.get("output") for position, each in kept.items()}
    for state in await executions.list_step_progress(connection, id):
        steps[state.step_index] = _to_progress(state.state, state.reason, state.message)
    plan = plan_from_json(execution.plan_json)
    if may_refer_to_run(execution.plan_json):
        occurrence = Occurrence(execution.due_at, execution.interval_start)
        plan = plan.map_steps(
            lambda step: replace(step, arguments=resolve_run_references(step.kind, step.arguments, occurrence))
        )
    while True:
        decision = decide_steps(
            ExecutionProgress(
                plan,
                execution.first_group,
                execution.current_group,
                execution.state is ExecutionState.IN_PROGRESS,
                steps,
                outputs,
            )
        )
        if not isinstance(decision, MissingOutputs):
            return decision
        found = await executions.list_step_outputs(connection, id, decision.positions)
        outputs |= {position: found.get(position) for position in decision.positions}


def _to_progress(state: str, reason: str | None, message: str | None) -> StepProgress:
    if reason == "not_run":
        return StepProgress(Progress.NOT_RUN)
    progress = _PROGRESS.get(state, Progress.FAILED)
    return StepProgress(
        progress, describe_step_failure(state, reason, message) if progress is Progress.FAILED else ""
    )  # fmt: skip


async def _end_steps(connection: Connection, id: UUID, decision: StepDecision, now: datetime | None) -> None:
    """End the steps that are skipped or cannot start."""
    positions = sorted([*decision.skips, *decision.refusals])
    if not positions:
        return
    tasks = await executions.lock_waiting_steps(connection, id, positions)
    assert len(tasks) == len(positions)  # the lock of the execution keeps them

    def outcome(position: int, task: Task) -> Outcome:
        at = now or task.run_at
        if (reason := decision.skips.get(position)) is not None:
            return skipped_outcome(task, at, reason)
        return refused_outcome(task, at, decision.refusals[position])

    await end_tasks(
        connection,
        [Settlement(task, outcome(position, task)) for position, task in zip(positions, tasks, strict=True)],
    )


async def _end_unreached_steps(connection: Connection, id: UUID, error: str, now: datetime | None) -> None:
    """End the steps that a failing execution does not reach. Running ones continue to their end."""
    unclaimed = await executions.lock_unclaimed_steps(connection, [id])
    await end_tasks(
        connection, [Settlement(task, not_run_outcome(task, now or task.run_at, error)) for task in unclaimed]
    )
