"""Queries of the doctor checks. Read-only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from tenuto.clock import monotonic_seconds
from tenuto.errors import Invalid, StoreError
from tenuto.postgres.database import DRIVER_ERRORS, Database, Row, translate_driver_error
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import RowMapper

SQL = load_statements(__file__)

_SET_SHORT_TIMEOUTS = "SET LOCAL statement_timeout = '5s'; SET LOCAL lock_timeout = '1s'"
_SCAN_TIMEOUT_SECONDS = 20.0
_TEXTS_PER_FETCH = 20
"""Each may have an input, an output and a log of about a megabyte."""


CheckRow = Mapping[str, object]
"""A row that violates a rule: the values that the text of its check names."""


async def run_check_query(database: Database, question: str, *values: Any) -> list[CheckRow] | None:
    """Return the rows that violate a rule; None if the query took too long."""
    rows = await _fetch_all(database, getattr(SQL, question), *values)
    return None if rows is None else [dict(row) for row in rows]


async def _fetch_all(database: Database, statement: str, *values: Any) -> list[Row] | None:
    """Return the rows of a query; None if it took too long.

    Without retries and with short timeouts, to spare a database in trouble.
    """
    try:
        async with database.connection() as connection, connection.transaction(readonly=True):
            await connection.execute(_SET_SHORT_TIMEOUTS)
            return await connection.fetch(statement, *values)
    except (asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError):
        return None
    except DRIVER_ERRORS as error:
        raise translate_driver_error(error) from error


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The server version, the settings that affect durability, and the server's time."""

    version: str
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    now: datetime


_SERVERS = RowMapper(ServerInfo, SQL.server)


async def load_server_info(database: Database) -> ServerInfo:
    """Return facts about the database server."""
    row = await database.fetch_one(SQL.server)
    assert row is not None
    return _SERVERS.one(row)


async def find_write_error(database: Database) -> StoreError | Invalid | None:
    """Return why the server cannot write to its disk: the disk is full or defective. None if it can."""
    try:
        async with database.connection() as connection, connection.transaction(readonly=True):
            await connection.execute(_SET_SHORT_TIMEOUTS)
            await connection.fetch(SQL.set_small_work_memory)
            await connection.fetch(SQL.write_temporary_file)
    except (asyncpg.DiskFullError, asyncpg.PostgresIOError) as error:
        return translate_driver_error(error)
    except (asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError):
        return None  # a busy server; other checks report it
    except DRIVER_ERRORS as error:
        raise translate_driver_error(error) from error
    return None


async def find_history_start(database: Database, horizon: UUID, max_count: int) -> UUID:
    """Return the task from which on histories are checked, so that the cost does not grow with the past."""
    begins: UUID = await database.fetch_value(SQL.history_begins, horizon, max_count)
    return begins


@dataclass(frozen=True, slots=True)
class ScheduleLedger:
    """Recent ledger entries of one schedule, oldest first, and its next run."""

    schedule_id: UUID
    name: str
    trigger: str
    next_run_at: datetime | None
    occurrences: list[tuple[datetime, datetime | None]]
    """Each due instant, and the end of the period that its decision covers."""


_LEDGERS = RowMapper(ScheduleLedger, SQL.ledgers, computed=("occurrences",), unmapped=("instants", "untils"))


async def load_ledgers(database: Database, schedules: int, rows: int) -> list[ScheduleLedger] | None:
    """Return recent ledger entries of enabled schedules since their last change; None if it took too long."""
    found = await _fetch_all(database, SQL.ledgers, schedules, rows)
    if found is None:
        return None
    return [_LEDGERS.one(row, occurrences=list(zip(row["instants"], row["untils"], strict=True))) for row in found]


@dataclass(frozen=True, slots=True)
class EnabledSchedule:
    """An enabled schedule with its parts as stored, which may be unreadable."""

    id: UUID
    name: str
    trigger: str
    plan: str
    overlap: str
    misfire: str
    next_run_at: datetime | None
    planned: bool


@dataclass(frozen=True, slots=True)
class EnabledManifest:
    """An enabled manifest with its definition as stored, which may be unreadable."""

    id: UUID
    name: str
    """The external id."""
    definition: str
    next_run_at: datetime | None
    planned: bool


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A queued manual run with its request as stored, which may be unreadable."""

    name: str
    """Name of the schedule."""
    due_at: datetime
    request: str


_SCHEDULES = RowMapper(EnabledSchedule, SQL.enabled_schedules)
_MANIFESTS = RowMapper(EnabledManifest, SQL.enabled_manifests)
_QUEUED_REQUESTS = RowMapper(QueuedRequest, SQL.queued_requests)


async def load_enabled_definitions(
    database: Database, max_count: int
) -> list[EnabledSchedule | EnabledManifest] | None:
    """Return enabled schedules and manifests, those without a next run first; None if it took too long."""
    schedules = await _fetch_all(database, SQL.enabled_schedules, max_count)
    manifests = await _fetch_all(database, SQL.enabled_manifests, max_count)
    if schedules is None or manifests is None:
        return None
    return [*_SCHEDULES.all(schedules), *_MANIFESTS.all(manifests)]


async def load_queued_requests(database: Database, max_count: int) -> list[QueuedRequest] | None:
    """Return queued manual runs; None if it took too long."""
    found = await _fetch_all(database, SQL.queued_requests, max_count)
    return None if found is None else _QUEUED_REQUESTS.all(found)


async def scan_texts(
    database: Database, max_count: int, inspect: Callable[[Sequence[tuple[str, str]]], Awaitable[None]]
) -> bool:
    """Pass the newest readable texts to ``inspect``, a few (place, text) at a time to limit memory. Return False if it
    took too long."""
    until = monotonic_seconds() + _SCAN_TIMEOUT_SECONDS
    try:
        async with database.connection() as connection, connection.transaction(readonly=True):
            await connection.execute(_SET_SHORT_TIMEOUTS)
            cursor = await connection.cursor(SQL.texts, max_count)
            while rows := await cursor.fetch(_TEXTS_PER_FETCH):
                if monotonic_seconds() > until:
                    return False
                await inspect([(row["place"], row["text"]) for row in rows])
            return True
    except (asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError):
        return False
    except DRIVER_ERRORS as error:
        raise translate_driver_error(error) from error
