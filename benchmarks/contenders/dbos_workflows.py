"""DBOS for `workflows`: the same workflow, submitted through a queue.

Gathered async steps are its documented way to run steps in parallel. The child is called directly, which is faster than
a queue, because queues are polled. As in `executions`, the queue is polled every 20 ms and a result every 2 ms.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import asyncpg
from dbos import DBOS, DBOSClient

from benchmarks.contenders import contender_protocol, runner_protocol
from benchmarks.contenders.dbos_runs import CONCURRENCY, POLL_SECONDS, QUEUE, Submitter
from benchmarks.contenders.start_counters import Starts

# A workflow is complete when it and its child have succeeded with all steps recorded.
COUNTS = """
SELECT count(*) FILTER (WHERE status IN ('ENQUEUED', 'PENDING')),
       count(*) FILTER (WHERE name = 'shape' AND status = 'SUCCESS' AND (
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
    async def noop(number: int) -> int:
        count()
        return number

    @DBOS.workflow(name="child")
    async def child() -> int:
        return int(await noop(0))

    @DBOS.workflow(name="shape")
    async def shape() -> int:
        total = 0
        for number in range(runner_protocol.SEQUENTIAL_STEPS):
            total += await noop(number)
        total += sum(await asyncio.gather(*(noop(number) for number in range(runner_protocol.PARALLEL_STEPS))))
        return int(total + await child())

    DBOS.launch()
    DBOS.register_queue(QUEUE, polling_interval_sec=POLL_SECONDS, worker_concurrency=CONCURRENCY)


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
        ((open_, ended),) = await connection.fetch(COUNTS, runner_protocol.WORKFLOW_STEPS - 1)
        await connection.close()
        return open_, ended

    async def handovers(self, url: str) -> list[float]:
        return []


def _never() -> None:
    raise AssertionError("only a worker runs steps")


if __name__ == "__main__":
    runner_protocol.main(DbosRunner())
