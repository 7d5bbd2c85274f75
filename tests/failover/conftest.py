"""Fixtures of the failover tests: replicating servers, and services that use them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.races.effect_ledger import Ledger
from tests.races.processes import ProcessPool
from tests.support.replication import Cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """Servers of one test."""
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def process_pool() -> Iterator[ProcessPool]:
    """Launcher of services."""
    process_pool = ProcessPool("tests.failover.process_launcher")
    yield process_pool
    process_pool.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Ledger in which the jobs record their effects."""
    ledger = Ledger(tmp_path / "ledger")
    yield ledger
    ledger.close()
