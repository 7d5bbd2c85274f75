"""Tenuto as a contender, through its public API: `enqueue`, `enqueue_many`, `worker`, all with their defaults."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from tempfile import TemporaryDirectory
from typing import Any

import asyncpg

from benchmarks.contenders import contender_protocol
from tenuto import Job, Tenuto

Noop = Job[..., Any]


def build(url: str, on_job: contender_protocol.OnJob, home: str | None = None) -> tuple[Tenuto, Noop]:
    """Build the application of every process of this contender: one job that is only counted."""
    app = Tenuto(database=url, home=home)

    @app.job
    async def noop(payload: str) -> None:
        on_job(payload)

    return app, noop


class Sender:
    def __init__(self, app: Tenuto, noop: Noop) -> None:
        self._app = app
        self._noop = noop

    async def one(self, payload: str) -> None:
        await self._app.enqueue(self._noop, payload=payload)

    async def many(self, payloads: list[str]) -> None:
        await self._app.enqueue_many(self._noop, ({"payload": text} for text in payloads))


class TenutoContender:
    packages = ("tenuto", "asyncpg")

    async def prepare(self, url: str) -> None:
        app, _ = build(url, _never)
        await app.migrate()

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Sender]:
        app, noop = build(url, _never)
        async with app:
            yield Sender(app, noop)

    def pooled_sender(self, url: str) -> AbstractAsyncContextManager[Sender]:
        return self.sender(url)  # an app has a pool of ten connections

    async def work(self, url: str, on_job: contender_protocol.OnJob, gate: contender_protocol.Gate) -> None:
        with TemporaryDirectory(prefix="tenuto-bench-home-") as home:
            app, _ = build(url, on_job, home)
            async with app:
                await gate.ready()
                async with app.worker(name=f"bench-{os.getpid()}"):
                    await gate.wait_for_stop()

    async def audit(self, url: str) -> tuple[int, int]:
        connection = await asyncpg.connect(url)
        waiting = await connection.fetchval("SELECT count(*) FROM tenuto.tasks")
        recorded = await connection.fetchval("SELECT count(*) FROM tenuto.activities WHERE status = 'completed'")
        await connection.close()
        return waiting, recorded


def _never(_payload: str | bytes) -> None:
    raise AssertionError("only a worker runs jobs")


if __name__ == "__main__":
    contender_protocol.main(TenutoContender())
