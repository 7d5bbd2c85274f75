"""Tenuto for `compare`: `tenuto worker` with a name, as a service has one; `enqueue` and `enqueue_many`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from benchmarks.contenders import contender_protocol, peer_protocol
from benchmarks.contenders.ledger import async_job
from tenuto import Tenuto

app = Tenuto(database=os.environ.get(peer_protocol.URL) or None)


@app.job
async def noop(payload: str) -> None:
    await async_job(payload)


class Sender:
    async def one(self, payload: str) -> None:
        await app.enqueue(noop, payload=payload)

    async def many(self, payloads: list[str]) -> None:
        await app.enqueue_many(noop, ({"payload": text} for text in payloads))


class TenutoQueue:
    packages = ("tenuto", "asyncpg")

    async def prepare(self, url: str) -> None:
        mine = Tenuto(database=url)
        await mine.migrate()

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[contender_protocol.Sender]:
        async with app:
            yield Sender()

    def command(self) -> list[str]:
        where = ["--database", os.environ[peer_protocol.URL], "--home", os.environ[peer_protocol.FOLDER]]
        return [
            "-m",
            "tenuto",
            "worker",
            "--app",
            f"{peer_protocol.module_name(__spec__)}:app",
            *where,
            "--name",
            "bench",
            "--quiet",
        ]

    async def remembered(self, url: str) -> int:
        connection = await asyncpg.connect(url)
        counted: int = await connection.fetchval("SELECT count(*) FROM tenuto.tasks")
        await connection.close()
        return counted


if __name__ == "__main__":
    peer_protocol.main(TenutoQueue())
