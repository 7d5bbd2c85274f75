"""Cancel, pause, resume and retry executions.

Each operation is one transaction under the lock of the execution, in the lock order of `completion.finish`. A
transaction is sent again when its reply is lost, so each operation recognises its own earlier commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

from tenuto.errors import Conflict, NotFound
from tenuto.ids import new_id
from tenuto.lifecycle.advancement import advance_executions
from tenuto.lifecycle.step_dependencies import advance_dependent_execution, collect_kept_results
from tenuto.model.access.actors import Actor
from tenuto.model.definitions.schedules import OverlapPolicy, plan_from_json
from tenuto.model.work.tasks import Settlement, cancelled_outcome
from tenuto.postgres.database import Connection, Database
from tenuto.store.definitions import schedules
from tenuto.store.work import executions
from tenuto.store.work.executions import NewExecution
from tenuto.store.work.task_outcomes import end_tasks


async def cancel_execution(
    database: Database, id: UUID, now: datetime, by: Actor, reason: str | None = None
) -> Literal["cancelled", "stopping"]:
    """Cancel an execution: remove its unclaimed steps and request that its running steps stop."""

    async def cancel(connection: Connection) -> Literal["cancelled", "stopping"]:
        if id not in await cancel_executions_in_transaction(connection, [id], now, by, reason):
            raise _NotChanged
        return "cancelled" if await executions.is_finished(connection, id) else "stopping"

    try:
        return await database.transaction(cancel)
    except _NotChanged:
        execution = await executions.load_execution(database, id)
        if execution is None or execution.cancelled_at != now:
            raise _refusal_error(id, execution) from None
        return "stopping" if execution.ended_at is None else "cancelled"  # our own commit, whose reply was lost


async def cancel_executions_in_transaction(
    connection: Connection, ids: Sequence[UUID], now: datetime, by: Actor, reason: str | None
) -> list[UUID]:
    """Cancel executions and their child executions; return the ids of those that were in progress."""
    tree = await executions.lock_execution_trees(connection, ids)
    cancelled = await executions.mark_cancelled(connection, tree, now, by, reason)
    if cancelled:
        # guard: executions.running_steps_are_stopped_last
        unclaimed = await executions.lock_unclaimed_steps(connection, cancelled)
        await end_tasks(connection, [Settlement(task, cancelled_outcome(task, now, by)) for task in unclaimed])
        # guard: executions.running_steps_are_stopped_last
        await executions.request_cancellation(connection, cancelled, by)
        await advance_executions(connection, cancelled, now)
    return cancelled


async def pause_execution(database: Database, id: UUID, now: datetime, by: Actor) -> None:
    """Pause an execution: none of its steps starts until it is resumed."""

    async def pause(connection: Connection) -> None:
        await executions.lock_executions(connection, [id])  # guard: executions.locked_before_pause
        if not await executions.pause_execution(connection, id, now, by):
            raise _NotChanged

    try:
        await database.transaction(pause)
    except _NotChanged:
        execution = await executions.load_execution(database, id)
        if execution is not None and execution.paused_at == now:
            return  # our own commit, whose reply was lost
        paused = Conflict(f"execution {id} is already paused", code="execution.already_paused")
        raise _refusal_error(id, execution, paused) from None


async def resume_execution(database: Database, id: UUID, now: datetime) -> None:
    """Resume a paused execution."""
    resumed = False

    async def resume(connection: Connection) -> None:
        nonlocal resumed
        await executions.lock_executions(connection, [id])  # guard: executions.locked_before_resume
        has_dependencies = await executions.resume_execution(connection, id, now)
        if has_dependencies is not None:
            resumed = True
            if has_dependencies:
                await advance_dependent_execution(connection, id, now)
        elif not resumed:  # else our own commit, whose reply was lost
            raise _NotChanged

    try:
        await database.transaction(resume)
    except _NotChanged:
        execution = await executions.load_execution(database, id)
        not_paused = Conflict(f"execution {id} is not paused", code="execution.not_paused")
        raise _refusal_error(id, execution, not_paused) from None


async def retry_execution(
    database: Database,
    id: UUID,
    now: datetime,
    by: Actor,
    request_id: UUID | None = None,
    on_repeat: Callable[[], None] = lambda: None,
) -> UUID:
    """Start a new execution from the failed or cancelled group of an ended one; return its id.

    The new execution uses the same plan. Steps that it does not repeat keep their results. Repeating the same request
    starts it once; ``on_repeat`` is called in the transaction of a repetition, which changes nothing.
    """
    execution = await executions.load_execution(database, id)
    if execution is None:
        raise _not_found_error(id)
    if execution.state not in ("failed", "cancelled") or execution.ended_at is None:
        raise Conflict(
            f"execution {id} is {execution.state.replace('_', ' ')} and cannot be retried",
            code="execution.not_retryable",
            remedy="only a failed or cancelled execution that has ended can be retried;"
            " `tenuto schedule run NAME` starts a new one",
        )
    new_execution_id = request_id or new_id()

    async def retry(connection: Connection) -> UUID:
        schedule = await schedules.lock_schedule_by_id(connection, execution.schedule_id)
        exclusive = schedule is None or schedule.definition.overlap is not OverlapPolicy.ALLOW
        active = await schedules.list_active_executions(connection, execution.schedule_id)
        if new_execution_id in active or await executions.is_finished(connection, new_execution_id):
            on_repeat()
            return new_execution_id  # our own commit, whose reply was lost
        if exclusive and active:
            raise Conflict(
                f"schedule {execution.schedule_name!r} is running",
                code="schedule.running",
                remedy=f"wait for execution {active[0]}",
            )
        plan = plan_from_json(execution.plan_json)
        new = NewExecution(
            new_execution_id, execution.schedule_id, execution.schedule_name, execution.version, "retry",
            exclusive, plan, execution.due_at, now, by, execution.current_group, None, id, execution.interval_start,
            await collect_kept_results(connection, id, plan, execution.current_group),
        )  # fmt: skip
        await executions.create_executions(connection, [new])
        if new.kept_results is not None:
            await advance_dependent_execution(connection, new_execution_id, now)
        return new_execution_id

    return await database.transaction(retry)


class _NotChanged(Exception):
    """The transaction changed nothing. The reason is queried afterwards: a query over a second connection within the
    transaction could deadlock the connection pool."""


def _refusal_error(
    id: UUID, execution: executions.StoredExecution | None, in_progress: Conflict | None = None
) -> Conflict | NotFound:
    """Return why an operation changed nothing; ``in_progress`` is the error for an execution that has not ended."""
    if execution is None:
        return _not_found_error(id)
    if in_progress is None or execution.state != "in_progress":
        return Conflict(f"execution {id} is already {execution.state}", code="execution.already_ended")
    return in_progress


def _not_found_error(id: UUID) -> NotFound:
    return NotFound(f"execution {id} does not exist", code="execution.not_found", remedy="see `tenuto execution list`")
