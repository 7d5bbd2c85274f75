"""Advance executions: when no task of the current step group is left, start the next group or end the execution.

`model.work.executions.decide_advance` decides, `store.work.executions` writes. The SQL statement ``finish_group`` of
store/work/executions.sql is a fast path that repeats the decision for groups without failures. Equivalence test: all
of tests/lifecycle/test_advancement.py runs on both paths (fixture ``both_completion_paths``). Executions whose steps
depend on earlier ones are advanced by `lifecycle.step_dependencies`, never by the fast path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from tenuto.lifecycle.step_dependencies import advance_dependent_execution
from tenuto.model.definitions.schedules import plan_from_json
from tenuto.model.work.executions import (
    AdvanceDecision,
    CompleteExecution,
    FailedStep,
    FailExecution,
    StartNextGroup,
    decide_advance,
    describe_step_failure,
)
from tenuto.model.work.tasks import Settlement, not_run_outcome
from tenuto.postgres.database import Connection
from tenuto.store.work import executions
from tenuto.store.work.executions import FinishedGroup, NextGroupClaim
from tenuto.store.work.task_outcomes import end_tasks


async def advance_executions(
    connection: Connection, ids: Iterable[UUID], now: datetime | None, next_claim: NextGroupClaim | None = None
) -> int:
    """Advance those of these executions whose current group is finished; return their number.

    The caller holds the locks of the executions and has written their tasks. Steps that a failed execution does not
    reach are ended as not run.
    """
    not_reached: list[Settlement] = []
    advanced_count, empty = await _advance_once(connection, sorted(ids), now, not_reached, next_claim)
    while empty:  # guard: executions.empty_group
        # No task will end in these groups, so nothing else would advance their executions
        _, empty = await _advance_once(connection, sorted(empty), now, not_reached)
    await end_tasks(connection, not_reached)
    return advanced_count


async def _advance_once(
    connection: Connection,
    ids: Sequence[UUID],
    now: datetime | None,
    not_reached: list[Settlement],
    next_claim: NextGroupClaim | None = None,
) -> tuple[int, list[UUID]]:
    """Advance by one group; return how many executions advanced, and those whose next group has no task."""
    starts: list[tuple[UUID, int, int]] = []
    ends: list[tuple[UUID, str, int, str | None]] = []
    errors: dict[UUID, str] = {}
    dependent_count = 0
    for group in await executions.list_finished_groups(connection, ids):
        if group.has_dependencies:
            dependent_count += await advance_dependent_execution(connection, group.execution_id, now)
            continue
        match _decide(group):
            case StartNextGroup(number, failed_step_count):
                starts.append((group.execution_id, number, failed_step_count))
            case CompleteExecution(failed_step_count):
                ends.append((group.execution_id, "completed", failed_step_count, None))
            case FailExecution(failed_step_count, error):
                ends.append((group.execution_id, "failed", failed_step_count, error))
                errors[group.execution_id] = error
    empty = await executions.start_groups(connection, starts, now, next_claim) if starts else []
    if ends:
        await executions.end_executions(connection, ends, now)
    if errors:
        not_reached += [
            Settlement(task, not_run_outcome(task, now or task.run_at, errors[task.execution_id]))
            for task in await executions.lock_unclaimed_steps(connection, errors)
            if task.execution_id is not None
        ]
    return len(starts) + len(ends) + dependent_count, empty


def _decide(group: FinishedGroup) -> AdvanceDecision:
    failures = [
        FailedStep(number, describe_step_failure(status, reason, message))
        for number, status, reason, message in group.parse_failures()
    ]
    if group.execution_state != "in_progress":  # cancelled, and its last running step has stopped
        return CompleteExecution(group.failed_before + len(failures))
    return decide_advance(plan_from_json(group.plan_json), group.group_index, failures, group.failed_before)
