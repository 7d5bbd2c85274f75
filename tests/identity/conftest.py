"""Fixtures of the tests of identity synchronisation: databases with its tables, copied from one template."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from tenuto.postgres import migrator, scratch_databases
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.migrator import Component
from tenuto_identity.extension import Identity
from tenuto_identity.store import transaction_settings
from tests.conftest import database_name
from tests.identity.scenario_site import Site, open_site

_number = count(1)


@pytest.fixture(autouse=True)
def _enable_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENUTO_DISABLED_EXTENSIONS", "notifications")


@pytest.fixture(scope="session")
def identity_template(server: str, template: str) -> Iterator[str]:
    """Name of a database with the schemas of Tenuto and of identity synchronisation."""
    name = database_name("identity_template")

    async def create() -> None:
        database = await Database.open(await scratch_databases.copy_database(server, template, name, by_file_copy=True))
        try:
            await migrator.migrate(database, Component("identity", Identity().migrations()))
        finally:
            await database.close()

    asyncio.run(create())
    yield name
    asyncio.run(scratch_databases.drop_database(server, name))


@pytest.fixture
async def url(server: str, identity_template: str) -> AsyncIterator[str]:
    """URL of a new database with the tables of identity synchronisation."""
    name = database_name(f"identity_{next(_number)}")
    yield await scratch_databases.copy_database(server, identity_template, name, by_file_copy=True)
    await scratch_databases.drop_database(server, name)


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[Connection]:
    """A connection in a transaction on the tables of identity synchronisation."""
    async with database.connection() as connection, transaction_settings.transaction(connection):
        yield connection


@pytest.fixture
async def site(url: str, tmp_path: Path) -> AsyncIterator[Site]:
    """A site with the HR file and empty targets; no definitions are applied yet."""
    async with open_site(url, tmp_path) as site:
        yield site
        assert site.app.extension_registry.failures == []
