"""Queries of the doctor checks. Read-only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from tenuto.clock import monotonic_seconds
from tenuto.postgres.database import DRIVER_ERRORS, Database, translate_driver_error
from tenuto.postgres.sql_loader import load_statements

SQL = load_statements(__file__)

_SET_SHORT_TIMEOUTS = "SET LOCAL statement_timeout = '5s'; SET LOCAL lock_timeout = '1s'"
_SCAN_TIMEOUT_SECONDS = 20.0
_TEXTS_PER_FETCH = 20
"""Each may have an input, an output and a log of about a megabyte."""


async def run_check_query(database: Database, question: str, *values: Any) -> list[dict[str, Any]] | None:
    """Return the rows that violate a rule; None if the query took too long.

    Without retries and with short timeouts, to spare a database in trouble.
    """
    try:
        async with database.connection() as connection, connection.transaction(readonly=True):
            await connection.execute(_SET_SHORT_TIMEOUTS)
            return [dict(row) for row in await connection.fetch(getattr(SQL, question), *values)]
    except (asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError):
        return None
    except DRIVER_ERRORS as error:
        raise translate_driver_error(error) from error


async def load_server_info(database: Database) -> dict[str, Any]:
    """Return the server version, the settings that affect durability, and the server's time."""
    row = await database.fetch_one(SQL.server)
    assert row is not None
    return dict(row)


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


async def load_ledgers(database: Database, schedules: int, rows: int) -> list[ScheduleLedger] | None:
    """Return recent ledger entries of enabled schedules since their last change; None if it took too long."""
    found = await run_check_query(database, "ledgers", schedules, rows)
    if found is None:
        return None
    return [
        ScheduleLedger(
            row["id"], row["name"], row["trigger"], row["next_run_at"],
            list(zip(row["instants"], row["untils"], strict=True)),
        )
        for row in found
    ]  # fmt: skip


async def load_enabled_definitions(database: Database, max_count: int) -> dict[str, list[dict[str, Any]]] | None:
    """Return enabled schedules and manifests, those without a next run first; None if it took too long."""
    schedules = await run_check_query(database, "enabled_schedules", max_count)
    manifests = await run_check_query(database, "enabled_manifests", max_count)
    if schedules is None or manifests is None:
        return None
    return {"schedule": schedules, "manifest": manifests}


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
