"""Dead letters: written where the last failure is recorded, resolved once, read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.ids import new_id
from tenuto.model.actors import Actor
from tenuto.model.dead_letters import fingerprint_of_json, summary
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import beside
from tenuto.store.bulk_copy import columns_of

SQL = beside(__file__)

Record = dict[str, Any]


async def write(connection: Connection, failures: Sequence[tuple[UUID, str | None]]) -> int:
    """A letter for each (activity of the last attempt, its error as JSON); how many. Where it is recorded."""
    if not failures:
        return 0
    rows = [
        (new_id(), activity, summary(json.loads(error) if error else None)[:2000], fingerprint_of_json(error))
        for activity, error in failures
    ]
    return len(await connection.fetch(SQL.write, *columns_of(rows)))


async def missing(connection: Connection, since: UUID, before: datetime, limit: int) -> list[tuple[UUID, str | None]]:
    """(activity, error as JSON) of final failures that left no letter."""
    return [(row["id"], row["error"]) for row in await connection.fetch(SQL.missing, since, before, limit)]


async def letter(database: Database, id: UUID) -> Record | None:
    """One letter."""
    row = await database.one(SQL.letter, id)
    return None if row is None else {**dict(row), "input": json.loads(row["input"])}


async def concerned(connection: Connection, ids: Sequence[UUID]) -> tuple[list[str], set[UUID]]:
    """The manifests (by external id) and batches of open letters: to be held before the letters are."""
    rows = await connection.fetch(SQL.concerned, ids)
    batches = {row["batch_id"] for row in rows if row["batch_id"] is not None}
    return sorted({row["external_id"] for row in rows}), batches


async def lock_open(connection: Connection, ids: Sequence[UUID]) -> list[Record]:
    """Of these, those that wait for a decision, held until the transaction ends."""
    return [dict(row) for row in await connection.fetch(SQL.lock_letters, ids)]


async def resolve(
    connection: Connection,
    pairs: Sequence[tuple[UUID, UUID | None]],
    now: datetime,
    by: Actor,
    note: str | None,
    request: UUID,
) -> set[UUID]:
    """Resolve (letter, task that runs it again or None if acknowledged)."""
    if not pairs:
        return set()
    ids, tasks = columns_of(pairs)
    rows = await connection.fetch(SQL.resolve, ids, tasks, now, by.type, by.id, by.name, note, request)
    return {row["id"] for row in rows}


async def resolved_by(connection: Connection, ids: Sequence[UUID], request: UUID) -> dict[UUID, UUID]:
    """Those that a request has resolved, also if only its reply was lost or it was cut off, each with the task that
    runs it again."""
    return {row["id"]: row["retry_task_id"] for row in await connection.fetch(SQL.resolved_by, ids, request)}


async def resolved_before(database: Database, request: UUID) -> tuple[list[UUID], datetime | None]:
    """Everything a request has resolved so far, and since when."""
    ids = [row["id"] for row in await database.all(SQL.resolved_before, request)]
    return ids, await database.value(SQL.first_resolved, request)


async def list_letters(
    database: Database,
    *,
    below: UUID | None,
    status: str | None,
    manifest: str | None,
    fingerprint: str | None,
    batch: UUID | None,
    limit: int,
) -> list[Record]:
    """Letters, the newest first."""
    rows = await database.all(SQL.list_letters, below, status, manifest, fingerprint, batch, limit)
    return [dict(row) for row in rows]


async def groups(database: Database, manifest: str | None, batch: UUID | None, limit: int) -> list[Record]:
    """Open letters by the kind of failure, the most frequent first."""
    return [dict(row) for row in await database.all(SQL.groups, manifest, limit, batch)]


async def summary_of(database: Database, ids: Sequence[UUID], limit: int) -> list[Record]:
    """What some letters are about: of each manifest and kind of failure, how many."""
    return [dict(row) for row in await database.all(SQL.summary, ids, limit)]


async def selection(
    database: Database,
    *,
    manifest: str | None,
    fingerprint: str | None,
    batch: UUID | None,
    until: datetime | None,
) -> list[UUID]:
    """The open letters a filter stands for now, all of them."""
    rows = await database.all(SQL.selection, manifest, fingerprint, batch, until)
    return [row["id"] for row in rows]


async def find(database: Database, low: UUID, high: UUID) -> list[UUID]:
    """Up to three ids of letters between two."""
    return [row["id"] for row in await database.all(SQL.find_letters, low, high)]


async def forget(database: Database, cutoff: datetime, limit: int) -> int:
    """Let go a small batch of letters that were resolved before the cut-off; how many."""
    return len(await database.all(SQL.forget_resolved, cutoff, limit))
