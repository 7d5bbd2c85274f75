"""Stored results of chain steps, kept while a task is open, so that a retry continues after the last one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from tenuto.errors import StaleLease
from tenuto.model.work.tasks import Task
from tenuto.postgres.bulk_copy import to_columns
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import FromJson, RowMapper

SQL = load_statements(__file__)


@dataclass(frozen=True, slots=True)
class ChainStepRecord:
    """A finished step of a chain or workflow, or a sleep or wait in one."""

    name: str
    """Position and name, such as ``3 charge``; ``3.2.1 charge`` is in the second branch of the gather at 3."""
    fence: int | None
    """None for a wait."""
    ended_at: datetime | None
    """None for a wait that has not ended."""
    sleep_ends_at: datetime | None
    """Of a sleep: when it ends."""
    output: Annotated[Any, FromJson]
    stopped: bool
    """Whether the step ended the chain."""
    failed: bool
    """Whether it is the failure of a step or child that a workflow has handled, or a wait that timed out."""
    child_id: UUID | None
    """The child task that a workflow waits for."""


_CHAIN_STEPS = RowMapper(ChainStepRecord, SQL.list_steps_and_sleeps)


async def record_checkpoint(database: Database, task: Task, name: str, output: str) -> str:
    """Store the result of a step; return the stored one, which differs if it was stored before.

    Raise StaleLease if the worker no longer holds the task. Steps that end at the same time share a commit.
    """
    stored = await database.write_coalesced(_record_checkpoints, (task, name, output), len(output))
    if stored is None:
        raise _stale_lease(task)
    return stored


async def _record_checkpoints(
    database: Database, requests: Sequence[tuple[Task, str, str]]
) -> list[str | Exception | None]:
    """Store results; return the stored ones, or None for tasks that their workers no longer hold."""
    columns = to_columns((task.id, task.fence, task.worker_id, name, output) for task, name, output in requests)
    rows = await database.write_all(SQL.record_checkpoint, *columns)
    stored = {(row["task_id"], row["name"]): row["output"] for row in rows}
    return [stored.get((task.id, name)) for task, name, _ in requests]


async def record_sleep(database: Database, task: Task, step: str, number: int, sleep: str) -> str:
    """Store the n-th sleep of a step; return the stored one, which an earlier attempt may have stored."""
    held = task.id, task.fence, task.worker_id
    return _stored_output(task, await database.write_all(SQL.record_sleep, *held, f"sleep in {step}", number, sleep))


def _stored_output(task: Task, rows: Sequence[Any]) -> str:
    if not rows:
        raise _stale_lease(task)
    output: str = rows[0]["output"]
    return output


def _stale_lease(task: Task) -> StaleLease:
    return StaleLease(f"the worker no longer holds task {task.id}", code="task.lease.lost")


async def load_checkpoints(database: Database, task_id: UUID) -> dict[str, str]:
    """Return the stored results of a task by step name, as JSON."""
    return {row["name"]: row["output"] for row in await database.fetch_all(SQL.load_checkpoints, task_id)}


async def list_steps_and_sleeps(database: Database, task_id: UUID) -> list[ChainStepRecord]:
    """Return the finished steps and the sleeps of a task, in the order in which they ended."""
    return _CHAIN_STEPS.all(await database.fetch_all(SQL.list_steps_and_sleeps, task_id))


async def copy_checkpoints(connection: Connection, tasks: Sequence[tuple[UUID, UUID]]) -> None:
    """Copy the results of (old task, new task)."""
    await connection.fetch(SQL.copy_checkpoints, [old for old, _ in tasks], [new for _, new in tasks])


async def delete_orphaned_checkpoints(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of results whose task no longer exists; return their number."""
    return len(await database.write_all(SQL.delete_orphaned_checkpoints, cutoff, limit))
