"""Rows of the audit log: read entries and link them into the audit chain. `audit_recorder` writes the entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from tenuto.model.access.audit_chain import GENESIS_SEAL, SEALED_FIELDS, SealedEntry
from tenuto.model.filters import Filter
from tenuto.postgres.bulk_copy import to_columns
from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.filter_sql import AUDIT, CappedCount, count_rows
from tenuto.store.row_mapping import FromJson, RowMapper

SQL = load_statements(__file__)


@dataclass(frozen=True, slots=True)
class AuditEntryRecord:
    """One audit entry; position, ``sealed_at`` and seal are None until it is sealed."""

    id: UUID
    at: datetime
    actor_type: str
    actor_id: str | None
    actor_name: str
    source: str
    request_id: str | None
    action: str
    target: str | None
    reason: str | None
    before: Annotated[Any, FromJson]
    after: Annotated[Any, FromJson]
    position: int | None
    sealed_at: datetime | None
    seal: str | None
    """The seal in hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One change of an object, as every user may see it."""

    id: UUID
    at: datetime
    actor_type: str
    actor_name: str
    action: str
    reason: str | None


_ENTRIES = RowMapper(AuditEntryRecord, SQL.list_entries, SQL.load_entry)
_HISTORY = RowMapper(HistoryEntry, SQL.list_history)
_SEALED_ENTRIES = RowMapper(SealedEntry, SQL.load_unsealed_entries, SQL.list_unsealed_entries)


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The last link of the audit chain; position 0 if it is empty."""

    position: int = 0
    seal: bytes = GENESIS_SEAL


_HEADS = RowMapper(ChainHead, SQL.load_head)


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One link with its entry, if that exists."""

    position: int
    audit_id: UUID
    sealed_at: datetime
    seal: bytes
    entry_at: datetime | None
    entry: SealedEntry | None


_LINKS = RowMapper(ChainLink, SQL.list_links, computed=("entry",), unmapped=SEALED_FIELDS)


@dataclass(frozen=True, slots=True)
class UnchainedEntry:
    """An entry that is not linked although it should be; all but its id is None if it was deleted."""

    id: UUID
    action: str | None
    actor_name: str | None
    at: datetime | None
    fault: Literal["inserted", "unsealed", "deleted"]


_UNCHAINED_ENTRIES = RowMapper(UnchainedEntry, SQL.find_unchained_entries)


async def has_unsealed_entries(database: Database) -> bool:
    """Return whether an entry waits to be sealed."""
    return bool(await database.fetch_value(SQL.has_unsealed_entries))


async def try_sealer_lock(connection: Connection) -> bool:
    """Try to become the only sealer until the transaction ends."""
    return bool(await connection.fetchval(SQL.try_sealer_lock))


async def load_head_in_transaction(connection: Connection) -> ChainHead:
    """Return the last link, in a transaction."""
    return _HEADS.optional(await connection.fetchrow(SQL.load_head)) or ChainHead()


async def load_head(database: Database) -> ChainHead:
    """Return the last link."""
    return _HEADS.optional(await database.fetch_one(SQL.load_head)) or ChainHead()


async def load_unsealed_entries(connection: Connection, limit: int) -> list[SealedEntry]:
    """Return entries that wait to be sealed, oldest first."""
    return _SEALED_ENTRIES.all(await connection.fetch(SQL.load_unsealed_entries, limit))


async def append_links(connection: Connection, links: Sequence[tuple[int, UUID, bytes]]) -> None:
    """Append links (position, entry, seal) and mark their entries as sealed."""
    positions, ids, seals = to_columns(links)
    await connection.execute(SQL.insert_links, positions, ids, seals)
    await connection.execute(SQL.delete_pending, ids)


async def list_links(database: Database, after: int, limit: int) -> list[ChainLink]:
    """Return links after a position, in order, each with its entry."""
    return [_to_link(row) for row in await database.fetch_all(SQL.list_links, after, limit)]


def _to_link(row: Row) -> ChainLink:
    return _LINKS.one(row, entry=None if row["id"] is None else _SEALED_ENTRIES.one(row))


async def list_unsealed_entries(database: Database, limit: int) -> list[SealedEntry]:
    """Return entries without a link, oldest first."""
    return _SEALED_ENTRIES.all(await database.fetch_all(SQL.list_unsealed_entries, limit))


async def find_unchained_entries(
    database: Database, too_long: timedelta, below: UUID | None, last: UUID | None, limit: int
) -> list[UnchainedEntry]:
    """Return entries that are neither linked nor waiting as they should, below one id and down to another (None: no
    bound). The newest page includes pending entries that were removed."""
    rows = await database.fetch_all(SQL.find_unchained_entries, too_long, below, last, below is None, limit)
    return _UNCHAINED_ENTRIES.all(rows)


async def find_nth_entry_below(database: Database, below: UUID | None, number: int) -> UUID | None:
    """Return the n-th entry below an id (None: of all), newest first; None if there are fewer."""
    found: UUID | None = await database.fetch_value(SQL.find_nth_entry_below, below, number - 1)
    return found


async def load_database_identity(database: Database) -> str:
    """Return an identifier of the database."""
    found: str = await database.fetch_value(SQL.load_database_identity)
    return found


async def list_entries(
    database: Database, filter: Filter, *, below: UUID | None = None, limit: int
) -> list[AuditEntryRecord]:
    """Return audit entries, newest first."""
    return _ENTRIES.all(await database.fetch_all(*AUDIT.add_filter(SQL.list_entries, filter, below, limit)))


async def list_history(
    database: Database, kind: str, target: str, *, below: UUID | None, limit: int
) -> list[HistoryEntry]:
    """Return the changes of one object, newest first."""
    return _HISTORY.all(await database.fetch_all(SQL.list_history, kind, target, below, limit))


async def count_entries(database: Database, filter: Filter) -> CappedCount:
    """Count audit entries."""
    return await count_rows(database, AUDIT, SQL.count_entries, filter)


async def load_entry(database: Database, id: UUID) -> AuditEntryRecord | None:
    """Return one audit entry."""
    return _ENTRIES.optional(await database.fetch_one(SQL.load_entry, id))
