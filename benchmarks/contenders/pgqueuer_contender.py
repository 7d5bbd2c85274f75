"""PgQueuer as a contender: its own tables and worker, batch size 100, uvloop as in its own command line.

One asyncpg connection per process, as in its documentation; a pool gave the same rates within the noise.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.contenders import contender_protocol

ENTRYPOINT = "noop"


class Sender:
    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def one(self, payload: str) -> None:
        await self._queries.enqueue(ENTRYPOINT, payload.encode())

    async def many(self, payloads: list[str]) -> None:
        for chunk in contender_protocol.in_transactions(payloads):
            count = len(chunk)
            await self._queries.enqueue([ENTRYPOINT] * count, [text.encode() for text in chunk], [0] * count)


class PgQueuerContender:
    packages = ("pgqueuer", "asyncpg")

    async def prepare(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        await Queries.from_asyncpg_connection(connection).install()
        await connection.close()

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Sender]:
        connection = await asyncpg.connect(url)
        yield Sender(Queries.from_asyncpg_connection(connection))
        await connection.close()

    @asynccontextmanager
    async def pooled_sender(self, url: str) -> AsyncIterator[Sender]:
        size = contender_protocol.POOL_SIZE
        async with asyncpg.create_pool(url, min_size=size, max_size=size) as pool:
            yield Sender(Queries.from_asyncpg_pool(pool))

    async def work(self, url: str, on_job: contender_protocol.OnJob, gate: contender_protocol.Gate) -> None:
        connection = await asyncpg.connect(url)
        queue = PgQueuer.from_asyncpg_connection(connection)

        @queue.entrypoint(ENTRYPOINT)
        async def noop(job: Job) -> None:
            on_job(job.payload or b"")

        await gate.ready()
        running = asyncio.create_task(queue.run(batch_size=contender_protocol.BATCH))
        stopping = asyncio.create_task(gate.wait_for_stop())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        queue.shutdown.set()
        await running
        await connection.close()

    async def audit(self, url: str) -> tuple[int, int]:
        connection = await asyncpg.connect(url)
        waiting = await connection.fetchval("SELECT count(*) FROM pgqueuer")
        recorded = await connection.fetchval("SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'")
        await connection.close()
        return waiting, recorded


if __name__ == "__main__":
    contender_protocol.main(PgQueuerContender())
