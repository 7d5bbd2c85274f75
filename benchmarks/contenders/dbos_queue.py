"""DBOS for `compare`: a workflow of one step on a queue, 50 concurrent; an interrupted one continues at the next
start.

The queue is polled every 20 ms instead of every second, its default. It has no bulk enqueue.
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

from benchmarks.contenders import peer_protocol
from benchmarks.contenders.ledger import async_job

QUEUE, POLL_SECONDS, CONCURRENCY = "bench", 0.02, 50
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
    DBOS.register_queue(QUEUE, polling_interval_sec=POLL_SECONDS, worker_concurrency=CONCURRENCY)


def serve() -> None:
    """Run a worker: DBOS has no worker command, a service launches it inside its process."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    launch(os.environ[peer_protocol.URL])
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
        return ["-c", f"import {peer_protocol.module_name(__spec__)} as it; it.serve()"]

    async def remembered(self, url: str) -> int:
        connection = await asyncpg.connect(url)
        counted: int = await connection.fetchval(
            "SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING', 'DELAYED')"
        )
        await connection.close()
        return counted


if __name__ == "__main__":
    peer_protocol.main(DbosQueue())
