"""The finished steps of chains, kept while a task is under way so that a retry goes on after the last."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.errors import StaleLease
from tenuto.model.tasks import Task
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import beside

SQL = beside(__file__)


async def record(database: Database, task: Task, name: str, output: str) -> str:
    """Keep what a step came to; what stands, which is another's if it was recorded before.

    Raises if the task is no longer held: then what was done is done again by whoever holds it now.
    """
    return _standing(task, await database.all(SQL.record, task.id, task.fence, task.worker_id, name, output))


async def sleep(database: Database, task: Task, step: str, number: int, nap: str) -> str:
    """Keep the n-th sleep of a step; the one that stands, which is an earlier run's if that came as far."""
    held = task.id, task.fence, task.worker_id
    return _standing(task, await database.all(SQL.sleep, *held, f"sleep in {step}", number, nap))


def _standing(task: Task, rows: Sequence[Any]) -> str:
    if not rows:
        raise StaleLease(f"task {task.id} is not held any more")
    kept: str = rows[0]["output"]
    return kept


async def recorded(database: Database, task_id: UUID) -> dict[str, str]:
    """What the steps of a task have come to so far, by name, as JSON."""
    return {row["name"]: row["output"] for row in await database.all(SQL.recorded, task_id)}


async def told(database: Database, task_id: UUID) -> list[dict[str, Any]]:
    """The steps and sleeps of a task so far, in the order in which they ended."""
    rows = await database.all(SQL.told, task_id)
    return [{**row, "output": None if row["output"] is None else json.loads(row["output"])} for row in rows]


async def carry_over(connection: Connection, tasks: Sequence[tuple[UUID, UUID]]) -> None:
    """What one task has come to, another goes on from."""
    await connection.fetch(SQL.carry_over, [old for old, _ in tasks], [new for _, new in tasks])


async def forget(database: Database, cutoff: datetime, limit: int) -> int:
    """Let go a small batch of steps whose task is no longer there; how many."""
    return len(await database.all(SQL.forget, cutoff, limit))
