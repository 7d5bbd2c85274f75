"""Fixtures for tests of services and operations: a worker factory, isolated jobs and SQL queries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import pytest

from tenuto import Tenuto
from tenuto.worker.worker import Worker
from tests.support import isolated_jobs

WorkerFactory: TypeAlias = Callable[..., AbstractAsyncContextManager[Worker]]


@pytest.fixture
def worker(app: Tenuto) -> WorkerFactory:
    """Start a worker that polls once a minute, so that only notifications and due times wake it."""

    def start(**options: Any) -> AbstractAsyncContextManager[Worker]:
        return app.worker(**{"slots": 10, "poll_seconds": 60, "grace_seconds": 0, **options})

    return start


@pytest.fixture
def with_isolated_jobs(app: Tenuto) -> None:
    """Register the module-level jobs of `isolated_jobs` with the app of the test."""
    app.jobs.jobs_by_name.update(isolated_jobs.app.jobs.jobs_by_name)


@pytest.fixture
def sql(app: Tenuto) -> Callable[..., Awaitable[list[dict[str, Any]]]]:
    """Query the database directly."""

    async def query(statement: str, *values: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in await (await app.open()).fetch_all(statement, *values)]

    return query
