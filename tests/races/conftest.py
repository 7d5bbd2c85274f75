"""What the tests of races and faults share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.races.ledger import Ledger
from tests.races.observing import Observer
from tests.races.processes import Nursery, Workers
from tests.races.proxy import Proxy


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where worker processes come from."""
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """What the code of the jobs did."""
    ledger = Ledger(tmp_path / "ledger")
    yield ledger
    ledger.close()


@pytest.fixture
async def workers(nursery: Nursery, url: str, tmp_path: Path, ledger: Ledger) -> AsyncIterator[Workers]:
    """Worker processes on the test's database; none outlives the test."""
    workers = Workers(nursery, url, tmp_path, ledger.path)
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
