"""What happened: rows of Tenuto, read in the order of their transactions, and conditions that hold now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.postgres.database import Connection
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import RowMapper
from tenuto.store.work.rollups import RollupProgress

SQL = load_statements(__file__)


@dataclass(frozen=True, slots=True)
class Progress(RollupProgress):
    """Which transactions have been searched, and which have ended by now: as for the rollups of activities."""


@dataclass(frozen=True, slots=True)
class EndedExecution:
    """An execution that has ended."""

    id: UUID
    schedule_name: str
    state: str
    origin: str
    initiator_name: str
    due_at: datetime
    started_at: datetime
    ended_at: datetime
    failed_steps: int
    error: str | None


@dataclass(frozen=True, slots=True)
class FailedTask:
    """A task that failed for good."""

    id: UUID
    """Id of the last attempt."""
    task_id: UUID
    kind: str
    name: str
    queue: str
    reason: str | None
    attempts: int
    tags: Sequence[str] | None
    initiator_name: str
    execution_id: UUID | None
    ended_at: datetime
    error: str | None
    manifest: str | None


@dataclass(frozen=True, slots=True)
class OpenedDeadLetter:
    """A dead letter that was opened."""

    id: UUID
    kind: str
    name: str
    item: str
    fingerprint: str
    task_id: UUID
    attempts: int
    dead_lettered_at: datetime
    error: str
    manifest: str | None


@dataclass(frozen=True, slots=True)
class MissedInstant:
    """A due instant of a schedule that was missed."""

    id: UUID
    schedule_id: UUID
    schedule_name: str
    due_at: datetime
    until: datetime | None
    reason: str | None
    decided_at: datetime


@dataclass(frozen=True, slots=True)
class LostProcess:
    """A process that ended without notice."""

    id: UUID
    name: str
    service: str
    host: str
    seen_at: datetime
    found_at: datetime


@dataclass(frozen=True, slots=True)
class OpenExecution:
    """An execution that has not ended."""

    id: UUID
    schedule_name: str
    origin: str
    initiator_name: str
    due_at: datetime
    started_at: datetime


@dataclass(frozen=True, slots=True)
class WaitingQueue:
    """A queue with waiting tasks."""

    queue: str
    tasks: int
    oldest_due_at: datetime


_PROGRESS = RowMapper(Progress, SQL.lock_progress)
_EXECUTIONS = RowMapper(EndedExecution, SQL.find_ended_executions)
_TASKS = RowMapper(FailedTask, SQL.find_failed_tasks)
_DEAD_LETTERS = RowMapper(OpenedDeadLetter, SQL.find_opened_dead_letters)
_MISSED = RowMapper(MissedInstant, SQL.find_missed_instants)
_LOST = RowMapper(LostProcess, SQL.find_lost_processes)
_OPEN = RowMapper(OpenExecution, SQL.find_late_executions, SQL.find_stuck_executions)
_QUEUES = RowMapper(WaitingQueue, SQL.find_waiting_queues)


async def lock_progress(connection: Connection) -> Progress | None:
    """Lock the progress until the transaction ends; None if no rule is enabled or another collector works."""
    return _PROGRESS.optional(await connection.fetchrow(SQL.lock_progress))


async def store_progress(connection: Connection, progress: Progress, since: datetime) -> None:
    """Store that the transactions that have ended by now are searched."""
    await connection.execute(SQL.store_progress, progress.new_next_transaction_id, progress.new_in_progress, since)


async def delete_progress(connection: Connection) -> None:
    """Stop to collect."""
    await connection.execute(SQL.delete_progress)


def _window(progress: Progress) -> tuple[Any, ...]:
    return (
        progress.next_transaction_id,
        progress.in_progress,
        progress.new_next_transaction_id,
        progress.new_in_progress,
        progress.since,
    )


async def find_ended_executions(
    connection: Connection, progress: Progress, states: Sequence[str]
) -> list[EndedExecution]:
    """Return the executions that ended with one of some states."""
    return _EXECUTIONS.all(await connection.fetch(SQL.find_ended_executions, *_window(progress), states))


async def find_failed_tasks(connection: Connection, progress: Progress) -> list[FailedTask]:
    """Return the tasks that failed for good."""
    return _TASKS.all(await connection.fetch(SQL.find_failed_tasks, *_window(progress)))


async def find_opened_dead_letters(connection: Connection, progress: Progress) -> list[OpenedDeadLetter]:
    """Return the dead letters that were opened."""
    return _DEAD_LETTERS.all(await connection.fetch(SQL.find_opened_dead_letters, *_window(progress)))


async def find_missed_instants(connection: Connection, progress: Progress) -> list[MissedInstant]:
    """Return the due instants that were missed."""
    return _MISSED.all(await connection.fetch(SQL.find_missed_instants, *_window(progress)))


async def find_lost_processes(connection: Connection, progress: Progress) -> list[LostProcess]:
    """Return the processes that were found to be lost."""
    return _LOST.all(await connection.fetch(SQL.find_lost_processes, *_window(progress)))


async def find_late_executions(connection: Connection, due_before: datetime) -> list[OpenExecution]:
    """Return open executions that were due before an instant."""
    return _OPEN.all(await connection.fetch(SQL.find_late_executions, due_before))


async def find_stuck_executions(connection: Connection, idle_since: datetime) -> list[OpenExecution]:
    """Return open executions without progress since an instant."""
    return _OPEN.all(await connection.fetch(SQL.find_stuck_executions, idle_since))


async def find_waiting_queues(connection: Connection) -> list[WaitingQueue]:
    """Return queues with waiting tasks."""
    return _QUEUES.all(await connection.fetch(SQL.find_waiting_queues))
