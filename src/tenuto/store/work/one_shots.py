"""Rows of one-shots: create, list and lock them. A one-shot is a task; the registry is a view of the tasks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

from tenuto.model.access.actors import Actor
from tenuto.model.filters import Filter
from tenuto.model.work.one_shots import (
    EndedOneShot,
    OneShotAttempt,
    OneShotSummary,
    RuntimeStatus,
    public_error,
    runtime_status_of_outcome,
    runtime_status_of_task,
)
from tenuto.model.work.tasks import CLAIM_DEFAULTS, Task
from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.filter_sql import ENDED_ONE_SHOTS, OPEN_ONE_SHOTS, CappedCount, count_rows, count_rows_of_each
from tenuto.store.row_mapping import FromColumn, FromJson, PositionalMapper, RowMapper
from tenuto.store.work.activities import id_range_of_prefix

SQL = load_statements(__file__)

OneShotState = Literal["open", "ended"]
TaskRow: TypeAlias = tuple[Any, ...]

_TASKS = PositionalMapper(Task, SQL.lock_unclaimed, SQL.lock_open, defaults=CLAIM_DEFAULTS)
_LOWEST_ID = UUID(int=0)
_LIST_START = (datetime(1970, 1, 1, tzinfo=UTC), _LOWEST_ID)


@dataclass(frozen=True, slots=True)
class OneShotAttemptRecord(OneShotAttempt):
    """One attempt at a one-shot, from its task or activity."""

    input: Annotated[Any, FromJson]
    output: Annotated[Any, FromJson]
    error: Annotated[dict[str, Any] | None, FromJson]
    progress: Annotated[Any, FromJson]


@dataclass(frozen=True, slots=True)
class OpenOneShotRecord(OneShotSummary):
    """An open one-shot."""

    runtime_status: Annotated[RuntimeStatus, FromColumn(runtime_status_of_task)]


@dataclass(frozen=True, slots=True)
class EndedOneShotRecord(EndedOneShot):
    """An ended one-shot."""

    runtime_status: Annotated[RuntimeStatus, FromColumn(runtime_status_of_outcome)]
    output: Annotated[Any, FromJson]


_ATTEMPTS = RowMapper(OneShotAttemptRecord, SQL.list_attempts)
_OPEN = RowMapper(OpenOneShotRecord, SQL.list_open)
_ENDED = RowMapper(EndedOneShotRecord, SQL.list_ended, computed=("error",), unmapped=("error",))


async def load_state(database: Database, id: UUID) -> OneShotState | None:
    """Return whether a one-shot is open or ended; None if it does not exist."""
    found: OneShotState | None = await database.fetch_value(SQL.load_state, id)
    return found


async def list_attempts(database: Database, id: UUID) -> list[OneShotAttemptRecord]:
    """Return all attempts at a one-shot, oldest first."""
    return _ATTEMPTS.all(await database.fetch_all(SQL.list_attempts, id))


async def list_open(
    database: Database, filter: Filter, *, after: tuple[datetime, UUID] | None, limit: int
) -> list[OpenOneShotRecord]:
    """Return open one-shots, next one first."""
    start, due = after or _LIST_START, filter.bounds("due")
    if due.low is not None:
        start = max(start, (due.low, _LOWEST_ID))
    statement = OPEN_ONE_SHOTS.add_filter(SQL.list_open, filter, *start, due.high, limit)
    return _OPEN.all(await database.fetch_all(*statement))


async def list_ended(database: Database, filter: Filter, *, below: UUID | None, limit: int) -> list[EndedOneShotRecord]:
    """Return ended one-shots, newest first."""
    statement = ENDED_ONE_SHOTS.add_filter(SQL.list_ended, filter, below, limit)
    return [_to_ended(row) for row in await database.fetch_all(*statement)]


async def count_one_shots(database: Database, filter: Filter, *, ended: bool) -> CappedCount:
    """Count open or ended one-shots."""
    if ended:
        return await count_rows(database, ENDED_ONE_SHOTS, SQL.count_ended, filter)
    return await count_rows(database, OPEN_ONE_SHOTS, SQL.count_open, filter)


async def count_one_shots_of_each(database: Database, filters: Sequence[Filter], *, ended: bool) -> list[CappedCount]:
    """Count open or ended one-shots that meet each of the filters."""
    if ended:
        return await count_rows_of_each(database, ENDED_ONE_SHOTS, SQL.count_ended, filters)
    return await count_rows_of_each(database, OPEN_ONE_SHOTS, SQL.count_open, filters)


def _to_ended(row: Row) -> EndedOneShotRecord:
    error = None if row["error"] is None else json.loads(row["error"])
    return _ENDED.one(row, error=public_error(error, row["reason"]))


async def find_ids_by_prefix(database: Database, prefix: str) -> list[UUID]:
    """Return up to three ids of one-shots with a prefix that a user entered."""
    return [row["id"] for row in await database.fetch_all(SQL.find_ids_by_prefix, *id_range_of_prefix(prefix))]


# --- wiping the registry -------------------------------------------------------------------------------------------


async def lock_unclaimed(connection: Connection, limit: int) -> AsyncIterator[list[Task]]:
    """Lock all unclaimed one-shots and yield them in batches, without inputs: ending a one-shot does not need them."""
    await connection.execute(SQL.use_hash_joins)
    place = _LIST_START
    while part := _TASKS.all(await connection.fetch(SQL.lock_unclaimed, *place, limit)):
        yield part
        place = (part[-1].run_at, part[-1].id)


async def lock_open(connection: Connection, limit: int) -> list[Task]:
    """Return and lock some open one-shots; fewer than the limit means all."""
    return _TASKS.all(await connection.fetch(SQL.lock_open, limit))


async def request_cancellation(connection: Connection, ids: Sequence[UUID], now: datetime, by: Actor) -> None:
    """Request cancellation of running one-shots, which removes them from the registry."""
    await connection.execute(SQL.request_cancellation, list(ids), now, by.type, by.id, by.name)


async def find_stopped_at(database: Database, ids: Sequence[UUID], now: datetime) -> set[UUID]:
    """Return which of these were ended or cancelled at this instant."""
    return {row["id"] for row in await database.fetch_all(SQL.find_stopped_at, list(ids), now)}
