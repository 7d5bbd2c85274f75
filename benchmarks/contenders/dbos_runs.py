"""DBOS for `executions`: an async workflow of six steps, submitted through a queue, with gathered parallel steps.

Gathered async steps are its documented way to run steps in parallel, and faster than child workflows on a queue
(which
are polled). The queue is polled every 20 ms instead of every second, its default, and a result every 2 ms.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from dbos import DBOS, DBOSClient

from benchmarks.contenders import contender_protocol, runner_protocol
from benchmarks.contenders.start_counters import Starts

QUEUE = "bench"
POLL_SECONDS = 0.02
CONCURRENCY = 50
RESULT_POLL_SECONDS = 0.002
WORKFLOW = {"workflow_name": "shape", "queue_name": QUEUE, "app_version": "1"}

# A workflow is complete when it has succeeded with all its steps recorded.
COUNTS = """
SELECT count(*) FILTER (WHERE status IN ('ENQUEUED', 'PENDING')),
       count(*) FILTER (WHERE status = 'SUCCESS' AND (
           SELECT count(*) FROM dbos.operation_outputs AS step WHERE step.workflow_uuid = workflow.workflow_uuid
       ) >= $1)
FROM dbos.workflow_status AS workflow
"""


def launch(url: str, count: Callable[[], None]) -> None:
    """Build the application of every process of this contender except the submitting one."""
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
    async def noop() -> None:
        count()

    @DBOS.workflow(name="shape")
    async def shape() -> None:
        await noop()
        await noop()
        await asyncio.gather(noop(), noop())
        await asyncio.gather(noop(), noop())

    DBOS.launch()
    DBOS.register_queue(QUEUE, polling_interval_sec=POLL_SECONDS, worker_concurrency=CONCURRENCY)


class Submitter:
    def __init__(self, client: DBOSClient) -> None:
        self._client = client

    async def submit(self) -> Any:
        return self._client.enqueue(WORKFLOW)

    async def ended(self, execution: Any) -> None:
        execution.get_result(polling_interval_sec=RESULT_POLL_SECONDS)


class DbosRunner:
    packages = ("dbos", "sqlalchemy", "psycopg")

    async def prepare(self, url: str) -> None:
        await asyncio.to_thread(launch, url, _never)
        await asyncio.to_thread(DBOS.destroy)

    @asynccontextmanager
    async def submitter(self, url: str) -> AsyncIterator[Submitter]:
        client = DBOSClient(system_database_url=url)
        yield Submitter(client)
        client.destroy()

    async def work(self, url: str, starts: Starts, gate: contender_protocol.Gate) -> None:
        await gate.ready()
        await asyncio.to_thread(launch, url, starts.count)
        await gate.wait_for_stop()
        await asyncio.to_thread(DBOS.destroy)

    async def audit(self, url: str) -> tuple[int, int]:
        connection = await asyncpg.connect(url)
        ((open_, ended),) = await connection.fetch(COUNTS, runner_protocol.STEPS)
        await connection.close()
        return open_, ended

    async def handovers(self, url: str) -> list[float]:
        return []


def _never() -> None:
    raise AssertionError("only a worker runs steps")


if __name__ == "__main__":
    runner_protocol.main(DbosRunner())
