"""Rows of batches: many inputs for one manifest that are counted, paused, resumed and cancelled together.

Counts are computed from the tasks and activities of the items, so they cannot disagree with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from tenuto.model.access.actors import Actor, ActorType
from tenuto.model.filters import Filter
from tenuto.model.work.tasks import CLAIM_DEFAULTS, ActivityState, NewTask, OutcomeReason, Task
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.filter_sql import BATCHES, CappedCount, count_rows, count_rows_of_each
from tenuto.store.row_mapping import FromJson, PositionalMapper, RowMapper
from tenuto.store.work.task_creation import copy_tasks_like, enqueue_tasks_within

SQL = load_statements(__file__)


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch without the outcomes of its items."""

    id: UUID
    key: str | None
    """Idempotency key."""
    manifest_id: UUID
    external_id: str
    """External id of the manifest."""
    name: str | None
    item_count: int
    """Number of created items, without duplicates of an item key."""
    duplicate_count: int
    digest: str | None
    """Digest of the inputs received so far."""
    complete_at: datetime | None
    """When the last part was added."""
    created_at: datetime
    paused_at: datetime | None
    paused_by: str | None
    cancelled_at: datetime | None
    cancelled_by: str | None
    initiator_type: ActorType
    initiator_id: str | None
    initiator_name: str


