"""Named logs: entries are appended, read and, in the end, let go; never changed."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.postgres.database import Database, Row
from tenuto.postgres.sql_loader import beside

SQL = beside(__file__)

_BEFORE_THE_FIRST = 0
_AFTER_THE_LAST = 2**63 - 1

Entry = dict[str, Any]


async def append(
    database: Database,
    log: str,
    at: datetime,
    message: str,
    fields: dict[str, Any] | None,
    *,
    key: UUID,
    task_id: UUID | None = None,
) -> Entry:
    """Append an entry, once for each key; the one that stands."""
    text = None if fields is None else json.dumps(fields, ensure_ascii=False)
    row = await database.one(SQL.append, log, at, message, text, key, task_id)
    assert row is not None
    return _entry(row)


async def names(database: Database, after: str, limit: int) -> list[Entry]:
    """The logs there are, by name, each with its newest entry."""
    return [dict(row) for row in await database.all(SQL.names, after, limit)]


async def newest(database: Database, log: str, below: int | None, limit: int) -> list[Entry]:
    """Entries of a log, the newest first."""
    bound = _AFTER_THE_LAST if below is None else below
    return [_entry(row) for row in await database.all(SQL.newest, log, bound, limit)]


async def oldest(database: Database, log: str, above: int | None, limit: int) -> list[Entry]:
    """Entries of a log, the oldest first."""
    bound = _BEFORE_THE_FIRST if above is None else above
    return [_entry(row) for row in await database.all(SQL.oldest, log, bound, limit)]


async def forget(database: Database, cutoff: datetime, limit: int) -> int:
    """Let go a small batch of entries older than the cut-off; how many."""
    return len(await database.all(SQL.forget, cutoff, limit))


def _entry(row: Row) -> Entry:
    return {**row, "fields": None if row["fields"] is None else json.loads(row["fields"])}
