"""Rows of encrypted secrets. This module knows neither keys nor values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.secret_encryption import EncryptedSecret
from tenuto.store.row_mapping import RowMapper

SQL = load_statements(__file__)


@dataclass(frozen=True, slots=True)
class SecretRecord:
    """A secret without its value."""

    name: str
    version: int
    key_id: str
    """The master key that encrypts it."""
    created_at: datetime
    updated_at: datetime
    updated_by: str


_SECRETS = RowMapper(SecretRecord, SQL.list_secrets)
_ENCRYPTED_SECRETS = RowMapper(EncryptedSecret, SQL.load_secret, SQL.list_secrets_under_other_keys)


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
    return _ENCRYPTED_SECRETS.optional(await database.fetch_one(SQL.load_secret, name))


async def list_secrets(database: Database, after: str, limit: int) -> list[SecretRecord]:
    """Return secrets by name, without their values."""
    return _SECRETS.all(await database.fetch_all(SQL.list_secrets, after, limit))


async def list_secrets_under_other_keys(connection: Connection, key_id: str, after: str) -> list[EncryptedSecret]:
    """Return some secrets that are encrypted with another master key."""
    return _ENCRYPTED_SECRETS.all(await connection.fetch(SQL.list_secrets_under_other_keys, key_id, after))


async def update_wrapping(connection: Connection, secret: EncryptedSecret) -> None:
    """Store the data key of a secret wrapped by another master key."""
    await connection.execute(SQL.update_wrapping, secret.name, secret.version, secret.key_id, secret.wrapped_key)


async def delete_secret(database: Database, name: str) -> bool:
    """Delete a secret; return whether it existed."""

    async def delete(connection: Connection) -> bool:
        return await connection.fetchval(SQL.delete_secret, name) is not None

    return await database.transaction(delete)
