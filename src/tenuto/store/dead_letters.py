"""Rows of dead letters: written with the final failure, resolved once, read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.ids import new_id
from tenuto.model.actors import Actor
from tenuto.model.dead_letters import error_fingerprint_from_json, error_summary
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.bulk_copy import to_columns

SQL = load_statements(__file__)

Record = dict[str, Any]


async def write_dead_letters(connection: Connection, failures: Sequence[tuple[UUID, str | None]]) -> int:
    """Write a dead letter for each (activity of the last attempt, error as JSON); return their number."""
    if not failures:
        return 0
    rows = [
        (
            new_id(),
            activity,
            error_summary(json.loads(error) if error else None)[:2000],
            error_fingerprint_from_json(error),
        )
        for activity, error in failures
    ]
    return len(await connection.fetch(SQL.write_dead_letters, *to_columns(rows)))


async def find_missing_dead_letters(
    connection: Connection, since: UUID, before: datetime, limit: int
) -> list[tuple[UUID, str | None]]:
    """Return (activity, error as JSON) of final failures without a dead letter."""
    return [
        (row["id"], row["error"]) for row in await connection.fetch(SQL.find_missing_dead_letters, since, before, limit)
    ]


async def load_dead_letter(database: Database, id: UUID) -> Record | None:
    """Return one dead letter."""
    row = await database.fetch_one(SQL.load_dead_letter, id)
    return None if row is None else {**dict(row), "input": json.loads(row["input"])}


async def find_owners(connection: Connection, ids: Sequence[UUID]) -> tuple[list[str], set[UUID]]:
    """Return the manifests (external ids) and batches of open dead letters, which must be locked first."""
    rows = await connection.fetch(SQL.list_owners, ids)
    batches = {row["batch_id"] for row in rows if row["batch_id"] is not None}
    return sorted({row["external_id"] for row in rows}), batches


async def lock_open_dead_letters(connection: Connection, ids: Sequence[UUID]) -> list[Record]:
    """Return and lock the open ones of these dead letters."""
    return [dict(row) for row in await connection.fetch(SQL.lock_open_dead_letters, ids)]


async def resolve_dead_letters(
    connection: Connection,
    pairs: Sequence[tuple[UUID, UUID | None]],
    now: datetime,
    by: Actor,
    note: str | None,
    request: UUID,
) -> set[UUID]:
    """Resolve pairs of (dead letter, task that retries it, or None if acknowledged); return the resolved ids."""
    if not pairs:
        return set()
    ids, tasks = to_columns(pairs)
    rows = await connection.fetch(SQL.resolve_dead_letters, ids, tasks, now, by.type, by.id, by.name, note, request)
    return {row["id"] for row in rows}


async def find_resolved_by_request(connection: Connection, ids: Sequence[UUID], request: UUID) -> dict[UUID, UUID]:
    """Return the dead letters that a request has resolved, also before a lost reply, with the tasks that retry them."""
    return {
        row["id"]: row["retry_task_id"] for row in await connection.fetch(SQL.find_resolved_by_request, ids, request)
    }


async def list_resolved_by_request(database: Database, request: UUID) -> tuple[list[UUID], datetime | None]:
    """Return all dead letters that a request has resolved, and the instant of the first."""
    ids = [row["id"] for row in await database.fetch_all(SQL.list_resolved_by_request, request)]
    return ids, await database.fetch_value(SQL.load_first_resolved_at, request)


async def list_dead_letters(
    database: Database,
    *,
    below: UUID | None,
    status: str | None,
    manifest: str | None,
    fingerprint: str | None,
    batch: UUID | None,
    limit: int,
) -> list[Record]:
    """Return dead letters, newest first."""
    rows = await database.fetch_all(SQL.list_dead_letters, below, status, manifest, fingerprint, batch, limit)
    return [dict(row) for row in rows]


async def list_failure_groups(database: Database, manifest: str | None, batch: UUID | None, limit: int) -> list[Record]:
    """Group open dead letters by kind of failure, most frequent first."""
    return [dict(row) for row in await database.fetch_all(SQL.list_failure_groups, manifest, limit, batch)]


async def summarise_dead_letters(database: Database, ids: Sequence[UUID], limit: int) -> list[Record]:
    """Count dead letters by manifest and kind of failure."""
    return [dict(row) for row in await database.fetch_all(SQL.summarise_dead_letters, ids, limit)]


async def select_open_dead_letters(
    database: Database,
    *,
    manifest: str | None,
    fingerprint: str | None,
    batch: UUID | None,
    until: datetime | None,
) -> list[UUID]:
    """Return all open dead letters that match a filter."""
    rows = await database.fetch_all(SQL.select_open_dead_letters, manifest, fingerprint, batch, until)
    return [row["id"] for row in rows]


async def find_dead_letters(database: Database, low: UUID, high: UUID) -> list[UUID]:
    """Return up to three ids of dead letters in a range."""
    return [row["id"] for row in await database.fetch_all(SQL.find_dead_letters, low, high)]


async def delete_resolved_dead_letters(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of dead letters that were resolved before the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_resolved_dead_letters, cutoff, limit))
