"""PgQueuer for `compare`: its manager with batches of 100; jobs of a silent worker return after 30 s (default).

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

from benchmarks.contenders import contender_protocol, peer_protocol, pgqueuer_contender
from benchmarks.contenders.ledger import async_job


async def serve() -> None:
    """Run a worker like `pgq run`."""
    connection = await asyncpg.connect(os.environ[peer_protocol.URL])
    queue = PgQueuer.from_asyncpg_connection(connection)

    @queue.entrypoint(pgqueuer_contender.ENTRYPOINT)
    async def noop(job: Job) -> None:
        await async_job(job.payload or b"")

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queue.shutdown.set)
    await queue.run(batch_size=contender_protocol.BATCH)
    await connection.close()


class PgQueuerQueue:
    packages = ("pgqueuer", "asyncpg")

    async def prepare(self, url: str) -> None:
        await pgqueuer_contender.PgQueuerContender().prepare(url)

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[contender_protocol.Sender]:
        connection = await asyncpg.connect(url)
        yield pgqueuer_contender.Sender(Queries.from_asyncpg_connection(connection))
        await connection.close()

    def command(self) -> list[str]:
        return [
            "-c",
            f"import {peer_protocol.module_name(__spec__)} as it; it.contender_protocol.run(it.serve())",
        ]

    async def remembered(self, url: str) -> int:
        connection = await asyncpg.connect(url)
        counted: int = await connection.fetchval("SELECT count(*) FROM pgqueuer")
        await connection.close()
        return counted


if __name__ == "__main__":
    peer_protocol.main(PgQueuerQueue())
