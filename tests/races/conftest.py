"""Fixtures of the race and fault tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from tests.races.effect_ledger import Ledger
from tests.races.interleaving import InterleavedDatabase
from tests.races.processes import ProcessPool, Workers
from tests.races.proxy import Proxy
from tests.races.table_queries import Observer


@pytest.fixture(scope="session")
def process_pool() -> Iterator[ProcessPool]:
    """Launcher of worker processes."""
    process_pool = ProcessPool()
    yield process_pool
    process_pool.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Ledger in which the jobs record their effects."""
    ledger = Ledger(tmp_path / "ledger")
    yield ledger
    ledger.close()


@pytest.fixture
async def workers(process_pool: ProcessPool, url: str, tmp_path: Path, ledger: Ledger) -> AsyncIterator[Workers]:
    """Worker processes on the test's database, killed at the end of the test."""
    workers = Workers(process_pool, url, tmp_path, ledger.path)
    yield workers
    await workers.kill_all()


@pytest.fixture
async def observer(url: str) -> AsyncIterator[Observer]:
    """Separate connection for queries on the tables."""
    observer = await Observer.at(url)
    yield observer
    await observer.close()


@pytest.fixture
async def proxy(url: str) -> AsyncIterator[Proxy]:
    """Proxy in front of the test's database that injects faults."""
    async with Proxy(url) as proxy:
        yield proxy


@pytest.fixture
async def worker_id(register_worker: Callable[..., Awaitable[UUID]]) -> UUID:
    """Id of a registered live worker."""
    return await register_worker()


@pytest.fixture
async def first(url: str) -> AsyncIterator[InterleavedDatabase]:
    """First of two databases whose statements are interleaved."""
    database = await InterleavedDatabase.at(url)
    yield database
    await database.close()


@pytest.fixture
async def second(url: str) -> AsyncIterator[InterleavedDatabase]:
    """Second of two databases whose statements are interleaved."""
    database = await InterleavedDatabase.at(url)
    yield database
    await database.close()


@pytest.fixture
async def other(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Plain connection, for transactions that a test keeps open."""
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()
