"""A database for each test without the time it takes to make one: the same one is swept clean and used again.

Tests that change the structure of their database, and those that look at a fresh one, have one of their own.
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

from tenuto.postgres.database import Database
from tenuto.postgres.embedded_server import hold, stop_now
from tenuto.settings import Settings, load
from tenuto.store import test_databases
from tests.conftest import a_name
from tests.support.servers import HOLD_UNTIL_EOF, IMPORTS, end_processes_of
from tests.support.temp_dirs import new_folder
from tests.support.truncation import EMPTY_ALL

OF_THEIR_OWN = {
    "test_doctor.py",
    "test_doctor_manifests.py",
    "test_doctor_guarantees.py",
    "test_doctor_schedules.py",
    "test_embedded_server.py",
    "test_housekeeping.py",
    "test_query_plans_of_manifests.py",
    "test_migrator.py",
    "test_partitions.py",
    "test_query_plans.py",
    "test_query_plans_of_executions.py",
    "test_query_plans_of_lists.py",
    "test_embedded_restart.py",
}

SWEEP = f"""
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid();
SET session_replication_role = replica;  -- the guards of the past sleep
{EMPTY_ALL}"""


class Sweeper:
    """A database that is swept between tests, over a connection that stays."""

    def __init__(self, server: str, template: str) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._name = a_name("used_again")
        self.url = self._loop.run_until_complete(test_databases.copy(server, template, self._name, by_file=True))
        self._connection: asyncpg.Connection | None = None

    def sweep(self) -> None:
        self._loop.run_until_complete(self._sweep())

    async def _sweep(self) -> None:
        if self._connection is not None:
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):  # the last test may have cut it
                await self._connection.execute(SWEEP)
                return
        self._connection = await asyncpg.connect(self.url)
        await self._connection.execute(SWEEP)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
        self._loop.run_until_complete(test_databases.drop(self._server, self._name))
        self._loop.close()


@pytest.fixture(scope="session")
def used_again(server: str, template: str) -> Iterator[Sweeper]:
    """The database that is swept between tests."""
    sweeper = Sweeper(server, template)
    yield sweeper
    sweeper.close()


@pytest.fixture
def swept(used_again: Sweeper) -> str:
    """The address of a database that is as good as fresh."""
    used_again.sweep()
    return used_again.url


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """The address of a database with the schema and nothing in it."""
    address: str = request.getfixturevalue("url" if request.path.name in OF_THEIR_OWN else "swept")
    return address


# --- for the doctor -------------------------------------------------------------------------------------------------


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """As the doctor opens it, not as a worker does."""
    opened = await Database.open(url)
    yield opened
    await opened.close()


@pytest.fixture
def settings(url: str, tmp_path: Path) -> Settings:
    return load(database=url, home=tmp_path)


# --- for the embedded server -----------------------------------------------------------------------------------------


@pytest.fixture
def empty_home() -> Iterator[Path]:
    home = new_folder("tnt-")
    yield home
    end_processes_of(home)
    shutil.rmtree(home)


@pytest.fixture(scope="session")
def made() -> Iterator[Path]:
    """A home in which the data folder waits between the tests that borrow it: making one takes a second."""
    home = new_folder("tnt-")
    hold(home, linger=None).release()
    stop_now(home)
    yield home
    shutil.rmtree(home)


@pytest.fixture
def home(made: Path) -> Iterator[Path]:
    """A home of its own, whose data folder is made already."""
    home = new_folder("tnt-")
    (made / "postgres").rename(home / "postgres")
    yield home
    end_processes_of(home)
    (home / "postgres").rename(made / "postgres")
    shutil.rmtree(home)


@pytest.fixture
def holder(home: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts processes that hold the server until their standard input ends."""
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
