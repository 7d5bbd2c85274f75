"""Cancel one task: end it if no worker holds it, else request that its worker stops it."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Literal
from uuid import UUID

from tenuto.errors import Conflict, NotFound
from tenuto.lifecycle.completion import finish
from tenuto.lifecycle.execution_control import cancel_executions_in_transaction
from tenuto.model.access.actors import Actor
from tenuto.model.work.tasks import Settlement, cancelled_outcome
from tenuto.postgres.database import Database
from tenuto.store.events import external_events
from tenuto.store.work import activities, executions
from tenuto.store.work import tasks as store

_MAX_TRIES = 20


async def cancel_task(database: Database, task_id: UUID, by: Actor) -> Literal["cancelled", "stopping"]:
    """Cancel a task, its child tasks and the executions that it has started.

    Start over when a worker claims or finishes the task between the query and the write.
    """
    cancelled_at: datetime | None = None
    for _ in range(_MAX_TRIES):
        task = await store.load_task_to_cancel(database, task_id)
        if task is None:
            records = await activities.list_attempts(database, task_id)
            if not records:
                raise NotFound(f"task {task_id} does not exist", code="task.not_found", remedy="see `tenuto task list`")
            if cancelled_at is not None and records[-1].ended_at == cancelled_at:  # our own commit, reply lost
                await _cancel_children(database, task_id, cancelled_at, by)
                return "cancelled"
            raise Conflict(f"task {task_id} has already ended", code="task.already_ended")
        if task.worker_id is not None:
            if await store.request_cancellation(database, task, by):
                # Children come after the request: from now on the task starts no more (see `schedule_step`).
                # guard: executions.cancelled_step_cancels_children
                await _cancel_children(database, task_id, database.clock.now(), by)
                return "stopping"
            continue
        cancelled_at = database.clock.now()
        if await finish(database, [Settlement(task, cancelled_outcome(task, cancelled_at, by))]):
            await _cancel_children(database, task_id, cancelled_at, by)
            return "cancelled"
    raise Conflict(f"task {task_id} changes its worker too often", code="task.busy", remedy="try again")


async def _cancel_children(database: Database, task_id: UUID, now: datetime, by: Actor) -> None:
    """Cancel the child tasks of a workflow and the executions that a step has started."""
    for child in await external_events.list_open_children(
        database, task_id
    ):  # guard: workflows.cancelled_with_children
        with suppress(Conflict, NotFound):  # it has just ended
            await cancel_task(database, child, by)
    if ids := await executions.list_open_children(database, task_id):
        reason = "the step that started it was cancelled"
        await database.transaction(
            lambda connection: cancel_executions_in_transaction(connection, ids, now, by, reason)
        )
