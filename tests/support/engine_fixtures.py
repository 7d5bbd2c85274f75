"""What tests of the engine begin with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import pytest

from tenuto import Tenuto
from tenuto.worker.worker import Worker
from tests.support import isolated_jobs
from tests.support.store_fixtures import swept, url, used_again

__all__ = ["Quick", "swept", "url", "used_again"]

Quick: TypeAlias = Callable[..., AbstractAsyncContextManager[Worker]]


@pytest.fixture
def worker(app: Tenuto) -> Quick:
    """A worker that polls so rarely that only notifications and due times can be what moves it."""

    def start(**given: Any) -> AbstractAsyncContextManager[Worker]:
        return app.worker(**{"slots": 10, "poll_seconds": 60, "grace_seconds": 0, **given})

    return start


@pytest.fixture
def with_isolated_jobs(app: Tenuto) -> None:
    """The jobs that stand at the top of a module, registered with this test's app."""
    app.jobs.by_name.update(isolated_jobs.app.jobs.by_name)


@pytest.fixture
def sql(app: Tenuto) -> Callable[..., Awaitable[list[dict[str, Any]]]]:
    """Look into the database by hand."""

    async def ask(statement: str, *values: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in await (await app.open()).all(statement, *values)]

    return ask
