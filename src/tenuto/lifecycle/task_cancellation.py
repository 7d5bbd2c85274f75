"""Cancelling a task: through `finish` if nobody holds it, by asking its holder if somebody does."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

from tenuto.errors import Conflict, NotFound
from tenuto.lifecycle import execution_control
from tenuto.lifecycle.completion import finish
from tenuto.model.actors import Actor
from tenuto.model.tasks import Settlement, cancelled
from tenuto.postgres.database import Database
from tenuto.store import activities, executions
from tenuto.store import tasks as store

_TRIES = 20


async def cancel(database: Database, task_id: UUID, by: Actor) -> Literal["cancelled", "stopping"]:
    """Cancel a task. Between looking and acting somebody may take it or finish it: then look again."""
    ours: datetime | None = None
    for _ in range(_TRIES):
        task = await store.to_cancel(database, task_id)
        if task is None:
            records = await activities.attempts(database, task_id)
            if not records:
                raise NotFound(f"there is no task {task_id}")
            if ours is not None and records[-1]["ended_at"] == ours:  # by ourselves: only the reply was lost
                await _cancel_children(database, task_id, ours, by)
                return "cancelled"
            raise Conflict(f"task {task_id} has ended already")
        if task.worker_id is not None:
            if await store.ask_to_cancel(database, task, by):
                # After it: what it starts from now on, it does not start (see `subschedules`).
                await _cancel_children(database, task_id, database.clock.now(), by)
                return "stopping"
            continue
        ours = database.clock.now()
        if await finish(database, [Settlement(task, cancelled(task, ours, by))]):
            await _cancel_children(database, task_id, ours, by)
            return "cancelled"
    raise Conflict(f"task {task_id} changes hands too quickly", remedy="try again")


async def _cancel_children(database: Database, task_id: UUID, now: datetime, by: Actor) -> None:
    if children := await executions.children_of_task(database, task_id):
        why = "the step that started it was cancelled"
        await database.transaction(
            lambda connection: execution_control.cancel_within(connection, children, now, by, why)
        )
