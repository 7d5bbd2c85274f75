"""Rows of named logs: entries are appended, read and deleted by retention; never changed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from tenuto.model.filter_keys import LOG_ENTRY_KEYS
from tenuto.model.filters import Filter
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.filter_sql import LOG_ENTRIES
from tenuto.store.row_mapping import FromJson, RowMapper

SQL = load_statements(__file__)

_LOWEST_NUMBER = 0
_HIGHEST_NUMBER = 2**63 - 1
_NAMES_PER_SEARCH = 10_000
"""Names that one statement of a search reads; a search of more names takes several short statements."""
EVERY_ENTRY = Filter(LOG_ENTRY_KEYS)


@dataclass(frozen=True, slots=True)
class LogEntryRecord:
    """One entry of a named log."""

    id: int
    log: str
    at: datetime
    message: str
    fields: Annotated[dict[str, Any] | None, FromJson]
    task_id: UUID | None
    """The task that appended it; None for an operator."""


@dataclass(frozen=True, slots=True)
class NamedLogRecord:
    """A named log with its newest entry."""

    log: str
    last_entry_id: int
    last_entry_at: datetime
    last_message: str


_ENTRIES = RowMapper(LogEntryRecord, SQL.list_newest_entries, SQL.list_oldest_entries)
_APPENDED = RowMapper(LogEntryRecord, SQL.append_entry, unmapped=("is_new",))
_LOGS = RowMapper(NamedLogRecord, SQL.list_logs, SQL.load_newest_entries)


async def append_entry(
    database: Database,
    log: str,
    at: datetime,
    message: str,
    fields: dict[str, Any] | None,
    *,
    key: UUID,
    task_id: UUID | None = None,
) -> LogEntryRecord:
    """Append an entry, once for each key; return the stored one."""
    row = await database.write_one(SQL.append_entry, log, at, message, _fields_text(fields), key, task_id)
    assert row is not None
    return _APPENDED.one(row)


async def append_entry_in_tx(
    connection: Connection, log: str, at: datetime, message: str, fields: dict[str, Any] | None, *, key: UUID
) -> tuple[LogEntryRecord, bool]:
    """Like `append_entry`, within a transaction; also return whether the entry is new."""
    row = await connection.fetchrow(SQL.append_entry, log, at, message, _fields_text(fields), key, None)
    assert row is not None
    return _APPENDED.one(row), row["is_new"]


def _fields_text(fields: dict[str, Any] | None) -> str | None:
    return None if fields is None else json.dumps(fields, ensure_ascii=False)


async def list_logs(database: Database, after: str, limit: int, search: str = "") -> list[NamedLogRecord]:
    """Return the logs whose name contains a text, by name, each with its newest entry."""
    if not search:
        return _LOGS.all(await database.fetch_all(SQL.list_logs, after, limit))
    names: list[str] = []
    while len(names) < limit:
        (row,) = await database.fetch_all(SQL.search_names, after, search, _NAMES_PER_SEARCH)
        names += row["names"]
        if row["searched_count"] < _NAMES_PER_SEARCH:
            break
        after = row["last_name"]
    return _LOGS.all(await database.fetch_all(SQL.load_newest_entries, names[:limit]))


async def list_newest_entries(
    database: Database, log: str, below: int | None, limit: int, filter: Filter = EVERY_ENTRY
) -> list[LogEntryRecord]:
    """Return entries of a log that meet a filter, newest first."""
    bound = _HIGHEST_NUMBER if below is None else below
    statement = LOG_ENTRIES.add_filter(SQL.list_newest_entries, filter.where(log=log), log, bound, limit)
    return _ENTRIES.all(await database.fetch_all(*statement))


async def list_oldest_entries(
    database: Database, log: str, above: int | None, limit: int, filter: Filter = EVERY_ENTRY
) -> list[LogEntryRecord]:
    """Return entries of a log that meet a filter, oldest first."""
    bound = _LOWEST_NUMBER if above is None else above
    statement = LOG_ENTRIES.add_filter(SQL.list_oldest_entries, filter.where(log=log), log, bound, limit)
    return _ENTRIES.all(await database.fetch_all(*statement))


async def delete_old_entries(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of entries older than the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_old_entries, cutoff, limit))
