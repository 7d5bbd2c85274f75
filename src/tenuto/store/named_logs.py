"""Rows of named logs: entries are appended, read and deleted by retention; never changed."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.postgres.database import Database, Row
from tenuto.postgres.sql_loader import load_statements

SQL = load_statements(__file__)

_LOWEST_NUMBER = 0
_HIGHEST_NUMBER = 2**63 - 1

LogEntry = dict[str, Any]


async def append_entry(
    database: Database,
    log: str,
    at: datetime,
    message: str,
    fields: dict[str, Any] | None,
    *,
    key: UUID,
    task_id: UUID | None = None,
) -> LogEntry:
    """Append an entry, once for each key; return the stored one."""
    text = None if fields is None else json.dumps(fields, ensure_ascii=False)
    row = await database.write_one(SQL.append_entry, log, at, message, text, key, task_id)
    assert row is not None
    return _entry(row)


async def list_logs(database: Database, after: str, limit: int) -> list[LogEntry]:
    """Return the logs by name, each with its newest entry."""
    return [dict(row) for row in await database.fetch_all(SQL.list_logs, after, limit)]


async def list_newest_entries(database: Database, log: str, below: int | None, limit: int) -> list[LogEntry]:
    """Return entries of a log, newest first."""
    bound = _HIGHEST_NUMBER if below is None else below
    return [_entry(row) for row in await database.fetch_all(SQL.list_newest_entries, log, bound, limit)]


async def list_oldest_entries(database: Database, log: str, above: int | None, limit: int) -> list[LogEntry]:
    """Return entries of a log, oldest first."""
    bound = _LOWEST_NUMBER if above is None else above
    return [_entry(row) for row in await database.fetch_all(SQL.list_oldest_entries, log, bound, limit)]


async def delete_old_entries(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of entries older than the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_old_entries, cutoff, limit))


def _entry(row: Row) -> LogEntry:
    return {**row, "fields": None if row["fields"] is None else json.loads(row["fields"])}
