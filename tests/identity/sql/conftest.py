"""Fixtures of the tests of the SQL connector: one PostgreSQL database for all tests of a process, emptied for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenuto.postgres import scratch_databases
from tenuto_identity.connectors.contract import Connector
from tenuto_identity.model.schema import ObjectType
from tests.conftest import database_name
from tests.identity.sql.databases import PostgresqlDatabase, SqlDatabase, SqliteDatabase, open_sql

OpenSql = Callable[..., Connector]


@pytest.fixture(scope="session")
def postgresql_database(server: str) -> Iterator[PostgresqlDatabase]:
    name = database_name("sql")
    database = PostgresqlDatabase(asyncio.run(scratch_databases.create_empty_database(server, name)))
    database.prepare()
    yield database
    database.close()
    asyncio.run(scratch_databases.drop_database(server, name))


@pytest.fixture
def postgresql(postgresql_database: PostgresqlDatabase) -> PostgresqlDatabase:
    """A PostgreSQL database without tables."""
    postgresql_database.execute(
        "DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC"
    )
    return postgresql_database


@pytest.fixture
def sqlite(tmp_path: Path) -> SqliteDatabase:
    """A SQLite file without tables, in the folder that connectors of `tmp_path` may use."""
    (tmp_path / "files").mkdir(exist_ok=True)
    return SqliteDatabase(tmp_path / "files")


@pytest.fixture(params=["postgresql", "sqlite"])
def database(request: pytest.FixtureRequest) -> SqlDatabase:
    """A database without tables, of each kind."""
    found: SqlDatabase = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def open_connector(tmp_path: Path) -> Iterator[OpenSql]:
    """Open connectors, which are closed at the end."""
    opened: list[Connector] = []

    def open_one(settings: dict[str, Any], *types: ObjectType, read_only: bool = False) -> Connector:
        opened.append(open_sql(settings, types, [tmp_path], read_only=read_only))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()