@dataclass(frozen=True, slots=True)
class BatchOutcomes(StoredBatch):
    """A batch with the outcomes of its items."""

    open_counts: Annotated[dict[str, int], FromJson]
    """Number of open items by state."""
    ended_counts: Annotated[dict[str, int], FromJson]
    """Number of ended items by state."""
    retried_count: int
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch, as in lists."""

    id: UUID
    key: str | None
    manifest_id: UUID
    external_id: str
    name: str | None
    item_count: int
    duplicate_count: int
    complete_at: datetime | None
    created_at: datetime
    paused_at: datetime | None
    paused_by: str | None
    cancelled_at: datetime | None
    cancelled_by: str | None
    initiator_name: str
    open_count: int
    failed_count: int


@dataclass(frozen=True, slots=True)
class BatchItemRecord:
    """An item of a batch with the outcome of its last attempt."""

    task_id: UUID
    activity_id: UUID
    item_key: str | None
    state: ActivityState
    reason: OutcomeReason | None
    attempt: int
    input: Annotated[Any, FromJson]
    output: Annotated[Any, FromJson]
    error: Annotated[Any, FromJson]
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class BatchLock:
    """A batch that this transaction has locked."""

    id: UUID
    is_paused: bool
    is_cancelled: bool


_TASKS = PositionalMapper(Task, SQL.lock_unclaimed_items, defaults=CLAIM_DEFAULTS)
_STORED_BATCHES = RowMapper(StoredBatch, SQL.load_batch_by_key, SQL.lock_batch)
_OUTCOMES = RowMapper(BatchOutcomes, SQL.load_batch)
_BATCHES = RowMapper(BatchRecord, SQL.list_batches)
_ITEMS = RowMapper(BatchItemRecord, SQL.list_batch_items)
_LOCKS = RowMapper(BatchLock, SQL.lock_batches_shared)


async def insert_batch(
    connection: Connection,
    id: UUID,
    *,
    key: str | None,
    manifest_id: UUID,
    external_id: str,
    name: str | None,
    now: datetime,
    by: Actor,
) -> bool:
    """Insert a batch; return False if its key or id exists."""
    row = await connection.fetchrow(
        SQL.insert_batch, id, key, manifest_id, external_id, name, now, by.type, by.id, by.name
    )
    return row is not None


async def load_batch_by_key(connection: Connection, key: str) -> StoredBatch | None:
    """Return the batch with a key."""
    return _STORED_BATCHES.optional(await connection.fetchrow(SQL.load_batch_by_key, key))


async def find_batch_id_by_key(database: Database, key: str) -> UUID | None:
    """Return the id of the batch with a key."""
    row = await database.fetch_one(SQL.load_batch_by_key, key)
    return None if row is None else row["id"]


async def lock_batch(connection: Connection, id: UUID) -> StoredBatch | None:
    """Return and lock a batch."""
    return _STORED_BATCHES.optional(await connection.fetchrow(SQL.lock_batch, id))


async def add_batch_part(
    connection: Connection,
    id: UUID,
    template: NewTask,
    ids: Sequence[UUID],
    inputs: Sequence[str],
    keys: Sequence[str] | None,
    digest: str | None,
    on_sent: Callable[[], object],
) -> int:
    """Create a run like ``template`` for each input of a part; return how many were created.

    ``digest`` covers all inputs so far. ``on_sent`` is called as soon as all data is sent.
    """
    if keys is None:
        await copy_tasks_like(connection, template, ids, inputs, on_sent)
        created = len(inputs)
    else:
        runs = [
            replace(template, id=id, input=text, item_key=key) for id, text, key in zip(ids, inputs, keys, strict=True)
        ]
        created = len(await enqueue_tasks_within(connection, runs))
    await connection.execute(SQL.add_batch_part, id, created, len(inputs) - created, digest)
    return created


async def complete_submission(connection: Connection, id: UUID, now: datetime) -> None:
    """Record that the last part was added."""
    await connection.execute(SQL.complete_submission, id, now)


async def load_batch(database: Database, id: UUID) -> BatchOutcomes | None:
    """Return a batch with the outcomes of its items."""
    return _OUTCOMES.optional(await database.fetch_one(SQL.load_batch, id))


async def count_ended_since(database: Database, id: UUID, since: datetime) -> int:
    """Count the items of a batch that ended since an instant."""
    return int(await database.fetch_value(SQL.count_ended_since, id, since))


async def list_batches(
    database: Database, filter: Filter, *, below: UUID | None = None, limit: int
) -> list[BatchRecord]:
    """Return batches, newest first."""
    return _BATCHES.all(await database.fetch_all(*BATCHES.add_filter(SQL.list_batches, filter, below, limit)))


async def count_batches(database: Database, filter: Filter) -> CappedCount:
    """Count batches."""
    return await count_rows(database, BATCHES, SQL.count_batches, filter)


async def count_batches_of_each(database: Database, filters: Sequence[Filter]) -> list[CappedCount]:
    """Count batches that meet each of the filters."""
    return await count_rows_of_each(database, BATCHES, SQL.count_batches, filters)


async def list_batch_items(
    database: Database, id: UUID, *, after: UUID | None, state: str | None, limit: int
) -> list[BatchItemRecord]:
    """Return the items of a batch with their outcomes, by task id."""
    return _ITEMS.all(await database.fetch_all(SQL.list_batch_items, id, after, state, limit))


async def pause_batch(connection: Connection, id: UUID, now: datetime, by: Actor) -> bool:
    """Pause a batch, so that no item is claimed; return False if it is paused or cancelled."""
    await connection.execute(SQL.lock_limits, id)
    return await connection.fetchrow(SQL.pause_batch, id, now, by.name) is not None


async def hold_batch_items(connection: Connection, id: UUID, limit: int) -> int:
    """Set some unclaimed items to waiting; return their number."""
    return len(await connection.fetch(SQL.hold_batch_items, id, limit))


async def resume_batch(connection: Connection, id: UUID) -> bool:
    """Resume a batch; return False if it is not paused."""
    return await connection.fetchrow(SQL.resume_batch, id) is not None


async def release_batch_items(connection: Connection, id: UUID, now: datetime, limit: int) -> int:
    """Queue some held items; return their number."""
    return len(await connection.fetch(SQL.release_batch_items, id, limit, now))


async def cancel_batch(connection: Connection, id: UUID, now: datetime, by: Actor) -> bool:
    """Cancel a batch and request cancellation of its running items; return False if it was cancelled before.

    No item is claimed after this, and items claimed before are included.
    """
    await connection.execute(SQL.lock_limits, id)
    if await connection.fetchrow(SQL.cancel_batch, id, now, by.name) is None:
        return False
    await connection.execute(SQL.request_cancellation, id, by.type, by.id, by.name)
    return True


async def lock_unclaimed_items(connection: Connection, id: UUID, limit: int) -> list[Task]:
    """Return and lock some unclaimed tasks of a batch, to be ended together."""
    await connection.execute(SQL.use_hash_joins)
    return _TASKS.all(await connection.fetch(SQL.lock_unclaimed_items, id, limit))


async def lock_batches_shared(connection: Connection, ids: Iterable[UUID]) -> list[UUID]:
    """Prevent batches from being paused or resumed until the transaction ends; return the paused ones."""
    wanted = sorted(ids)
    return (
        [row["id"] for row in await connection.fetch(SQL.lock_batches_shared, wanted) if row["is_paused"]]
        if wanted
        else []
    )


async def lock_batches_shared_with_state(connection: Connection, ids: Iterable[UUID]) -> dict[UUID, BatchLock]:
    """Like `lock_batches_shared`, but return for each batch whether it is paused or cancelled."""
    wanted = sorted(ids)
    return (
        {row["id"]: _LOCKS.one(row) for row in await connection.fetch(SQL.lock_batches_shared, wanted)}
        if wanted
        else {}
    )


async def hold_items_of_paused(connection: Connection, tasks: Sequence[UUID], paused: Sequence[UUID]) -> None:
    """Set retried and deferred items of paused batches to waiting."""
    await connection.execute(SQL.hold_items_of_paused, tasks, paused)


async def delete_old_batches(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of batches that were complete before the cut-off and have nothing left; return their
    number."""
    return len(await database.write_all(SQL.delete_old_batches, cutoff, limit))


async def find_batches(database: Database, low: UUID, high: UUID) -> list[UUID]:
    """Return up to three ids of batches in a range."""
    return [row["id"] for row in await database.fetch_all(SQL.find_batches, low, high)]
