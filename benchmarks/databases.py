"""Databases of the benchmark server: one per contender and run, created fresh, settled before the measurement."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg


def url_of_database(url: str, database: str) -> str:
    """Return the URL of another database on the same server."""
    parts = urlsplit(url)
    netloc = parts.netloc or "postgres@"
    return urlunsplit(parts._replace(netloc=netloc, path=f"/{database}"))


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close(timeout=10)


async def create_fresh(url: str, database: str) -> str:
    """Create an empty database, dropping one of that name, and return its URL."""
    async with connected(url) as connection:
        await connection.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')
        await connection.execute(f'CREATE DATABASE "{database}"')
    return url_of_database(url, database)


async def drop(url: str, database: str) -> None:
    async with connected(url) as connection:
        await connection.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')


async def settle(url: str) -> None:
    """Bring every contender to the same state: fresh statistics, no vacuum or checkpoint due from the set-up."""
    async with connected(url) as connection:
        await connection.execute("VACUUM (ANALYZE)")
        await connection.execute("CHECKPOINT")


@contextlib.asynccontextmanager
async def without_autovacuum(url: str) -> AsyncIterator[None]:
    """Keep autovacuum out of a database while its transactions are counted."""
    async with connected(url) as connection:
        await connection.execute("ALTER SYSTEM SET autovacuum TO off")
        await connection.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            await connection.execute("ALTER SYSTEM RESET autovacuum")
            await connection.execute("SELECT pg_reload_conf()")


async def transaction_count(url: str, database: str) -> int:
    """Return the transactions of a database so far, queried from another database so that the query is not counted."""
    async with connected(url) as connection:
        counted: int = await connection.fetchval(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1", database
        )
    return counted


async def settings(url: str) -> dict[str, str]:
    """Return the server version and the settings that affect the figures."""
    names = [
        "server_version",
        "fsync",
        "synchronous_commit",
        "full_page_writes",
        "wal_sync_method",
        "shared_buffers",
        "max_wal_size",
        "autovacuum",
        "jit",
    ]
    async with connected(url) as connection:
        return {name: await connection.fetchval(f"SHOW {name}") for name in names}
