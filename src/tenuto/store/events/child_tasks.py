"""Child tasks of workflows: the wait of the workflow and the child are written in one transaction.

The wait ends in the transaction that ends the child: see `lifecycle.completion`.
"""

from __future__ import annotations

from tenuto.model.events.event_names import CHILD_EVENT, MAX_WAIT, EventWait
from tenuto.model.work.tasks import NewTask, Task
from tenuto.postgres.database import Connection, Database
from tenuto.store.events.external_events import WaitRecord, insert_wait
from tenuto.store.work.task_creation import enqueue_tasks_within


async def start_child(database: Database, task: Task, step: str, child: NewTask, log: str | None) -> WaitRecord:
    """Begin the wait of a workflow and create the child that it waits for, unless the wait has begun before.

    Raise StaleLease if the worker no longer holds the task, or if the task is being cancelled.
    """
    wait = EventWait(step, 1, f"{CHILD_EVENT}{child.name}", str(child.id), child.created_at + MAX_WAIT)

    async def start(connection: Connection) -> WaitRecord:
        stored = await insert_wait(connection, task, wait, child.created_at, log, unless_cancelled=True)
        # The end of the child ends the wait, whose row is locked: an open wait of this child means an open child.
        if stored.key == wait.key and stored.outcome is None:  # guard: workflows.one_child
            await enqueue_tasks_within(connection, [child])
        return stored

    return await database.transaction(start)
