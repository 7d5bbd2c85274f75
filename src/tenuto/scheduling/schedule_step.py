"""A schedule as a step of another: its task starts an execution, lets its slot go, and is called again when that ended.

The execution has the id of the attempt's record, so that an attempt that dies in the middle and is looked at again
starts nothing twice. The next attempt after one that was lost goes on with the execution that one had started; only
what has failed is started anew. A database that is away is waited for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from tenuto.errors import EngineError
from tenuto.jobs.context import Context, PermanentFailure, PutAside
from tenuto.jobs.registry import Job, Using
from tenuto.logs import Log
from tenuto.model.policies import Policy, RetryPolicy
from tenuto.model.schedules import Overlap
from tenuto.model.steps import SCHEDULE
from tenuto.model.tasks import Aside
from tenuto.postgres.database import Connection, Database
from tenuto.service.polling_loop import patiently
from tenuto.store import executions, schedules
from tenuto.store.executions import NewExecution

log = Log("tenuto.steps")


class StepFailed(EngineError):
    """The execution a step stands for did not complete."""


def handler(open: Callable[[], Awaitable[Database]]) -> Job[..., Any]:
    """What runs the steps of this kind."""

    async def run_schedule(ctx: Context) -> dict[str, Any]:
        async def look() -> dict[str, Any]:
            return await _run(await open(), ctx)

        return await patiently(look, log, "what a step stands for cannot be looked at yet", task=str(ctx.task_id))

    return Job(run_schedule, SCHEDULE, Policy(RetryPolicy(max_retries=1)), Using(), isolated=False)


async def _run(database: Database, ctx: Context) -> dict[str, Any]:
    child = await executions.last_of_step(database, ctx.task_id, ctx.activity_id)
    if child is None or (child["state"] in ("failed", "cancelled") and child["id"] != ctx.activity_id):
        raise PutAside(
            Aside(execution=await database.transaction(lambda connection: _start(connection, database, ctx)))
        )
    if child["ended_at"] is None:
        raise PutAside(Aside(execution=child["id"]))
    if child["state"] != "completed":
        raise StepFailed(f"execution {child['id']} of {child['schedule_name']!r} {child['state']}: {child['error']}")
    if child["failed_steps"]:
        ctx.warn(f"{child['failed_steps']} steps of {child['schedule_name']!r} failed")
    return {"execution_id": str(child["id"]), "failed_steps": child["failed_steps"]}


async def _start(connection: Connection, database: Database, ctx: Context) -> UUID:
    """Begin the execution, or say which one has to end before it can."""
    schedule = await schedules.locked(connection, ctx.task.name)
    if schedule is None:
        raise PermanentFailure(f"there is no schedule named {ctx.task.name!r}")
    ours = ctx.task.execution_id
    if ours is not None and not await executions.lock_in_progress(connection, ours):
        return ctx.activity_id  # cancelled meanwhile: nothing more begins, and this step has been told to stop
    if not await executions.lock_step(connection, ctx.task):
        return ctx.activity_id  # it is to stop itself, or another's by now: who cancels it looks only once
    active = await schedules.active(connection, schedule.id)
    alone = schedule.definition.overlap is not Overlap.ALLOW
    if ctx.activity_id in active or await executions.is_over(connection, ctx.activity_id):
        return ctx.activity_id  # only the reply was lost
    if alone and active:
        if ours is not None and await executions.waits_for(connection, active[0], ours):
            # Plans free of circles, edited while old runs went on: each would wait for the other for ever.
            raise PermanentFailure(f"execution {active[0]} of {schedule.name!r} waits for this one")
        return active[0]
    now = database.clock.now()
    new = NewExecution(
        ctx.activity_id, schedule.id, schedule.name, schedule.version, "step", alone, schedule.plan, now, now,
        ctx.initiator, parent_task_id=ctx.task.id,
    )  # fmt: skip
    await executions.begin(connection, [new])
    await schedules.ran(connection, schedule.id, now)
    return ctx.activity_id
