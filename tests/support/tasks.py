"""Tasks, claims and outcomes for tests of the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

from tenuto.model.work.tasks import Outcome, OutcomeReason, OutcomeStatus, Task
from tenuto.postgres.database import Database
from tenuto.store.work import task_creation
from tenuto.store.work import tasks as store
from tests.support.model_values import make_new_task

Register: TypeAlias = Callable[..., Awaitable[UUID]]
LEASE = timedelta(seconds=30)


async def create_task(db: Database, **fields: Any) -> UUID:
    """Create one task in the database."""
    task = make_new_task(**fields)
    assert await task_creation.enqueue_tasks(db, [task]) == {task.id}
    return task.id


async def claim(db: Database, worker_id: UUID, *queues: str, limit: int = 10, lease: timedelta = LEASE) -> list[Task]:
    return await store.claim_tasks(db, worker_id, queues or ("default",), limit, lease)


async def create_and_claim(db: Database, worker_id: UUID, **fields: Any) -> Task:
    """Create one task and claim it for the worker."""
    task_id = await create_task(db, **fields)
    (task,) = await claim(db, worker_id)
    assert task.id == task_id
    return task


async def read_rows(db: Database, table: str = "tasks") -> list[dict[str, Any]]:
    """Return all rows of a table."""
    return [dict(row) for row in await db.fetch_all(f"SELECT * FROM tenuto.{table} ORDER BY 1, 2")]


async def read_only_task(db: Database) -> dict[str, Any]:
    (row,) = await read_rows(db)
    return row


def now() -> datetime:
    return datetime.now(UTC)


def completed_outcome() -> Outcome:
    return Outcome(OutcomeStatus.COMPLETED, started_at=now(), ended_at=now())


def failed_outcome() -> Outcome:
    return Outcome(
        OutcomeStatus.FAILED, OutcomeReason.ERROR, started_at=now(), ended_at=now(), error='{"type": "ValueError"}'
    )
