"""Rows of the audit log: read entries and link them into the audit chain. `audit_recorder` writes the entries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenuto.model.audit_chain import GENESIS_SEAL
from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.bulk_copy import to_columns

SQL = load_statements(__file__)

Record = dict[str, Any]
ENTRY_FIELDS = (
    "id", "at", "actor_type", "actor_id", "actor_name", "source", "request_id", "action", "target", "reason", "before",
    "after",
)  # fmt: skip
"""All fields of an entry; the seal covers them."""


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The last link of the audit chain; position 0 if it is empty."""

    position: int = 0
    seal: bytes = GENESIS_SEAL


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One link with its entry, if that exists."""

    position: int
    audit_id: UUID
    sealed_at: datetime
    seal: bytes
    entry: Record | None
    at: datetime | None


async def has_unsealed_entries(database: Database) -> bool:
    """Return whether an entry waits to be sealed."""
    return bool(await database.fetch_value(SQL.has_unsealed_entries))


async def try_sealer_lock(connection: Connection) -> bool:
    """Try to become the only sealer until the transaction ends."""
    return bool(await connection.fetchval(SQL.try_sealer_lock))


async def load_head_in_transaction(connection: Connection) -> ChainHead:
    """Return the last link, in a transaction."""
    row = await connection.fetchrow(SQL.load_head)
    return ChainHead() if row is None else ChainHead(row["position"], row["seal"])


async def load_head(database: Database) -> ChainHead:
    """Return the last link."""
    row = await database.fetch_one(SQL.load_head)
    return ChainHead() if row is None else ChainHead(row["position"], row["seal"])


async def load_unsealed_entries(connection: Connection, limit: int) -> list[Record]:
    """Return entries that wait to be sealed, oldest first."""
    return [dict(row) for row in await connection.fetch(SQL.load_unsealed_entries, limit)]


async def append_links(connection: Connection, links: Sequence[tuple[int, UUID, bytes]]) -> None:
    """Append links (position, entry, seal) and mark their entries as sealed."""
    positions, ids, seals = to_columns(links)
    await connection.execute(SQL.insert_links, positions, ids, seals)
    await connection.execute(SQL.delete_pending, ids)


async def list_links(database: Database, after: int, limit: int) -> list[ChainLink]:
    """Return links after a position, in order, each with its entry."""
    return [_to_link(row) for row in await database.fetch_all(SQL.list_links, after, limit)]


def _to_link(row: Row) -> ChainLink:
    entry = {name: row[name] for name in ENTRY_FIELDS} if row["there"] else None
    return ChainLink(row["position"], row["audit_id"], row["sealed_at"], row["seal"], entry, row["instant"])


async def list_unsealed_entries(database: Database, limit: int) -> list[Record]:
    """Return entries without a link, oldest first."""
    return [dict(row) for row in await database.fetch_all(SQL.list_unsealed_entries, limit)]


async def find_unchained_entries(
    database: Database, too_long: timedelta, below: UUID | None, last: UUID | None, limit: int
) -> list[Record]:
    """Return entries that are neither linked nor waiting as they should, below one id and down to another (None: no
    bound). The newest page includes pending entries that were removed."""
    return [
        dict(row)
        for row in await database.fetch_all(SQL.find_unchained_entries, too_long, below, last, below is None, limit)
    ]


async def find_nth_entry_below(database: Database, below: UUID | None, number: int) -> UUID | None:
    """Return the n-th entry below an id (None: of all), newest first; None if there are fewer."""
    found: UUID | None = await database.fetch_value(SQL.find_nth_entry_below, below, number - 1)
    return found


async def load_database_identity(database: Database) -> str:
    """Return an identifier of the database."""
    found: str = await database.fetch_value(SQL.load_database_identity)
    return found


async def list_entries(
    database: Database,
    *,
    below: UUID | None,
    actor: str | None,
    action: str | None,
    target: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
) -> list[Record]:
    """Return audit entries, newest first."""
    rows = await database.fetch_all(SQL.list_entries, below, actor, action, target, since, until, limit)
    return [_to_record(row) for row in rows]


async def load_entry(database: Database, id: UUID) -> Record | None:
    """Return one audit entry."""
    row = await database.fetch_one(SQL.load_entry, id)
    return None if row is None else _to_record(row)


def _to_record(row: Row) -> Record:
    record = dict(row)
    for name in ("before", "after"):
        record[name] = None if record[name] is None else json.loads(record[name])
    if record.get("seal") is not None:
        record["seal"] = record["seal"].hex()
    return record
