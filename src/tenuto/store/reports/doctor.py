"""What the doctor asks the database: each question by its name, the rows that answer it. Nothing here judges."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from tenuto.clock import steady
from tenuto.postgres.database import DRIVER_ERRORS, Database, translate
from tenuto.postgres.sql_loader import beside

SQL = beside(__file__)

_LITTLE_PATIENCE = "SET LOCAL statement_timeout = '5s'; SET LOCAL lock_timeout = '1s'"
_PATIENCE_FOR_ALL = 20.0
_TEXTS_AT_ONCE = 20
"""Each may have an input, an output and a log of a megabyte or so."""


async def ask(database: Database, question: str, *values: Any) -> list[dict[str, Any]] | None:
    """The rows that offend against one rule, an empty list if it holds; None if the answer took too long.

    Asked once and with little patience: a database in trouble is not to be pressed further.
    """
    try:
        async with database.connection() as connection, connection.transaction(readonly=True):
            await connection.execute(_LITTLE_PATIENCE)
            return [dict(row) for row in await connection.fetch(getattr(SQL, question), *values)]
    except (asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError):
        return None
    except DRIVER_ERRORS as error:
        raise translate(error) from error


async def server(database: Database) -> dict[str, Any]:
    """Version, settings that decide whether a commit lasts, and the time by the server's clock."""
    row = await database.one(SQL.server)
    assert row is not None
    return dict(row)


async def history_begins(database: Database, horizon: UUID, most: int) -> UUID:
    """The task from which on histories are looked at, so that the cost does not grow with the past."""
    begins: UUID = await database.value(SQL.history_begins, horizon, most)
    return begins


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the ledger says of one schedule, the oldest first, and what is due next."""

    schedule_id: UUID
    name: str
    trigger: str
    next_run_at: datetime | None
    told: list[tuple[datetime, datetime | None]]
    """Each due instant, and until when it stands for others."""


async def ledgers(database: Database, schedules: int, rows: int) -> list[Ledger] | None:
    """The newest part of the ledger of enabled schedules, since each was last changed; None if it took too long."""
    found = await ask(database, "ledgers", schedules, rows)
    if found is None:
        return None
    return [
        Ledger(
            row["id"], row["name"], row["trigger"], row["next_run_at"],
            list(zip(row["instants"], row["untils"], strict=True)),
        )
        for row in found
    ]  # fmt: skip


async def enabled(database: Database, most: int) -> dict[str, list[dict[str, Any]]] | None:
    """Enabled schedules and manifests as they are stored, those without a next run first; None if it took too long."""
    schedules = await ask(database, "enabled_schedules", most)
    manifests = await ask(database, "enabled_manifests", most)
    if schedules is None or manifests is None:
        return None
    return {"schedule": schedules, "manifest": manifests}


async def read_texts(
    database: Database, most: int, look: Callable[[Sequence[tuple[str, str]]], Awaitable[None]]
) -> bool:
    """Have the newest texts that anybody may read looked at, a few (where, what) at a time: together they may be larger
    than the memory. False if it took too long, and not all were."""
    until = steady() + _PATIENCE_FOR_ALL
    try:
        async with database.connection() as connection, connection.transaction(readonly=True):
            await connection.execute(_LITTLE_PATIENCE)
            cursor = await connection.cursor(SQL.texts, most)
            while rows := await cursor.fetch(_TEXTS_AT_ONCE):
                if steady() > until:
                    return False
                await look([(row["place"], row["text"]) for row in rows])
            return True
    except (asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError):
        return False
    except DRIVER_ERRORS as error:
        raise translate(error) from error
