"""Procrastinate for `compare`: its worker with 20 concurrent jobs.

By default it never recovers the jobs of a killed worker. The durable entry has the periodic task of its
documentation:
jobs whose worker has been silent for 30 s (its default) are retried, checked every 10 s here.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from procrastinate import App, JobContext, PsycopgConnector

from benchmarks.contenders import contender_protocol, peer_protocol
from benchmarks.contenders.ledger import async_job

CONCURRENCY = 20

app = App(connector=PsycopgConnector(conninfo=os.environ.get(peer_protocol.URL, "")))


@app.task(name="noop")
async def noop(payload: str) -> None:
    await async_job(payload)


if peer_protocol.is_durable():

    @app.periodic(cron="* * * * * */10")
    @app.task(queueing_lock="retry_stalled_jobs", pass_context=True)
    async def retry_stalled_jobs(context: JobContext, timestamp: int) -> None:
        for job in await app.job_manager.get_stalled_jobs():
            await app.job_manager.retry_job(job)


class Sender:
    async def one(self, payload: str) -> None:
        await noop.defer_async(payload=payload)

    async def many(self, payloads: list[str]) -> None:
        for chunk in contender_protocol.in_transactions(payloads):
            await noop.batch_defer_async(*({"payload": text} for text in chunk))


class ProcrastinateQueue:
    packages = ("procrastinate", "psycopg")

    async def prepare(self, url: str) -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Any]:
        async with app.open_async():
            yield Sender()

    def command(self) -> list[str]:
        return [
            "-c",
            f"import {peer_protocol.module_name(__spec__)} as it; it.app.run_worker(concurrency=it.CONCURRENCY)",
        ]

    async def remembered(self, url: str) -> int:
        connection = await asyncpg.connect(url)
        counted: int = await connection.fetchval(
            "SELECT count(*) FROM procrastinate_jobs WHERE task_name = 'noop' AND status IN ('todo', 'doing')"
        )
        await connection.close()
        return counted


if __name__ == "__main__":
    peer_protocol.main(ProcrastinateQueue())
