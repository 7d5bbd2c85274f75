"""Rows of API keys and browser sessions. Only digests of secrets are stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID

from tenuto.errors import Conflict
from tenuto.model.access.actors import Role
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import FromColumn, RowMapper

SQL = load_statements(__file__)

KeyKind = Literal["service", "person", "initial"]
"""A key of a program, of a person, or the one that the first start created."""
KeyPosition = tuple[bool, str, UUID]
"""Position in the list of keys: whether it is revoked, its name, its id."""


@dataclass(frozen=True, slots=True)
class ApiKeyRecord:
    """An API key without the digest of its secret."""

    id: UUID
    name: str
    prefix: str
    role: str
    """The key of its `Role`."""
    kind: KeyKind
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    expired: bool
    last_used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


class PrefixInUse(Exception):
    """The prefix of a new key exists; the caller must choose another."""


_KEYS = RowMapper(ApiKeyRecord, SQL.load_key, SQL.list_keys, SQL.find_keys)


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
    kind: KeyKind = "service"


@dataclass(frozen=True, slots=True)
class ActiveKey:
    """A key that is neither revoked nor expired."""

    id: UUID
    name: str
    role: Annotated[Role, FromColumn(Role.from_key)]
    kind: KeyKind
    digest: bytes
    needs_use_update: bool
    """Whether the stored last use is more than a minute ago."""


_ACTIVE_KEYS = RowMapper(ActiveKey, SQL.load_active_key)


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The key of an open session."""

    id: UUID
    name: str
    role: Annotated[Role, FromColumn(Role.from_key)]
    kind: KeyKind
    session_id: UUID
    needs_use_update: bool
    """Whether the stored last use is more than a minute ago."""


_SESSION_KEYS = RowMapper(SessionKey, SQL.load_session_key)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """An open browser session without the digest of its token."""

    id: UUID
    name: str
    """Name of its key."""
    role: str
    kind: KeyKind
    key_id: UUID
    opened_at: datetime
    last_used_at: datetime | None
    expires_at: datetime
    """Its end unless it is used before."""
    ends_at: datetime | None
    """Its latest end."""
    address: str | None
    browser: str | None


_SESSIONS = RowMapper(SessionRecord, SQL.list_sessions)


@dataclass(frozen=True, slots=True)
class NewSession:
    """Token and limits of a session that is to be opened."""

    token: bytes
    """Digest of the token."""
    idle: timedelta
    max_lifetime: timedelta
    address: str | None = None
    browser: str | None = None


async def insert_key(connection: Connection, new: NewKey) -> ApiKeyRecord | None:
    """Insert a key and return it; None if its prefix exists, and the caller must choose another."""
    await connection.execute(
        SQL.insert_key, new.id, new.name, new.prefix, new.digest, new.role.key, new.by, new.expires_at, new.kind
    )
    stored = _KEYS.optional(await connection.fetchrow(SQL.load_key, new.id))
    if stored is not None:
        return stored
    if await connection.fetchval(SQL.find_active_key_by_name, new.name) is not None:
        raise Conflict(
            f"an API key named {new.name} exists",
            code="api_key.name.taken",
            field="name",
            remedy="choose another name, or revoke that key first",
        )
    return None


async def has_active_name(connection: Connection, name: str) -> bool:
    """Return whether an unrevoked key has this name."""
    return await connection.fetchval(SQL.find_active_key_by_name, name) is not None


async def lock_if_no_key_exists(connection: Connection) -> bool:
    """Return whether no key ever existed. Until the transaction ends, no other transaction creates the first one."""
    await connection.execute(SQL.lock_first_key)  # guard: api_keys.one_first_key
    return not await connection.fetchval(SQL.has_any_key)


async def list_keys(database: Database, after: KeyPosition | None, limit: int) -> list[ApiKeyRecord]:
    """Return keys, unrevoked ones first, by name."""
    return _KEYS.all(await database.fetch_all(SQL.list_keys, limit, *(after or (None, None, None))))


async def find_keys(database: Database, name: str, prefix: str) -> list[ApiKeyRecord]:
    """Return the keys that match a name or a prefix."""
    return _KEYS.all(await database.fetch_all(SQL.find_keys, name, prefix))


async def load_active_key(database: Database, prefix: str) -> ActiveKey | None:
    """Return the key with this prefix, if it is neither revoked nor expired."""
    return _ACTIVE_KEYS.optional(await database.fetch_one(SQL.load_active_key, prefix))


