"""Databases of the benchmark's server: one per contender and run, made fresh, settled before the clock starts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg


def named(url: str, database: str) -> str:
    """The same server's URL with another database."""
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


async def fresh(url: str, database: str) -> str:
    """Make an empty database, dropping one of that name, and return its URL."""
    async with connected(url) as connection:
        await connection.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')
        await connection.execute(f'CREATE DATABASE "{database}"')
    return named(url, database)


async def drop(url: str, database: str) -> None:
    async with connected(url) as connection:
        await connection.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')


async def settle(url: str) -> None:
    """Bring every contender to the same starting line: statistics fresh, no vacuum or checkpoint owed by the set-up."""
    async with connected(url) as connection:
        await connection.execute("VACUUM (ANALYZE)")
        await connection.execute("CHECKPOINT")


@contextlib.asynccontextmanager
async def without_autovacuum(url: str) -> AsyncIterator[None]:
    """Keep the server's own visitors out of a database while its transactions are counted."""
    async with connected(url) as connection:
        await connection.execute("ALTER SYSTEM SET autovacuum TO off")
        await connection.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            await connection.execute("ALTER SYSTEM RESET autovacuum")
            await connection.execute("SELECT pg_reload_conf()")


async def transactions(url: str, database: str) -> int:
    """Transactions ended in a database so far. Asked from another database, so that the question is not counted."""
    async with connected(url) as connection:
        counted: int = await connection.fetchval(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1", database
        )
    return counted


async def settings(url: str) -> dict[str, str]:
    """The server's version and the settings that decide what the figures mean."""
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
