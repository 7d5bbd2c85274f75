"""PgQueuer in the arena: its manager with batches of 100; what a silent worker holds comes back after 30 s (default).

Run from a script: its command line fails with the current version of a library it needs.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.contenders import arena, pgqueuer_contender, stage
from benchmarks.contenders.ledger import async_job


async def serve() -> None:
    """Be a worker, as `pgq run` would be."""
    connection = await asyncpg.connect(os.environ[arena.URL])
    queue = PgQueuer.from_asyncpg_connection(connection)

    @queue.entrypoint(pgqueuer_contender.ENTRYPOINT)
    async def noop(job: Job) -> None:
        await async_job(job.payload or b"")

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queue.shutdown.set)
    await queue.run(batch_size=stage.BATCH)
    await connection.close()


class PgQueuerQueue:
    packages = ("pgqueuer", "asyncpg")

    async def prepare(self, url: str) -> None:
        await pgqueuer_contender.PgQueuerContender().prepare(url)

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[stage.Sender]:
        connection = await asyncpg.connect(url)
        yield pgqueuer_contender.Sender(Queries.from_asyncpg_connection(connection))
        await connection.close()

    def command(self) -> list[str]:
        return ["-c", f"from {arena.module(__spec__)} import serve, stage; stage.run(serve())"]

    async def remembered(self, url: str) -> int:
        connection = await asyncpg.connect(url)
        counted: int = await connection.fetchval("SELECT count(*) FROM pgqueuer")
        await connection.close()
        return counted


if __name__ == "__main__":
    arena.main(PgQueuerQueue())
