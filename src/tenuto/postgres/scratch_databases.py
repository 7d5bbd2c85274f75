"""Databases for tests: created on a server, copied from a template with the schema, dropped afterwards."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import datetime

import asyncpg

from tenuto.errors import Invalid, quoted
from tenuto.postgres import migrator
from tenuto.postgres.database import Database

_NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,62}")


def database_url(server: str, name: str) -> str:
    """Return the URL of another database on the same server."""
    head, question, query = server.partition("?")
    return f"{head.rsplit('/', 1)[0]}/{name}{question}{query}"


async def create_empty_database(server: str, name: str) -> str:
    """Create a database without the schema; return its URL."""
    await _execute(server, _drop_statement(name), f"CREATE DATABASE {_validate_name(name)}")
    return database_url(server, name)


async def create_template_database(
    server: str, name: str, create_partitions: Callable[[Database, datetime], Awaitable[object]]
) -> None:
    """Create an empty database with the schema and the partitions of this month, to be copied."""
    database = await Database.open(await create_empty_database(server, name))
    try:
        await migrator.migrate(database)
        await create_partitions(database, database.clock.now())
    finally:
        await database.close()


async def copy_database(server: str, template: str, name: str, *, by_file_copy: bool = False) -> str:
    """Copy a database without connections; return the URL of the copy.

    ``by_file_copy`` bypasses the WAL, with a checkpoint before and after: faster where fsync is off.
    """
    how = " STRATEGY FILE_COPY" if by_file_copy else ""
    create = f"CREATE DATABASE {_validate_name(name)} TEMPLATE {_validate_name(template)}{how}"
    await _execute(server, _drop_statement(name), create)
    return database_url(server, name)


async def drop_database(server: str, name: str) -> None:
    """Drop a database, also if clients are connected."""
    await _execute(server, _drop_statement(name))


def _drop_statement(name: str) -> str:
    return f"DROP DATABASE IF EXISTS {_validate_name(name)} WITH (FORCE)"


async def _execute(server: str, *statements: str) -> None:
    connection = await asyncpg.connect(server)
    try:
        for statement in statements:  # one by one: CREATE DATABASE cannot run in a transaction
            await connection.execute(statement)
    finally:
        await connection.close()


def _validate_name(name: str) -> str:
    if not _NAME_PATTERN.fullmatch(name):
        raise Invalid(
            f"{quoted(name, 60)} is not a valid database name (lower-case letters, digits and _)",
            code="database.name.not_valid",
            field="database",
        )
    return name
