"""Schedule as a step of another schedule: the task of the step starts a child execution and defers until it has ended.

The child has the id of the attempt, so a repeated attempt starts no second child. The next attempt after a lost one
continues with the child of that attempt, unless the child failed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from tenuto.errors import EngineError
from tenuto.jobs.context import Context, PermanentFailure, TaskDeferred
from tenuto.jobs.registry import Job, TaskOptions
from tenuto.logs import Log
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.model.definitions.schedules import OverlapPolicy
from tenuto.model.definitions.steps import SCHEDULE
from tenuto.model.work.tasks import Deferral
from tenuto.postgres.database import Connection, Database
from tenuto.service.polling_loop import retry_while_unavailable
from tenuto.store.definitions import schedules
from tenuto.store.work import executions
from tenuto.store.work.executions import NewExecution

log = Log("tenuto.steps")


class StepFailed(EngineError):
    """The child execution or run of a step did not complete."""


def schedule_step_job(open: Callable[[], Awaitable[Database]]) -> Job[..., Any]:
    """Return the job that runs schedule steps."""

    async def run_schedule(ctx: Context) -> dict[str, Any]:
        async def check() -> dict[str, Any]:
            return await _run_child(await open(), ctx)

        return await retry_while_unavailable(check, log, "check of step postponed", task_id=str(ctx.task_id))

    return Job(run_schedule, SCHEDULE, TaskPolicy(RetryPolicy(max_attempts=1)), TaskOptions(), isolated=False)


async def _run_child(database: Database, ctx: Context) -> dict[str, Any]:
    child = await executions.load_last_child_of_step(database, ctx.task_id, ctx.activity_id)
    if child is None or (child.state in ("failed", "cancelled") and child.id != ctx.activity_id):
        raise TaskDeferred(
            Deferral(
                execution_id=await database.transaction(lambda connection: _start_child(connection, database, ctx))
            )
        )
    if child.ended_at is None:
        raise TaskDeferred(Deferral(execution_id=child.id))
    if child.state != "completed":
        raise StepFailed(
            f"execution {child.id} of {child.schedule_name!r} {child.state}: {child.error}",
            code="step.schedule.execution_failed",
        )
    if child.failed_step_count:
        ctx.warn(f"{child.failed_step_count} steps of {child.schedule_name!r} failed")
    return {"execution_id": str(child.id), "failed_steps": child.failed_step_count}


async def _start_child(connection: Connection, database: Database, ctx: Context) -> UUID:
    """Start the child execution; return the id of the execution to wait for."""
    schedule = await schedules.lock_schedule(connection, ctx.task.name)
    if schedule is None:
        raise PermanentFailure(f"schedule {ctx.task.name!r} does not exist", code="schedule.not_found")
    parent_id = ctx.task.execution_id
    # guard: executions.cancelled_starts_no_child
    if parent_id is not None and not await executions.lock_if_in_progress(connection, parent_id):
        return ctx.activity_id  # the parent execution was cancelled; this step is about to be stopped
    if not await executions.lock_step(connection, ctx.task):
        return ctx.activity_id  # the step was cancelled or lost; its canceller queries children only once
    active = await schedules.list_active_executions(connection, schedule.id)
    exclusive = schedule.definition.overlap is not OverlapPolicy.ALLOW
    # guard: executions.ended_child
    if ctx.activity_id in active or await executions.is_finished(connection, ctx.activity_id):
        return ctx.activity_id  # our own commit, whose reply was lost
    if exclusive and active:
        if parent_id is not None and await executions.waits_for(connection, active[0], parent_id):
            # The schedules were edited during their runs; the two runs would wait for each other.
            raise PermanentFailure(
                f"execution {active[0]} of {schedule.name!r} waits for this execution",
                code="execution.wait_cycle",
                remedy="remove one of the two schedule steps",
            )
        return active[0]
    now = database.clock.now()
    new = NewExecution(
        ctx.activity_id, schedule.id, schedule.name, schedule.version, "step", exclusive, schedule.plan, now, now,
        ctx.initiator, parent_task_id=ctx.task.id,
    )  # fmt: skip
    await executions.create_executions(connection, [new])
    await schedules.record_manual_run(connection, schedule.id, now)
    return ctx.activity_id
