"""The audit trail as rows: read, and linked into the chain. Entries are written elsewhere (`store.access.audit_recorder`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenuto.model.audit_chain import BEGINNING
from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import beside
from tenuto.store.bulk_copy import columns_of

SQL = beside(__file__)

Record = dict[str, Any]
ENTRY = (
    "id", "at", "actor_type", "actor_id", "actor_name", "source", "request_id", "action", "target", "reason", "before",
    "after",
)  # fmt: skip
"""What belongs to an entry: all of it is sealed."""


@dataclass(frozen=True, slots=True)
class Head:
    """The last link of the chain; position 0 while there is none."""

    position: int = 0
    seal: bytes = BEGINNING


@dataclass(frozen=True, slots=True)
class Link:
    """One link, and the entry it stands for, if that is there."""

    position: int
    audit_id: UUID
    sealed_at: datetime
    seal: bytes
    entry: Record | None
    at: datetime | None


async def is_waiting(database: Database) -> bool:
    """Whether an entry waits to be sealed."""
    return bool(await database.value(SQL.is_waiting))


async def may_seal(connection: Connection) -> bool:
    """Whether we are the one who seals, until the transaction ends."""
    return bool(await connection.fetchval(SQL.one_sealer))


async def head(connection: Connection) -> Head:
    """Where the chain ends."""
    row = await connection.fetchrow(SQL.head)
    return Head() if row is None else Head(row["position"], row["seal"])


async def head_now(database: Database) -> Head:
    """Where the chain ends at this moment."""
    row = await database.one(SQL.head)
    return Head() if row is None else Head(row["position"], row["seal"])


async def unsealed(connection: Connection, limit: int) -> list[Record]:
    """Entries that wait to be sealed, the oldest first."""
    return [dict(row) for row in await connection.fetch(SQL.unsealed, limit)]


async def append(connection: Connection, links: Sequence[tuple[int, UUID, bytes]]) -> None:
    """New links: (position, entry, seal). Their entries wait no longer."""
    positions, ids, seals = columns_of(links)
    await connection.execute(SQL.append, positions, ids, seals)
    await connection.execute(SQL.sealed, ids)


async def links(database: Database, after: int, limit: int) -> list[Link]:
    """Links after a position, in order, each with its entry."""
    return [_link(row) for row in await database.all(SQL.links, after, limit)]


def _link(row: Row) -> Link:
    entry = {name: row[name] for name in ENTRY} if row["there"] else None
    return Link(row["position"], row["audit_id"], row["sealed_at"], row["seal"], entry, row["instant"])


async def waiting(database: Database, limit: int) -> list[Record]:
    """Entries that have no link yet, the oldest first."""
    return [dict(row) for row in await database.all(SQL.waiting, limit)]


async def astray(
    database: Database, too_long: timedelta, below: UUID | None, last: UUID | None, limit: int
) -> list[Record]:
    """Entries that are neither in the chain nor waiting as they should, from below one down to the last; None stands
    for the ends. With the newest come those that were announced and are gone."""
    return [dict(row) for row in await database.all(SQL.astray, too_long, below, last, below is None, limit)]


async def nth_below(database: Database, below: UUID | None, number: int) -> UUID | None:
    """Of the entries below one (None: of all), the newest first, the n-th; None if there are not so many."""
    found: UUID | None = await database.value(SQL.nth_below, below, number - 1)
    return found


async def identity(database: Database) -> str:
    """Which database this is."""
    found: str = await database.value(SQL.database_identity)
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
    """Entries, the newest first."""
    rows = await database.all(SQL.list_entries, below, actor, action, target, since, until, limit)
    return [_readable(row) for row in rows]


async def entry(database: Database, id: UUID) -> Record | None:
    """One entry."""
    row = await database.one(SQL.entry, id)
    return None if row is None else _readable(row)


def _readable(row: Row) -> Record:
    told = dict(row)
    for name in ("before", "after"):
        told[name] = None if told[name] is None else json.loads(told[name])
    if told.get("seal") is not None:
        told["seal"] = told["seal"].hex()
    return told