async def list_active_prefixes(database: Database) -> frozenset[str]:
    """Return the prefixes of all keys that are neither revoked nor expired."""
    return frozenset(row["prefix"] for row in await database.fetch_all(SQL.list_active_prefixes))


async def record_use(database: Database, id: UUID) -> None:
    """Store that a key was used about now."""
    await database.write_once(SQL.record_use, id)


async def revoke_key(connection: Connection, id: UUID, by: str) -> bool:
    """Revoke a key, end its sessions and revoke its invitations; return False if it was revoked before."""
    ended = await connection.fetchval(SQL.revoke_key, id, by)
    if ended is not None:
        await connection.execute(SQL.end_sessions_of_key, id)
        await connection.execute(SQL.revoke_invitations_of_key, id, by)
    return ended is not None


async def replace_key(connection: Connection, old_id: UUID, new: NewKey) -> ApiKeyRecord | None:
    """Revoke a key and insert another with its name; return None, without a change, if the key is no longer active.

    Raises `PrefixInUse` if the prefix exists: the transaction must end without the revocation.
    """
    if not await revoke_key(connection, old_id, new.by):  # guard: api_keys.revoked_key_is_not_replaced
        # The new key exists if the acknowledgement of this transaction was lost and it runs again.
        return _KEYS.optional(await connection.fetchrow(SQL.load_key, new.id))
    stored = await insert_key(connection, new)
    if stored is None:
        raise PrefixInUse
    return stored


async def lock_active_admin_keys(connection: Connection) -> set[UUID]:
    """Return the ids of the usable admin keys. Until the transaction ends, no other transaction revokes one of them."""
    return {row["id"] for row in await connection.fetch(SQL.lock_active_admin_keys)}


async def create_login_link(connection: Connection, id: UUID, key: UUID, digest: bytes, lifetime: timedelta) -> bool:
    """Create a single-use login link; return False if the key is not active."""
    await connection.execute(SQL.insert_login_link, id, key, digest, lifetime)
    return bool(await connection.fetchval(SQL.has_login_link, id))


async def redeem_login_link(connection: Connection, link: bytes, new: NewSession) -> str | None:
    """Turn a login link into a session, if it is valid; return the name of its key."""
    name: str | None = await connection.fetchval(
        SQL.redeem_login_link, link, new.token, new.idle, new.max_lifetime, new.address, new.browser
    )
    return name


async def open_session(connection: Connection, id: UUID, key: UUID, new: NewSession) -> None:
    """Open a session for a key that is active."""
    await connection.execute(
        SQL.insert_session, id, key, new.token, new.idle, new.max_lifetime, new.address, new.browser
    )


async def load_session_key(database: Database, token: bytes) -> SessionKey | None:
    """Return the key of a session, if neither has ended."""
    return _SESSION_KEYS.optional(await database.fetch_one(SQL.load_session_key, token))


async def prolong_session(database: Database, id: UUID, idle: timedelta) -> None:
    """Store that a session was used about now, and let it last for the idle time again."""
    await database.write_once(SQL.prolong_session, id, idle)


async def list_sessions(database: Database, key: UUID | None, limit: int) -> list[SessionRecord]:
    """Return the open sessions of a key, or of all keys (None), last used ones first."""
    return _SESSIONS.all(await database.fetch_all(SQL.list_sessions, key, limit))


async def end_session_by_id(connection: Connection, id: UUID, key: UUID | None) -> str | None:
    """End an open session, only of this key unless it is None; return the name of its key, None if there is none."""
    name: str | None = await connection.fetchval(SQL.end_session_by_id, id, key)
    return name


async def end_other_sessions(connection: Connection, key: UUID, kept: UUID | None) -> int:
    """End the open sessions of a key but one; return their number."""
    return len(await connection.fetch(SQL.end_other_sessions, key, kept))


async def end_session(database: Database, token: bytes) -> None:
    """End a session."""
    await database.write_all(SQL.end_session, token)


async def end_all_sessions(connection: Connection) -> int:
    """End all sessions and login links; return how many were open."""
    return sum(row["was_open"] for row in await connection.fetch(SQL.end_all_sessions))


async def list_active_keys(connection: Connection, limit: int) -> list[tuple[str, str]]:
    """Return name and role of the keys that are neither revoked nor expired, by name."""
    return [(row["name"], row["role"]) for row in await connection.fetch(SQL.list_active_keys, limit)]


async def delete_old_sessions(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of sessions that expired before the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_old_sessions, cutoff, limit))
