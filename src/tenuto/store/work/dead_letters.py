"""Rows of dead letters: written with the final failure, resolved once, read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from tenuto.ids import new_id
from tenuto.model.access.actors import Actor
from tenuto.model.filters import Filter
from tenuto.model.work.dead_letters import DeadLetterState, error_fingerprint_from_json, error_summary
from tenuto.postgres.bulk_copy import to_columns
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.filter_sql import DEAD_LETTERS, CappedCount, count_rows, count_rows_of_each
from tenuto.store.row_mapping import FromJson, RowMapper
from tenuto.store.work.activities import ActivityDetails

SQL = load_statements(__file__)


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """One dead letter."""

    id: UUID
    manifest_id: UUID | None
    external_id: str
    """External id of the manifest; empty for a task without a manifest."""
    kind: str
    """``job``, or the step kind of the task."""
    name: str
    """Name of the job or step."""
    item: str
    """Key of the item, or the id of its task; empty for a run of the manifest."""
    batch_id: UUID | None
    task_id: UUID
    activity_id: UUID
    """The last attempt."""
    dead_lettered_at: datetime
    reason: str
    fingerprint: str
    attempt_count: int
    state: DeadLetterState
    resolved_at: datetime | None
    resolved_by: str | None
    note: str | None
    retry_task_id: UUID | None
    """The task that retries it."""


@dataclass(frozen=True, slots=True)
class DeadLetterDetails(DeadLetterRecord):
    """A dead letter with its input, the actor of its resolution and the activities of its attempts, oldest first."""

    input: Annotated[Any, FromJson]
    resolved_by_type: str | None
    resolved_by_id: str | None
    attempts: Sequence[ActivityDetails]


@dataclass(frozen=True, slots=True)
class OpenDeadLetter:
    """Columns of an open dead letter that a retry uses."""

    id: UUID
    manifest_id: UUID | None
    external_id: str
    item: str
    batch_id: UUID | None
    task_id: UUID
    input: str
    """The input as JSON."""
    kind: str
    name: str
    task: Annotated[Mapping[str, Any] | None, FromJson]
    """Options of a task without a manifest: queue, priority, policy and the like."""


_DEAD_LETTERS = RowMapper(DeadLetterRecord, SQL.list_dead_letters)
_DETAILS = RowMapper(DeadLetterDetails, SQL.load_dead_letter, computed=("attempts",))
_OPEN_DEAD_LETTERS = RowMapper(OpenDeadLetter, SQL.lock_open_dead_letters)


async def write_dead_letters(connection: Connection, failures: Sequence[tuple[UUID, str | None]]) -> int:
    """Write a dead letter for each (activity of the last attempt, error as JSON); return their number."""
    if not failures:
        return 0
    rows = [(new_id(), activity, *_describe_error(error)) for activity, error in failures]
    return len(await connection.fetch(SQL.write_dead_letters, *to_columns(rows)))


async def load_task_snapshots(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, str]:
    """Return what a retry needs of each of these open tasks, as JSON."""
    if not ids:
        return {}
    return {row["id"]: row["snapshot"] for row in await connection.fetch(SQL.load_task_snapshots, ids)}


async def write_task_dead_letters(connection: Connection, failures: Sequence[tuple[UUID, str | None, str]]) -> int:
    """Write a dead letter for each task without a manifest, given as (activity of the last attempt, error as JSON,
    snapshot of the task); return their number."""
    if not failures:
        return 0
    rows = [(new_id(), activity, *_describe_error(error), snapshot) for activity, error, snapshot in failures]
    return len(await connection.fetch(SQL.write_task_dead_letters, *to_columns(rows)))


def _describe_error(error: str | None) -> tuple[str, str]:
    return error_summary(json.loads(error) if error else None)[:2000], error_fingerprint_from_json(error)


async def find_dead_letter_of_task(database: Database, task_id: UUID) -> UUID | None:
    """Return the dead letter of a task, open or resolved."""
    found: UUID | None = await database.fetch_value(SQL.find_dead_letter_of_task, task_id)
    return found


async def find_missing_dead_letters(
    connection: Connection, since: UUID, before: datetime, limit: int
) -> list[tuple[UUID, str | None]]:
    """Return (activity, error as JSON) of final failures without a dead letter."""
    return [
        (row["id"], row["error"]) for row in await connection.fetch(SQL.find_missing_dead_letters, since, before, limit)
    ]


async def load_dead_letter(database: Database, id: UUID) -> DeadLetterDetails | None:
    """Return one dead letter, without its attempts."""
    return _DETAILS.optional(await database.fetch_one(SQL.load_dead_letter, id), attempts=[])


async def find_owners(connection: Connection, ids: Sequence[UUID]) -> tuple[list[str], set[UUID]]:
    """Return the manifests (external ids) and batches of open dead letters, which must be locked first."""
    rows = await connection.fetch(SQL.list_owners, ids)
    batches = {row["batch_id"] for row in rows if row["batch_id"] is not None}
    return sorted({row["external_id"] for row in rows}), batches


async def lock_open_dead_letters(connection: Connection, ids: Sequence[UUID]) -> list[OpenDeadLetter]:
    """Return and lock the open ones of these dead letters."""
    return _OPEN_DEAD_LETTERS.all(await connection.fetch(SQL.lock_open_dead_letters, ids))


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
    database: Database, filter: Filter, *, below: UUID | None = None, limit: int
) -> list[DeadLetterRecord]:
    """Return dead letters, newest first."""
    statement = DEAD_LETTERS.add_filter(SQL.list_dead_letters, filter, below, limit)
    return _DEAD_LETTERS.all(await database.fetch_all(*statement))


async def count_dead_letters(database: Database, filter: Filter) -> CappedCount:
    """Count dead letters."""
    return await count_rows(database, DEAD_LETTERS, SQL.count_dead_letters, filter)


async def count_dead_letters_of_each(database: Database, filters: Sequence[Filter]) -> list[CappedCount]:
    """Count dead letters that meet each of the filters."""
    return await count_rows_of_each(database, DEAD_LETTERS, SQL.count_dead_letters, filters)


async def select_open_dead_letters(database: Database, filter: Filter, until: datetime | None) -> list[UUID]:
    """Return all open dead letters that meet a filter and were written up to an instant."""
    statement = DEAD_LETTERS.add_filter(SQL.select_open_dead_letters, filter, until)
    return [row["id"] for row in await database.fetch_all(*statement)]


async def find_dead_letters(database: Database, low: UUID, high: UUID) -> list[UUID]:
    """Return up to three ids of dead letters in a range."""
    return [row["id"] for row in await database.fetch_all(SQL.find_dead_letters, low, high)]


async def delete_resolved_dead_letters(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of dead letters that were resolved before the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_resolved_dead_letters, cutoff, limit))
