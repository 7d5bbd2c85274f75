"""Database sessions of runs: the schema and the planner settings of a transaction.

The tables grow from nothing to hundreds of thousands of rows within one session. A plan that was made while they were
empty, or kept as a generic plan, becomes quadratic; measured, the settings here make lookups up to 130 times faster.
Without bitmap scans, pages in order of id are read along an index even if the planner expects few rows; otherwise it
reads and sorts all that are left, for every page.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from tenuto.errors import Invalid
from tenuto.postgres.database import Connection, Database, Row

T = TypeVar("T")

LIVE_SCHEMA = "tenuto_identity"
_SCHEMA = re.compile(r"tenuto_identity(_preview_[0-9a-z_]{1,40})?")
_LOOKUPS = (
    "SET LOCAL search_path TO {schema}, pg_catalog; SET LOCAL plan_cache_mode = force_custom_plan;"
    " SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off;"
    " SET LOCAL statement_timeout = '60s';"
    # A worker that is stopped within a page must not keep its locks: its successor waits for them.
    " SET LOCAL idle_in_transaction_session_timeout = '30s'"
)
_WHOLE_TABLES = (
    "SET LOCAL search_path TO {schema}, pg_catalog; SET LOCAL plan_cache_mode = force_custom_plan;"
    " SET LOCAL enable_seqscan = on; SET LOCAL enable_bitmapscan = on; SET LOCAL statement_timeout = '10min'"
)


async def prepare(connection: Connection, schema: str = LIVE_SCHEMA, *, whole_tables: bool = False) -> None:
    """Set schema and planner of the current transaction. ``whole_tables`` is for statements that read a table as a
    whole; all others are lookups by key."""
    if not _SCHEMA.fullmatch(schema):
        raise Invalid(f"{schema!r} is not a schema of identity synchronisation", code="identity.schema.invalid")
    await connection.execute((_WHOLE_TABLES if whole_tables else _LOOKUPS).format(schema=schema))


@asynccontextmanager
async def transaction(
    connection: Connection, schema: str = LIVE_SCHEMA, *, whole_tables: bool = False
) -> AsyncIterator[Connection]:
    """Begin a transaction on the tables of a schema."""
    async with connection.transaction():
        await prepare(connection, schema, whole_tables=whole_tables)
        yield connection


@asynccontextmanager
async def schema_of_identity(connection: Connection) -> AsyncIterator[Connection]:
    """Use the tables of identity synchronisation within a transaction of the core, which has its own search path."""
    async with connection.transaction():
        before = await connection.fetchval("SELECT current_setting('search_path')")
        await connection.execute("SELECT set_config('search_path', $1, true)", f"{LIVE_SCHEMA}, pg_catalog")
        yield connection
        await connection.execute("SELECT set_config('search_path', $1, true)", before)


async def read_with(database: Database, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Run ``work(connection, *arguments)`` in a transaction on the live tables."""

    async def read(connection: Connection) -> T:
        await prepare(connection)
        return await work(connection, *arguments)

    return await database.transaction(read)


async def fetch_all(database: Database, statement: str, *values: Any) -> list[Row]:
    """Return the rows of a query on the live tables."""

    async def read(connection: Connection) -> list[Row]:
        await prepare(connection)
        return await connection.fetch(statement, *values)

    return await database.transaction(read)
