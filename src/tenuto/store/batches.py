"""Rows of batches: many inputs for one manifest that are counted, paused, resumed and cancelled together.

Counts are computed from the tasks and activities of the items, so they cannot disagree with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.model.actors import Actor
from tenuto.model.tasks import Task
from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.bulk_copy import copy_tasks
from tenuto.store.manifests import NewRun, enqueue_runs
from tenuto.store.records import PositionalMapper
from tenuto.tracing import add_traceparent, record_enqueue_span

SQL = load_statements(__file__)

_TASKS = PositionalMapper(Task, SQL.lock_unclaimed_items)
_JSON = frozenset({"open", "past", "input", "output", "error"})

Record = dict[str, Any]


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


async def load_batch_by_key(connection: Connection, key: str) -> Record | None:
    row = await connection.fetchrow(SQL.load_batch_by_key, key)
    return None if row is None else dict(row)


async def find_batch_id_by_key(database: Database, key: str) -> UUID | None:
    """Return the id of the batch with a key."""
    row = await database.fetch_one(SQL.load_batch_by_key, key)
    return None if row is None else row["id"]


async def lock_batch(connection: Connection, id: UUID) -> Record | None:
    """Return and lock a batch."""
    row = await connection.fetchrow(SQL.lock_batch, id)
    return None if row is None else dict(row)


async def add_batch_part(
    connection: Connection,
    id: UUID,
    template: NewRun,
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
        await _copy_runs(connection, template, ids, inputs, on_sent)
        created = len(inputs)
    else:
        created = len(await enqueue_runs(connection, list(_make_runs(template, ids, inputs, keys))))
    await connection.execute(SQL.add_batch_part, id, created, len(inputs) - created, digest)
    return created


def _make_runs(template: NewRun, ids: Sequence[UUID], inputs: Sequence[str], keys: Sequence[str]) -> Iterator[NewRun]:
    for id, text, key in zip(ids, inputs, keys, strict=True):
        yield NewRun(
            id, template.manifest_id, template.job, text, template.policy, template.queue, template.priority,
            template.created_at, template.initiator, template.run_at, template.limit_key, template.limit_max,
            template.limit_group, template.batch_id, key, template.correlation_id, template.tags, template.is_held,
        )  # fmt: skip


async def _copy_runs(
    connection: Connection, template: NewRun, ids: Sequence[UUID], inputs: Sequence[str], on_sent: Callable[[], object]
) -> None:
    """Create runs without keys, which cannot conflict, by COPY."""
    actor = template.initiator
    shared = {
        "state": template.state, "queue": template.queue, "rank": -template.priority, "kind": "job",
        "name": template.job, "policy": add_traceparent(template.policy, record_enqueue_span(template.job)),
        "limit_key": template.limit_key, "limit_max": template.limit_max,
        "initiator_type": actor.type, "initiator_id": actor.id, "initiator_name": actor.name,
        "manifest_id": template.manifest_id, "batch_id": template.batch_id, "limit_group": template.limit_group,
        "tags": template.tags, "run_at": template.run_at or template.created_at,
        "correlation_id": template.correlation_id,
    }  # fmt: skip
    await copy_tasks(connection, shared, ids, inputs, on_sent)


async def complete_submission(connection: Connection, id: UUID, now: datetime) -> None:
    """Record that the last part was added."""
    await connection.execute(SQL.complete_submission, id, now)


async def load_batch(database: Database, id: UUID) -> Record | None:
    """Return a batch with the outcomes of its items."""
    row = await database.fetch_one(SQL.load_batch, id)
    return None if row is None else _to_record(row)


async def count_ended_since(database: Database, id: UUID, since: datetime) -> int:
    """Count the items of a batch that ended since an instant."""
    return int(await database.fetch_value(SQL.count_ended_since, id, since))


async def list_batches(database: Database, *, below: UUID | None, manifest: str | None, limit: int) -> list[Record]:
    """Return batches, newest first."""
    return [dict(row) for row in await database.fetch_all(SQL.list_batches, below, manifest, limit)]


async def list_batch_items(
    database: Database, id: UUID, *, after: UUID | None, status: str | None, limit: int
) -> list[Record]:
    """Return the items of a batch with their outcomes, by task id."""
    return [_to_record(row) for row in await database.fetch_all(SQL.list_batch_items, id, after, status, limit)]


async def pause_batch(connection: Connection, id: UUID, now: datetime, by: Actor) -> bool:
    """Pause a batch, so that no item is claimed; return False if it is paused or cancelled."""
    await connection.execute(SQL.lock_limits)
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
    await connection.execute(SQL.lock_limits)
    if await connection.fetchrow(SQL.cancel_batch, id, now, by.name) is None:
        return False
    await connection.execute(SQL.request_cancellation, id, by.type, by.id, by.name)
    return True


async def lock_unclaimed_items(connection: Connection, id: UUID, limit: int) -> list[Task]:
    """Return and lock some unclaimed tasks of a batch, to be ended together."""
    await connection.execute(SQL.use_hash_joins)
    return _TASKS.all(await connection.fetch(SQL.lock_unclaimed_items, id, limit))


async def lock_shared(connection: Connection, ids: Iterable[UUID]) -> list[UUID]:
    """Prevent batches from being paused or resumed until the transaction ends; return the paused ones."""
    wanted = sorted(ids)
    return [row["id"] for row in await connection.fetch(SQL.lock_shared, wanted) if row["paused"]] if wanted else []


async def lock_shared_with_state(connection: Connection, ids: Iterable[UUID]) -> dict[UUID, Record]:
    """Like `lock_shared`, but return for each batch whether it is paused or cancelled."""
    wanted = sorted(ids)
    return {row["id"]: dict(row) for row in await connection.fetch(SQL.lock_shared, wanted)} if wanted else {}


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


def _to_record(row: Row) -> Record:
    return {key: json.loads(value) if key in _JSON and value is not None else value for key, value in row.items()}
