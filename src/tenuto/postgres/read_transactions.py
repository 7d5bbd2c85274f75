"""Transactions that cannot change anything, for code that only checks or reports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenuto.postgres.database import Connection, Database

T = TypeVar("T")

_READ_ONLY = "SET TRANSACTION READ ONLY"
_ONE_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_READ_ONLY_WITH_SHORT_TIMEOUTS = (
    "SET TRANSACTION READ ONLY; SET LOCAL statement_timeout = '5s'; SET LOCAL lock_timeout = '1s'"
)


async def read(database: Database, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Run queries in one read-only transaction."""

    async def run(connection: Connection) -> T:
        await connection.execute(_READ_ONLY)
        return await work(connection)

    return await database.transaction(run)


async def read_snapshot(database: Database, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Run queries that all see the database at the same instant."""

    async def run(connection: Connection) -> T:
        await connection.execute(_ONE_SNAPSHOT)
        return await work(connection)

    return await database.transaction(run)


async def read_quickly(database: Database, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Like `read`, without retries and with short timeouts, to spare a database in trouble."""

    async def run(connection: Connection) -> T:
        await connection.execute(_READ_ONLY_WITH_SHORT_TIMEOUTS)
        return await work(connection)

    return await database.transaction(run, tries=1)
