"""Fixtures for tests of the database layers: databases, settings and embedded servers.

Most tests share one database that is truncated between them, which is faster than creating one (`url` in
`tests/conftest.py`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from tenuto.postgres import scratch_databases
from tenuto.postgres.database import Database
from tenuto.postgres.embedded_server import acquire_server, stop_server
from tenuto.settings import Settings, load_settings
from tests.conftest import database_name
from tests.support.servers import HOLD_UNTIL_EOF, IMPORTS, end_processes_of
from tests.support.temp_dirs import new_temp_dir
from tests.support.truncation import TRUNCATE_ALL_TABLES

TRUNCATE_SQL = f"""
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid();
SET session_replication_role = replica;  -- disables the triggers that protect history
{TRUNCATE_ALL_TABLES}"""


class ReusableDatabase:
    """A database that is truncated between tests over a persistent connection."""

    def __init__(self, server: str, template: str) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._name = database_name("reusable")
        self.url = self._loop.run_until_complete(
            scratch_databases.copy_database(server, template, self._name, by_file_copy=True)
        )
        self._connection: asyncpg.Connection | None = None

    def truncate(self) -> None:
        self._loop.run_until_complete(self._truncate())

    async def _truncate(self) -> None:
        if self._connection is not None:
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):  # the last test may have closed it
                await self._connection.execute(TRUNCATE_SQL)
                return
        self._connection = await asyncpg.connect(self.url)
        await self._connection.execute(TRUNCATE_SQL)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
        self._loop.run_until_complete(scratch_databases.drop_database(self._server, self._name))
        self._loop.close()


@pytest.fixture(scope="session")
def reusable_database(server: str, template: str) -> Iterator[ReusableDatabase]:
    database = ReusableDatabase(server, template)
    yield database
    database.close()


@pytest.fixture
def truncated_url(reusable_database: ReusableDatabase) -> str:
    """URL of the reusable database, truncated."""
    reusable_database.truncate()
    return reusable_database.url


# --- doctor ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """A database opened with the options of the doctor."""
    opened = await Database.open(url)
    yield opened
    await opened.close()


@pytest.fixture
def settings(url: str, tmp_path: Path) -> Settings:
    return load_settings(database=url, home=tmp_path)


# --- embedded server -------------------------------------------------------------------------------------------------


@pytest.fixture
def empty_home() -> Iterator[Path]:
    home = new_temp_dir("tnt-")
    yield home
    end_processes_of(home)
    shutil.rmtree(home)


@pytest.fixture(scope="session")
def prepared_home() -> Iterator[Path]:
    """A home directory whose data directory is moved to the tests that need one, because creating it takes a second."""
    home = new_temp_dir("tnt-")
    acquire_server(home, linger_seconds=None).release()
    stop_server(home)
    yield home
    shutil.rmtree(home)


@pytest.fixture
def home(prepared_home: Path) -> Iterator[Path]:
    """A home directory with an initialised data directory."""
    home = new_temp_dir("tnt-")
    (prepared_home / "postgres").rename(home / "postgres")
    yield home
    end_processes_of(home)
    (home / "postgres").rename(prepared_home / "postgres")
    shutil.rmtree(home)


@pytest.fixture
def start_server_holder(home: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start processes that hold the server until their standard input ends."""
    started: list[subprocess.Popen[str]] = []

    def start(linger: float = 0.2, script: str = HOLD_UNTIL_EOF) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(home), str(linger)],
            env={**os.environ, "PYTHONPATH": IMPORTS},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
