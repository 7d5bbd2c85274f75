"""Rows of encrypted secrets. This module knows neither keys nor values."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import load_statements
from tenuto.secret_encryption import EncryptedSecret

SQL = load_statements(__file__)


async def lock_secrets(connection: Connection) -> dict[str, int]:
    """Block other changes of secrets until the transaction ends; return the number of secrets per master key."""
    await connection.execute(SQL.lock_secrets)
    return {row["key_id"]: row["secrets"] for row in await connection.fetch(SQL.count_secrets_by_key)}


async def load_version(connection: Connection, name: str) -> int:
    """Return the stored version; 0 if there is none."""
    return await connection.fetchval(SQL.load_version, name) or 0


async def store_secret(connection: Connection, secret: EncryptedSecret, at: datetime, by: str) -> None:
    """Store a secret, replacing an existing one."""
    await connection.execute(
        SQL.store_secret, secret.name, secret.version, secret.key_id, secret.wrapped_key, secret.ciphertext, at, by
    )


async def load_secret(database: Database, name: str) -> EncryptedSecret | None:
    """Return an encrypted secret."""
    row = await database.fetch_one(SQL.load_secret, name)
    return None if row is None else _to_sealed(row)


async def list_secrets(database: Database, after: str, limit: int) -> list[dict[str, Any]]:
    """Return secrets by name, without their values."""
    return [dict(row) for row in await database.fetch_all(SQL.list_secrets, after, limit)]


async def list_secrets_under_other_keys(connection: Connection, key_id: str, after: str) -> list[EncryptedSecret]:
    """Return some secrets that are encrypted with another master key."""
    return [_to_sealed(row) for row in await connection.fetch(SQL.list_secrets_under_other_keys, key_id, after)]


async def update_wrapping(connection: Connection, secret: EncryptedSecret) -> None:
    """Store the data key of a secret wrapped by another master key."""
    await connection.execute(SQL.update_wrapping, secret.name, secret.version, secret.key_id, secret.wrapped_key)


async def delete_secret(database: Database, name: str) -> bool:
    """Delete a secret; return whether it existed."""

    async def delete(connection: Connection) -> bool:
        return await connection.fetchval(SQL.delete_secret, name) is not None

    return await database.transaction(delete)


def _to_sealed(row: Row) -> EncryptedSecret:
    return EncryptedSecret(row["name"], row["version"], row["key_id"], row["wrapped"], row["sealed"])
