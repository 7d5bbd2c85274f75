"""Tenuto in the arena: `tenuto worker` with a name, as a service has one; `enqueue` and `enqueue_many`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from benchmarks.contenders import arena, stage
from benchmarks.contenders.ledger import async_job
from tenuto import Tenuto
from tenuto.postgres import migrator

app = Tenuto(database=os.environ.get(arena.URL) or None)


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
        database = await mine.connect(check_schema=False)
        await migrator.migrate(database)
        await database.close()

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[stage.Sender]:
        async with app:
            yield Sender()

    def command(self) -> list[str]:
        where = ["--database", os.environ[arena.URL], "--home", os.environ[arena.FOLDER]]
        return [
            "-m",
            "tenuto",
            "worker",
            "--app",
            f"{arena.module(__spec__)}:app",
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
    arena.main(TenutoQueue())
