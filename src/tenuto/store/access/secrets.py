"""Secrets as rows: sealed before they come here, opened after they have left. Nothing here knows a key or a value."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import beside
from tenuto.secret_encryption import Sealed

SQL = beside(__file__)


async def hold(connection: Connection) -> dict[str, int]:
    """Let nobody else change secrets until the transaction ends; how many are sealed with each master key."""
    await connection.execute(SQL.hold)
    return {row["key_id"]: row["secrets"] for row in await connection.fetch(SQL.key_ids)}


async def version(connection: Connection, name: str) -> int:
    """The version that is stored; 0 if there is none."""
    return await connection.fetchval(SQL.version, name) or 0


async def put(connection: Connection, secret: Sealed, at: datetime, by: str) -> None:
    """Store a secret in place of what was there."""
    await connection.execute(SQL.put, secret.name, secret.version, secret.key_id, secret.wrapped, secret.sealed, at, by)


async def get(database: Database, name: str) -> Sealed | None:
    """A secret, sealed."""
    row = await database.one(SQL.secret, name)
    return None if row is None else _sealed(row)


async def list_secrets(database: Database, after: str, limit: int) -> list[dict[str, Any]]:
    """What is known of secrets but for their values, by name."""
    return [dict(row) for row in await database.all(SQL.list_secrets, after, limit)]


async def under_other_keys(connection: Connection, key_id: str, after: str) -> list[Sealed]:
    """Some of the secrets another master key has sealed."""
    return [_sealed(row) for row in await connection.fetch(SQL.under_other_keys, key_id, after)]


async def rewrapped(connection: Connection, secret: Sealed) -> None:
    """A secret is now under another master key."""
    await connection.execute(SQL.rewrapped, secret.name, secret.version, secret.key_id, secret.wrapped)


async def delete(database: Database, name: str) -> bool:
    """Let a secret go; whether there was one."""

    async def go(connection: Connection) -> bool:
        return await connection.fetchval(SQL.delete, name) is not None

    return await database.transaction(go)


def _sealed(row: Row) -> Sealed:
    return Sealed(row["name"], row["version"], row["key_id"], row["wrapped"], row["sealed"])
