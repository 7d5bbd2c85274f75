"""Rows of API keys and browser sessions. Only digests of secrets are stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenuto.errors import Conflict
from tenuto.model.actors import Role
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.access import audit_recorder

SQL = load_statements(__file__)

Record = dict[str, Any]
KeyPosition = tuple[bool, str, UUID]
"""Position in the list of keys: whether it is revoked, its name, its id."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """An API key that is to be created."""

    id: UUID
    name: str
    prefix: str
    digest: bytes
    role: Role
    by: str
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ActiveKey:
    """A key that is neither revoked nor expired."""

    id: UUID
    name: str
    role: Role
    digest: bytes
    needs_use_update: bool
    """Whether the stored last use is more than a minute ago."""


async def insert_key(connection: Connection, new: NewKey) -> Record | None:
    """Insert a key and return it; None if its prefix exists, and the caller must choose another."""
    await connection.execute(
        SQL.insert_key, new.id, new.name, new.prefix, new.digest, new.role.key, new.by, new.expires_at
    )
    stored = await connection.fetchrow(SQL.load_key, new.id)
    if stored is not None:
        return dict(stored)
    if await connection.fetchval(SQL.find_active_key_by_name, new.name) is not None:
        raise Conflict(
            f"an API key named {new.name} exists",
            code="api_key.name.taken",
            field="name",
            remedy="choose another name, or revoke that key first",
        )
    return None


async def lock_if_no_key_exists(connection: Connection) -> bool:
    """Return whether no key ever existed. Until the transaction ends, no other transaction creates the first one."""
    await connection.execute(SQL.lock_first_key)  # guard: api_keys.one_first_key
    return not await connection.fetchval(SQL.has_any_key)


async def list_keys(database: Database, after: KeyPosition | None, limit: int) -> list[Record]:
    """Return keys, unrevoked ones first, by name."""
    return [dict(row) for row in await database.fetch_all(SQL.list_keys, limit, *(after or (None, None, None)))]


async def find_keys(database: Database, name: str, prefix: str) -> list[Record]:
    """Return the keys that match a name or a prefix."""
    return [dict(row) for row in await database.fetch_all(SQL.find_keys, name, prefix)]


async def load_active_key(database: Database, prefix: str) -> ActiveKey | None:
    """Return the key with this prefix, if it is neither revoked nor expired."""
    row = await database.fetch_one(SQL.load_active_key, prefix)
    if row is None:
        return None
    return ActiveKey(row["id"], row["name"], Role.from_key(row["role"]), row["digest"], row["to_be_marked"])


async def record_use(database: Database, id: UUID) -> None:
    """Store that a key was used about now."""
    await database.write_once(SQL.record_use, id)


async def revoke_key(connection: Connection, id: UUID, by: str) -> bool:
    """Revoke a key and end its sessions; return False if it was revoked before."""
    ended = await connection.fetchval(SQL.revoke_key, id, by)
    if ended is not None:
        await connection.execute(SQL.end_sessions_of_key, id)
    return ended is not None


async def create_login_link(connection: Connection, id: UUID, key: UUID, digest: bytes, lifetime: timedelta) -> bool:
    """Create a single-use login link; return False if the key is not active."""
    await connection.execute(SQL.insert_login_link, id, key, digest, lifetime)
    return bool(await connection.fetchval(SQL.has_login_link, id))


async def redeem_login_link(database: Database, link: bytes, token: bytes, lifetime: timedelta) -> None:
    """Turn a login link into a session, if it is valid."""

    async def redeem(connection: Connection) -> None:
        name = await connection.fetchval(SQL.redeem_login_link, link, token, lifetime)
        if name is not None:
            audit_recorder.add_audit_details(target=name)

    await database.transaction(redeem)


async def load_session_key(database: Database, token: bytes) -> tuple[UUID, str, Role] | None:
    """Return the key of a session, if neither has ended."""
    row = await database.fetch_one(SQL.load_session_key, token)
    return None if row is None else (row["id"], row["name"], Role.from_key(row["role"]))


async def end_session(database: Database, token: bytes) -> None:
    """End a session."""
    await database.write_all(SQL.end_session, token)


async def delete_old_sessions(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of sessions that expired before the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_old_sessions, cutoff, limit))
