"""DBOS in the arena: a workflow of one step on a queue, 50 at once; one that died goes on at the next start.

The queue is polled every 20 ms instead of every second, its default. In bulk: none.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from dbos import DBOS, DBOSClient

from benchmarks.contenders import arena
from benchmarks.contenders.ledger import async_job

QUEUE, POLL, AT_ONCE = "bench", 0.02, 50
WORKFLOW = {"workflow_name": "noop", "queue_name": QUEUE, "app_version": "1"}


def launch(url: str) -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "application_version": "1",
            "executor_id": "bench",
            "log_level": "ERROR",
        }
    )

    @DBOS.step()
    async def step(payload: str) -> None:
        await async_job(payload)

    @DBOS.workflow(name="noop")
    async def noop(payload: str) -> None:
        await step(payload)

    DBOS.launch()
    DBOS.register_queue(QUEUE, polling_interval_sec=POLL, worker_concurrency=AT_ONCE)


def serve() -> None:
    """Be a worker: it has no command of its own, a service launches it within itself."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    launch(os.environ[arena.URL])
    ended.wait()
    DBOS.destroy()


class Sender:
    def __init__(self, client: DBOSClient) -> None:
        self._client = client

    async def one(self, payload: str) -> None:
        self._client.enqueue(WORKFLOW, payload)


class DbosQueue:
    packages = ("dbos", "sqlalchemy", "psycopg")

    async def prepare(self, url: str) -> None:
        await asyncio.to_thread(launch, url)
        await asyncio.to_thread(DBOS.destroy)

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Any]:
        client = DBOSClient(system_database_url=url)
        yield Sender(client)
        client.destroy()

    def command(self) -> list[str]:
        return ["-c", f"import {arena.module(__spec__)} as it; it.serve()"]

    async def remembered(self, url: str) -> int:
        connection = await asyncpg.connect(url)
        counted: int = await connection.fetchval(
            "SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING', 'DELAYED')"
        )
        await connection.close()
        return counted


if __name__ == "__main__":
    arena.main(DbosQueue())
