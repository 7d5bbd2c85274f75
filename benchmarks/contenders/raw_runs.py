"""The bare database for `executions`: the shortest sequence of durable commits that runs four step groups in order.

Six commits: submit, claim, and one for the end of each group, which also starts the next. One connection per process,
notifications both ways, no plan, leases, records or failures: a limit of the disk and the round trips, not a product.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from benchmarks.contenders import contender_protocol, runner_protocol
from benchmarks.contenders.start_counters import Starts

GROUPS = (1, 1, 2, 2)
TABLES = """
CREATE TABLE runs (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state text NOT NULL DEFAULT 'waiting',
                   current_group integer NOT NULL DEFAULT 0);
CREATE TABLE history (run_id bigint, group_index integer, step integer, PRIMARY KEY (run_id, group_index, step));
"""
SUBMIT = "WITH made AS (INSERT INTO runs DEFAULT VALUES RETURNING id) SELECT id, pg_notify('runs', '') FROM made"
CLAIM = """
UPDATE runs SET state = 'running'
WHERE id = (SELECT id FROM runs WHERE state = 'waiting' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id
"""
END_GROUP = """
WITH recorded AS (
    INSERT INTO history SELECT $1, $2, step FROM generate_series(1, $3::integer) AS step
)
UPDATE runs
SET current_group = $2 + 1, state = CASE WHEN $2 = 3 THEN 'completed' ELSE state END
WHERE id = $1
RETURNING CASE WHEN $2 = 3 THEN pg_notify('ended', id::text)::text END
"""


class Submitter:
    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection
        self._ended: dict[int, asyncio.Event] = {}

    async def listen(self) -> None:
        await self._connection.add_listener("ended", lambda *details: self._event(int(details[3])).set())

    async def submit(self) -> int:
        return int(await self._connection.fetchval(SUBMIT))

    async def ended(self, execution: Any) -> None:
        await self._event(execution).wait()

    def _event(self, run: int) -> asyncio.Event:
        return self._ended.setdefault(run, asyncio.Event())


class RawRunner:
    packages = ("asyncpg",)

    async def prepare(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(TABLES)
        await connection.close()

    @asynccontextmanager
    async def submitter(self, url: str) -> AsyncIterator[Submitter]:
        connection = await asyncpg.connect(url)
        submitter = Submitter(connection)
        await submitter.listen()
        yield submitter
        await connection.close()

    async def work(self, url: str, starts: Starts, gate: contender_protocol.Gate) -> None:
        connection = await asyncpg.connect(url)
        woken = asyncio.Event()
        await connection.add_listener("runs", lambda *_: woken.set())
        await gate.ready()
        stopping = asyncio.create_task(gate.wait_for_stop())
        while not stopping.done():
            woken.clear()
            run = await connection.fetchval(CLAIM)
            if run is not None:
                for index, steps in enumerate(GROUPS):
                    for _ in range(steps):
                        starts.count()
                    await connection.fetchval(END_GROUP, run, index, steps)
                continue
            waking = asyncio.create_task(woken.wait())
            await asyncio.wait({waking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            waking.cancel()
        await connection.close()

    async def audit(self, url: str) -> tuple[int, int]:
        connection = await asyncpg.connect(url)
        open_ = await connection.fetchval("SELECT count(*) FROM runs WHERE state <> 'completed'")
        ended = await connection.fetchval("SELECT count(*) FROM runs WHERE state = 'completed'")
        await connection.close()
        return open_, ended

    async def handovers(self, url: str) -> list[float]:
        return []


if __name__ == "__main__":
    runner_protocol.main(RawRunner())
