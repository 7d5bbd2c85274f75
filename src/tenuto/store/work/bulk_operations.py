"""Rows of bulk operations: the frozen selection, the counters and the outcomes of items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tenuto.model.access.actors import Actor, ActorType
from tenuto.model.filters import Filter
from tenuto.model.work.bulk_operations import BulkKind, BulkState, ItemOutcome, ItemResult
from tenuto.postgres.bulk_copy import to_columns
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.filter_sql import (
    DEAD_LETTERS,
    EXECUTIONS,
    MAX_EXACT_COUNT,
    OPEN_ONE_SHOTS,
    SCHEDULES,
    TASKS,
    CappedCount,
    FilterTable,
)
from tenuto.store.row_mapping import RowMapper

SQL = load_statements(__file__)


@dataclass(frozen=True, slots=True)
class BulkOperationRecord:
    """A bulk operation with its counters."""

    id: UUID
    kind: BulkKind
    filter: str
    description: str
    """The filter in plain English."""
    until: datetime
    """Objects that appeared later are not selected."""
    reason: str | None
    state: BulkState
    item_count: int
    succeeded_count: int
    failed_count: int
    skipped_count: int
    arrived_count: int | None
    """Matching objects that appeared later and were not touched, counted at the end; at most 10,000."""
    created_at: datetime
    processed_at: datetime | None
    """Last chunk."""
    ended_at: datetime | None
    aborted_by: str | None
    actor_type: ActorType
    actor_id: str | None
    actor_name: str
    schedule_id: UUID | None = None
    """Of a backfill: the schedule."""
    max_running: int | None = None
    """Of a backfill: how many of its executions may run at a time."""
    paused_at: datetime | None = None
    paused_by: str | None = None

    @property
    def actor(self) -> Actor:
        return Actor(self.actor_type, self.actor_id, self.actor_name)

    @property
    def remaining_count(self) -> int:
        """Number of items that are not processed."""
        return self.item_count - self.succeeded_count - self.failed_count - self.skipped_count


@dataclass(frozen=True, slots=True)
class BackfillRun:
    """A started item of a backfill whose execution has ended."""

    item_id: UUID
    due_at: datetime
    state: str | None
    """State of the execution; None if retention has deleted it."""
    error: str | None


@dataclass(frozen=True, slots=True)
class BulkItemRecord:
    """An item of a bulk operation that failed or was skipped."""

    item_id: UUID
    outcome: ItemOutcome
    code: str | None
    message: str | None


_OPERATIONS = RowMapper(BulkOperationRecord, SQL.load_operation, SQL.list_operations, SQL.lock_next_operation)
_BACKFILL_RUNS = RowMapper(BackfillRun, SQL.list_ended_runs)
_ITEMS = RowMapper(BulkItemRecord, SQL.list_items)


@dataclass(frozen=True, slots=True)
class Selection:
    """Statements that select and count the objects of a kind."""

    table: FilterTable
    select_statement: str
    count_statement: str


TASK_SELECTION = Selection(TASKS, SQL.select_tasks, SQL.count_tasks)
EXECUTION_SELECTION = Selection(EXECUTIONS, SQL.select_executions, SQL.count_executions)
SCHEDULE_SELECTION = Selection(SCHEDULES, SQL.select_schedules, SQL.count_schedules)
DEAD_LETTER_SELECTION = Selection(DEAD_LETTERS, SQL.select_dead_letters, SQL.count_dead_letters)
ONE_SHOT_SELECTION = Selection(OPEN_ONE_SHOTS, SQL.select_one_shots, SQL.count_one_shots)


async def create_operation(
    connection: Connection, new: BulkOperationRecord, selection: Selection, filter: Filter, max_items: int
) -> int | None:
    """Create a bulk operation with all objects that meet a filter; return their number, None if it exists already."""
    if not await _insert_operation(connection, new):
        return None
    statement, *parameters = selection.table.add_filter(
        selection.select_statement, filter, new.id, new.until, max_items + 1
    )
    status = await connection.execute(statement, *parameters)
    count = int(status.rpartition(" ")[2])
    await connection.execute(SQL.set_total, new.id, count)
    return count


async def create_backfill(connection: Connection, new: BulkOperationRecord, items: Mapping[UUID, datetime]) -> bool:
    """Create a backfill of due instants, by the ids of their future executions; return False if it exists already."""
    if not await _insert_operation(connection, new):
        return False
    await connection.execute(SQL.insert_instants, new.id, list(items), list(items.values()))
    await connection.execute(SQL.set_total, new.id, len(items))
    return True


async def _insert_operation(connection: Connection, new: BulkOperationRecord) -> bool:
    values = (
        new.id, new.kind, new.filter, new.description, new.until, new.reason, new.created_at, new.actor_type,
        new.actor_id, new.actor_name, new.schedule_id, new.max_running,
    )  # fmt: skip
    return await connection.fetchval(SQL.create_operation, *values) is not None


async def count_objects(
    database: Database,
    selection: Selection,
    filter: Filter,
    *,
    until: datetime | None = None,
    since: datetime | None = None,
) -> CappedCount:
    """Count objects that meet a filter and appeared in a period, exactly up to `MAX_EXACT_COUNT`."""
    statement = selection.table.add_filter(selection.count_statement, filter, until, since, MAX_EXACT_COUNT + 1)
    found: int = await database.fetch_value(*statement)
    return CappedCount(min(found, MAX_EXACT_COUNT), found <= MAX_EXACT_COUNT)


async def lock_next_operation(connection: Connection) -> BulkOperationRecord | None:
    """Return and lock a running operation that no other scheduler processes now."""
    return _OPERATIONS.optional(await connection.fetchrow(SQL.lock_next_operation))


async def list_pending_items(connection: Connection, id: UUID, limit: int) -> list[UUID]:
    """Return items that are not processed yet."""
    return [row["item_id"] for row in await connection.fetch(SQL.list_pending_items, id, limit)]


async def store_results(connection: Connection, id: UUID, results: Mapping[UUID, ItemResult]) -> None:
    """Store the results of a chunk and add them to the counters."""
    succeeded = [item for item, result in results.items() if result.outcome is ItemOutcome.SUCCEEDED]
    others = [
        (item, result.outcome, result.code, result.message)
        for item, result in results.items()
        if result.outcome is not ItemOutcome.SUCCEEDED
    ]
    await connection.execute(SQL.delete_items, id, succeeded)
    if others:
        await connection.execute(SQL.store_outcomes, id, *to_columns(others))
    failed_count = sum(outcome is ItemOutcome.FAILED for _, outcome, _, _ in others)
    await connection.execute(SQL.add_counts, id, len(succeeded), failed_count, len(others) - failed_count)


async def list_ended_runs(connection: Connection, id: UUID) -> list[BackfillRun]:
    """Return the started items of a backfill whose execution has ended."""
    return _BACKFILL_RUNS.all(await connection.fetch(SQL.list_ended_runs, id))


async def list_startable_items(connection: Connection, id: UUID, limit: int) -> dict[UUID, datetime]:
    """Return the due instants of a backfill that may start now, by the ids of their future executions."""
    rows = await connection.fetch(SQL.list_startable_items, id, limit)
    return {row["item_id"]: row["due_at"] for row in rows}


async def mark_started(connection: Connection, id: UUID, items: Sequence[UUID], now: datetime) -> None:
    """Record that the executions of items were started."""
    await connection.execute(SQL.mark_started, id, items, now)


async def has_open_items(connection: Connection, id: UUID) -> bool:
    """Return whether an operation has items without an outcome."""
    return bool(await connection.fetchval(SQL.count_open_items, id))


async def pause_operation(connection: Connection, id: UUID, by: Actor) -> bool:
    """Pause an operation after the chunk in progress; return False if it is paused or has ended."""
    return await connection.fetchval(SQL.pause_operation, id, by.name) is not None


async def resume_operation(connection: Connection, id: UUID) -> bool:
    """Resume an operation; return False if it is not paused."""
    return bool(await connection.fetch(SQL.resume_operation, id))


async def end_operation(connection: Connection, id: UUID, arrived_count: int) -> None:
    """End an operation whose items were all processed."""
    await connection.execute(SQL.end_operation, id, arrived_count)


async def abort_operation(connection: Connection, id: UUID, by: Actor) -> bool:
    """Abort a running operation after the chunk in progress; return False if it is not running."""
    return await connection.fetchval(SQL.abort_operation, id, by.name) is not None


async def load_operation(database: Database, id: UUID) -> BulkOperationRecord | None:
    """Return one bulk operation."""
    return _OPERATIONS.optional(await database.fetch_one(SQL.load_operation, id))


async def exists(connection: Connection, id: UUID) -> bool:
    """Return whether a bulk operation exists."""
    return await connection.fetchrow(SQL.load_operation, id) is not None


async def list_operations(
    database: Database, *, below: UUID | None, state: str | None, kind: str | None, limit: int
) -> list[BulkOperationRecord]:
    """Return bulk operations, newest first."""
    return _OPERATIONS.all(await database.fetch_all(SQL.list_operations, below, state, kind, limit))


async def list_items(
    database: Database, id: UUID, *, outcome: str | None, above: UUID | None, limit: int
) -> list[BulkItemRecord]:
    """Return the items that failed or were skipped, by id."""
    return _ITEMS.all(await database.fetch_all(SQL.list_items, id, outcome, above, limit))


async def find_operations(database: Database, low: UUID, high: UUID) -> Sequence[UUID]:
    """Return up to three ids of bulk operations in a range."""
    return [row["id"] for row in await database.fetch_all(SQL.find_operations, low, high)]


async def delete_old_operations(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of operations that ended before the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_old_operations, cutoff, limit))
