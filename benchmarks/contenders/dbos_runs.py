"""DBOS on the course: an async workflow of six steps, submitted through a queue, parallel steps gathered.

Gathered async steps are its documented way to run steps at the same time, and faster than child workflows on a queue
(which are polled for). The queue is polled every 20 ms instead of every second, its default, and a result every 2 ms.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from dbos import DBOS, DBOSClient

from benchmarks.contenders import course, stage
from benchmarks.contenders.tally import Starts

QUEUE = "bench"
POLL = 0.02
AT_ONCE = 50
ASK = 0.002
WORKFLOW = {"workflow_name": "shape", "queue_name": QUEUE, "app_version": "1"}

# A workflow is whole when it has succeeded with all its steps on record.
COUNTS = """
SELECT count(*) FILTER (WHERE status IN ('ENQUEUED', 'PENDING')),
       count(*) FILTER (WHERE status = 'SUCCESS' AND (
           SELECT count(*) FROM dbos.operation_outputs AS step WHERE step.workflow_uuid = workflow.workflow_uuid
       ) >= $1)
FROM dbos.workflow_status AS workflow
"""


def launch(url: str, count: Callable[[], None]) -> None:
    """The application every process of this contender but the submitting one has."""
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
    DBOS.register_queue(QUEUE, polling_interval_sec=POLL, worker_concurrency=AT_ONCE)


class Submitter:
    def __init__(self, client: DBOSClient) -> None:
        self._client = client

    async def submit(self) -> Any:
        return self._client.enqueue(WORKFLOW)

    async def ended(self, execution: Any) -> None:
        execution.get_result(polling_interval_sec=ASK)


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

    async def work(self, url: str, starts: Starts, gate: stage.Gate) -> None:
        await gate.ready()
        await asyncio.to_thread(launch, url, starts.count)
        await gate.stopped()
        await asyncio.to_thread(DBOS.destroy)

    async def audit(self, url: str) -> tuple[int, int]:
        connection = await asyncpg.connect(url)
        ((open_, ended),) = await connection.fetch(COUNTS, course.STEPS)
        await connection.close()
        return open_, ended

    async def handovers(self, url: str) -> list[float]:
        return []


def _never() -> None:
    raise AssertionError("only a worker runs steps")


if __name__ == "__main__":
    course.main(DbosRunner())
