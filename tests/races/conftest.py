"""What the tests of races and faults share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from tests.races.interleaving import InterleavedDatabase
from tests.races.effect_ledger import Ledger
from tests.races.observer import Observer
from tests.races.processes import ProcessPool, Workers
from tests.races.proxy import Proxy


@pytest.fixture(scope="session")
def process_pool() -> Iterator[ProcessPool]:
    """Where worker processes come from."""
    process_pool = ProcessPool()
    yield process_pool
    process_pool.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """What the code of the jobs did."""
    ledger = Ledger(tmp_path / "ledger")
    yield ledger
    ledger.close()


@pytest.fixture
async def workers(process_pool: ProcessPool, url: str, tmp_path: Path, ledger: Ledger) -> AsyncIterator[Workers]:
    """Worker processes on the test's database; none outlives the test."""
    workers = Workers(process_pool, url, tmp_path, ledger.path)
    yield workers
    await workers.end_all()


@pytest.fixture
async def observer(url: str) -> AsyncIterator[Observer]:
    """A look at the tables."""
    observer = await Observer.at(url)
    yield observer
    await observer.close()


@pytest.fixture
async def proxy(url: str) -> AsyncIterator[Proxy]:
    """A line to the test's database on which things go wrong."""
    async with Proxy(url) as proxy:
        yield proxy


@pytest.fixture
async def worker_id(register_worker: Callable[..., Awaitable[UUID]]) -> UUID:
    """A worker that lives."""
    return await register_worker()


@pytest.fixture
async def first(url: str) -> AsyncIterator[InterleavedDatabase]:
    """One of two that meet, statement by statement."""
    database = await InterleavedDatabase.at(url)
    yield database
    await database.close()


@pytest.fixture
async def second(url: str) -> AsyncIterator[InterleavedDatabase]:
    """The other of two that meet."""
    database = await InterleavedDatabase.at(url)
    yield database
    await database.close()


@pytest.fixture
async def other(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection with a transaction that stays open as long as the test wants."""
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()
