"""Tenuto for `executions`, through its public API: a schedule of four groups, run manually; a worker with defaults."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import asyncpg

from benchmarks.contenders import contender_protocol, runner_protocol
from benchmarks.contenders.start_counters import Starts
from tenuto import Step, Tenuto, manual

SCHEDULE = "one, one, two, two"

# From the end of the last step of a group to the start of every step of the next.
HANDOVERS = """
SELECT extract(epoch FROM later.started_at - earlier.ended_at)::float8 * 1000
FROM tenuto.activities AS later
JOIN (
    SELECT execution_id, group_index, max(ended_at) AS ended_at
    FROM tenuto.activities
    GROUP BY execution_id, group_index
) AS earlier ON earlier.execution_id = later.execution_id AND earlier.group_index = later.group_index - 1
"""
# All steps of an execution completed, independent of the state of the execution.
WHOLE = """
SELECT count(*)
FROM tenuto.executions AS execution
WHERE state = 'completed'
  AND (
      SELECT count(DISTINCT step_index)
      FROM tenuto.activities
      WHERE execution_id = execution.id AND status = 'completed'
  ) = $1
"""


def build(url: str, count: Callable[[], None], home: str | None = None) -> Tenuto:
    """Build the application of every process of this contender."""
    app = Tenuto(database=url, home=home)

    @app.job
    async def noop() -> None:
        count()

    a, b, c, d, e, f = (Step.job(noop, name=name) for name in "abcdef")
    app.schedule(SCHEDULE, manual(), [a, b, [c, d], [e, f]], overlap="allow")
    return app


class Submitter:
    def __init__(self, app: Tenuto) -> None:
        self._app = app

    async def submit(self) -> UUID:
        started = await self._app.schedules.run(SCHEDULE)
        assert started.execution_id is not None
        return started.execution_id

    async def ended(self, execution: Any) -> None:
        found = await self._app.executions.wait(execution, runner_protocol.TIMEOUT_SECONDS)
        assert found.state == "completed", found


class TenutoRunner:
    packages = ("tenuto", "asyncpg")

    async def prepare(self, url: str) -> None:
        app = build(url, _never)
        await app.migrate()
        database = await app.connect()
        await app.schedules.deploy(database)
        await database.close()

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
        open_ = await connection.fetchval("SELECT count(*) FROM tenuto.executions WHERE ended_at IS NULL")
        ended = await connection.fetchval(WHOLE, runner_protocol.STEPS)
        await connection.close()
        return open_, ended

    async def handovers(self, url: str) -> list[float]:
        connection = await asyncpg.connect(url)
        found = [row[0] for row in await connection.fetch(HANDOVERS)]
        await connection.close()
        return found


def _never() -> None:
    raise AssertionError("only a worker runs steps")


if __name__ == "__main__":
    runner_protocol.main(TenutoRunner())
