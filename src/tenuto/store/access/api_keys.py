"""API keys and browser sessions as rows: made, found, ended. Of a secret only its digest is ever given to this room."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenuto.errors import Conflict
from tenuto.model.actors import Role
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import beside
from tenuto.store.access import audit_recorder

SQL = beside(__file__)

Record = dict[str, Any]
Place = tuple[bool, str, UUID]
"""Of a key in the list of all: whether it is revoked, its name, its id."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that is about to be made."""

    id: UUID
    name: str
    prefix: str
    digest: bytes
    role: Role
    by: str
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class InForce:
    """A key that is good at this moment."""

    id: UUID
    name: str
    role: Role
    digest: bytes
    to_be_marked: bool
    """Its last use is more than a minute ago."""


async def make(connection: Connection, new: NewKey) -> Record | None:
    """Make a key; None if its prefix is taken, which another one puts right."""
    await connection.execute(
        SQL.make_key, new.id, new.name, new.prefix, new.digest, new.role.word, new.by, new.expires_at
    )
    made = await connection.fetchrow(SQL.key, new.id)
    if made is not None:
        return dict(made)
    if await connection.fetchval(SQL.name_in_use, new.name) is not None:
        raise Conflict(
            f"there is a key named {new.name}", field="name", remedy="choose another name, or revoke that key first"
        )
    return None


async def there_is_none(connection: Connection) -> bool:
    """Whether there never was a key. From here on until the transaction ends, nobody else makes the first one."""
    await connection.execute(SQL.one_at_a_time)
    return not await connection.fetchval(SQL.any_key)


async def list_keys(database: Database, after: Place | None, limit: int) -> list[Record]:
    """Keys, those in use first, by name."""
    return [dict(row) for row in await database.all(SQL.list_keys, limit, *(after or (None, None, None)))]


async def called(database: Database, name: str, prefix: str) -> list[Record]:
    """The keys somebody may mean by a name or a prefix."""
    return [dict(row) for row in await database.all(SQL.keys_called, name, prefix)]


async def in_force(database: Database, prefix: str) -> InForce | None:
    """The key with this prefix, if it is neither revoked nor expired."""
    row = await database.one(SQL.key_in_force, prefix)
    if row is None:
        return None
    return InForce(row["id"], row["name"], Role.named(row["role"]), row["digest"], row["to_be_marked"])


async def mark_used(database: Database, id: UUID) -> None:
    """Remember that a key was used about now."""
    await database.once(SQL.mark_used, id)


async def revoke(connection: Connection, id: UUID, by: str) -> bool:
    """End a key and all its sessions; False if somebody has before."""
    ended = await connection.fetchval(SQL.revoke_key, id, by)
    if ended is not None:
        await connection.execute(SQL.end_sessions_of, id)
    return ended is not None


async def make_link(connection: Connection, id: UUID, key: UUID, digest: bytes, lasts: timedelta) -> bool:
    """A link that opens a session once; False if the key is no longer in force."""
    await connection.execute(SQL.make_link, id, key, digest, lasts)
    return bool(await connection.fetchval(SQL.link_made, id))


async def follow(database: Database, link: bytes, token: bytes, lasts: timedelta) -> None:
    """Turn a link into a session, if it is one."""

    async def follow_it(connection: Connection) -> None:
        name = await connection.fetchval(SQL.follow_link, link, token, lasts)
        if name is not None:
            audit_recorder.tell(target=name)

    await database.transaction(follow_it)


async def of_session(database: Database, token: bytes) -> tuple[UUID, str, Role] | None:
    """The key whose session this is, if neither has ended."""
    row = await database.one(SQL.session_in_force, token)
    return None if row is None else (row["id"], row["name"], Role.named(row["role"]))


async def end_session(database: Database, token: bytes) -> None:
    """End a session, if it is one."""
    await database.all(SQL.end_session, token)


async def forget_sessions(database: Database, cutoff: datetime, limit: int) -> int:
    """Let go a small batch of sessions that ran out before the cut-off; how many."""
    return len(await database.all(SQL.forget_sessions, cutoff, limit))
