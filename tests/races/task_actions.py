"""Tasks, claims and outcomes for tests that call the store directly."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from tenuto.ids import new_id
from tenuto.model.access.actors import Actor
from tenuto.model.work.tasks import NewTask, Outcome, OutcomeReason, OutcomeStatus, Settlement, Task, settle
from tenuto.postgres.database import Database
from tenuto.store.work import task_creation
from tenuto.store.work import tasks as store

LEASE = timedelta(seconds=30)
ACTOR = Actor.system("tester")


def new_task(database: Database, **options: Any) -> NewTask:
    return NewTask(new_id(), "touch", '{"number": 1}', database.clock.now(), ACTOR, **options)


async def enqueue(database: Database, count: int = 1, **options: Any) -> list[NewTask]:
    """Create queued tasks."""
    tasks = [new_task(database, **options) for _ in range(count)]
    await task_creation.enqueue_tasks(database, tasks)
    return tasks


async def claim(database: Database, worker_id: UUID, count: int = 1, lease: timedelta = LEASE) -> list[Task]:
    return await store.claim_tasks(database, worker_id, ["default"], count, lease)


def complete(database: Database, task: Task) -> Settlement:
    now = database.clock.now()
    return settle(task, Outcome(OutcomeStatus.COMPLETED, started_at=now, ended_at=now), now, new_id)


def fail(database: Database, task: Task) -> Settlement:
    """Return a failure that will be retried."""
    now = database.clock.now()
    outcome = Outcome(
        OutcomeStatus.FAILED, OutcomeReason.ERROR, now, now, error='{"type": "ValueError", "message": "no"}'
    )
    return settle(task, outcome, now, new_id)
