"""Tenuto for `workflows`, through its public API; a worker with defaults."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory
from typing import Any

import asyncpg

from benchmarks.contenders import contender_protocol, runner_protocol
from benchmarks.contenders.start_counters import Starts
from tenuto import Context, Enqueued, Tenuto

# A workflow is complete when it and its child have completed and all its steps are stored.
ENDED = """
SELECT count(*)
FROM tenuto.activities AS parent
WHERE name = 'shape'
  AND status = 'completed'
  AND EXISTS (SELECT FROM tenuto.activities AS child WHERE child.parent_id = parent.id AND child.status = 'completed')
  AND (SELECT count(*) FROM tenuto.chain_steps WHERE chain_steps.task_id = parent.task_id) = $1
"""


def build(url: str, count: Callable[[], None], home: str | None = None) -> Tenuto:
    """Build the application of every process of this contender."""
    app = Tenuto(database=url, home=home)

    async def noop(number: int) -> int:
        count()
        return number

    @app.workflow
    async def child(ctx: Context) -> int:
        return await ctx.step(noop, 0)

    @app.workflow
    async def shape(ctx: Context) -> int:
        total = 0
        for number in range(runner_protocol.SEQUENTIAL_STEPS):
            total += await ctx.step(noop, number)
        total += sum(await ctx.gather(*(ctx.step(noop, number) for number in range(runner_protocol.PARALLEL_STEPS))))
        return total + await ctx.run(child)

    return app


class Submitter:
    def __init__(self, app: Tenuto) -> None:
        self._app = app
        self._job = app.jobs.get_job("shape")

    async def submit(self) -> Enqueued[Any]:
        return await self._app.enqueue(self._job)

    async def ended(self, execution: Any) -> None:
        found = await self._app.wait(execution, runner_protocol.TIMEOUT_SECONDS)
        assert found.state == "completed", found


class TenutoRunner:
    packages = ("tenuto", "asyncpg")

    async def prepare(self, url: str) -> None:
        app = build(url, _never)
        await app.migrate()

    @asynccontextmanager
    async def submitter(self, url: str) -> AsyncIterator[Submitter]:
        app = build(url, _never)
        async with app:
            yield Submitter(app)

    async def work(self, url: str, starts: Starts, gate: contender_protocol.Gate) -> None:
        with TemporaryDirectory(prefix="tenuto-bench-home-") as home:
            app = build(url, starts.count, home)
            async with app:
                await gate.ready()
                async with app.worker(name=f"bench-{os.getpid()}"):
                    await gate.wait_for_stop()

    async def audit(self, url: str) -> tuple[int, int]:
        connection = await asyncpg.connect(url)
        open_ = await connection.fetchval("SELECT count(*) FROM tenuto.tasks")
        ended = await connection.fetchval(ENDED, runner_protocol.WORKFLOW_STEPS - 1)
        await connection.close()
        return open_, ended

    async def handovers(self, url: str) -> list[float]:
        return []


def _never() -> None:
    raise AssertionError("only a worker runs steps")


if __name__ == "__main__":
    runner_protocol.main(TenutoRunner())
