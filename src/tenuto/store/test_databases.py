"""Databases for a test: made fresh on a server, copied from one with the schema, dropped afterwards."""

from __future__ import annotations

import re

import asyncpg

from tenuto.errors import Invalid
from tenuto.postgres import migrator
from tenuto.postgres.database import Database
from tenuto.store import partitions

_PLAIN = re.compile(r"[a-z][a-z0-9_]{0,62}")


def address(server: str, name: str) -> str:
    """The address of another database on the same server."""
    head, question, query = server.partition("?")
    return f"{head.rsplit('/', 1)[0]}/{name}{question}{query}"


async def make_empty(server: str, name: str) -> str:
    """A database without anything in it, not even the schema; its address."""
    await _execute(server, _dropping(name), f"CREATE DATABASE {_checked(name)}")
    return address(server, name)


async def make_template(server: str, name: str) -> None:
    """A database with the schema and nothing in it, to be copied."""
    database = await Database.open(await make_empty(server, name))
    try:
        await migrator.migrate(database)
        await partitions.ensure(database, database.clock.now())
    finally:
        await database.close()


async def copy(server: str, template: str, name: str, *, by_file: bool = False) -> str:
    """A copy of a database to which nobody is connected; its address.

    ``by_file`` it is copied past the server's log, with a checkpoint before and after: quicker where nothing is forced
    to disk.
    """
    how = " STRATEGY FILE_COPY" if by_file else ""
    create = f"CREATE DATABASE {_checked(name)} TEMPLATE {_checked(template)}{how}"
    await _execute(server, _dropping(name), create)
    return address(server, name)


async def drop(server: str, name: str) -> None:
    """Let a database go, whoever is still connected to it."""
    await _execute(server, _dropping(name))


def _dropping(name: str) -> str:
    return f"DROP DATABASE IF EXISTS {_checked(name)} WITH (FORCE)"


async def _execute(server: str, *statements: str) -> None:
    connection = await asyncpg.connect(server)
    try:
        for statement in statements:  # one by one: a database is not made within a transaction
            await connection.execute(statement)
    finally:
        await connection.close()


def _checked(name: str) -> str:
    if not _PLAIN.fullmatch(name):
        raise Invalid(f"{name!r:.60} is not a plain name", field="database")
    return name
