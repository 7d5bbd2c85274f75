"""The bare database as a contender: the limit of asyncpg and PostgreSQL.

One connection claims a batch and commits, "runs" it in a plain loop, deletes it, writes its record in one statement
and
commits. No retries, leases, types or logs: a limit to compare with, not a queue to use.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from benchmarks.contenders import contender_protocol

TABLES = """
CREATE TABLE jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state text NOT NULL DEFAULT 'waiting',
    queue text NOT NULL DEFAULT 'default',
    priority int NOT NULL DEFAULT 0,
    payload jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    run_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    lease_until timestamptz,
    worker text,
    attempt int NOT NULL DEFAULT 0
);
CREATE INDEX jobs_ready ON jobs (queue, priority DESC, id) WHERE state = 'waiting';
CREATE INDEX jobs_lease ON jobs (lease_until) WHERE state = 'running';
CREATE TABLE history (
    id bigint PRIMARY KEY,
    queue text NOT NULL,
    payload jsonb NOT NULL,
    worker text,
    attempt int NOT NULL,
    outcome text NOT NULL,
    created_at timestamptz NOT NULL,
    started_at timestamptz,
    finished_at timestamptz NOT NULL DEFAULT now()
);
"""

CLAIM = """
UPDATE jobs
SET state = 'running', worker = $1, attempt = attempt + 1, started_at = now(), lease_until = now() + interval '60 s'
WHERE id = ANY(ARRAY(
    SELECT id
    FROM jobs
    WHERE state = 'waiting' AND queue = 'default'
    ORDER BY priority DESC, id
    LIMIT $2
    FOR UPDATE SKIP LOCKED))
RETURNING id, payload
"""

FINISH = """
WITH done AS (
    DELETE FROM jobs
    WHERE id = ANY($1::bigint[]) AND worker = $2 AND state = 'running'
    RETURNING id, queue, payload, worker, attempt, created_at, started_at)
INSERT INTO history (id, queue, payload, worker, attempt, outcome, created_at, started_at)
SELECT id, queue, payload, worker, attempt, 'done', created_at, started_at
FROM done
"""

ENQUEUE = "WITH made AS (INSERT INTO jobs (payload) VALUES ($1) RETURNING id) SELECT pg_notify('jobs', '') FROM made"


class Sender:
    def __init__(self, connection: asyncpg.Connection[Any] | asyncpg.Pool[Any]) -> None:
        self._connection = connection

    async def one(self, payload: str) -> None:
        await self._connection.execute(ENQUEUE, payload)

    async def many(self, payloads: list[str]) -> None:
        for chunk in contender_protocol.in_transactions(payloads):
            rows = [(text,) for text in chunk]
            await self._connection.copy_records_to_table("jobs", columns=["payload"], records=rows)


class RawContender:
    packages = ("asyncpg",)

    async def prepare(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(TABLES)
        await connection.close()

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Sender]:
        connection = await asyncpg.connect(url)
        yield Sender(connection)
        await connection.close()

    @asynccontextmanager
    async def pooled_sender(self, url: str) -> AsyncIterator[Sender]:
        size = contender_protocol.POOL_SIZE
        async with asyncpg.create_pool(url, min_size=size, max_size=size) as pool:
            yield Sender(pool)

    async def work(self, url: str, on_job: contender_protocol.OnJob, gate: contender_protocol.Gate) -> None:
        connection = await asyncpg.connect(url, server_settings={"plan_cache_mode": "force_generic_plan"})
        worker = str(connection.get_server_pid())
        woken = asyncio.Event()
        await connection.add_listener("jobs", lambda *_: woken.set())
        claim = await connection.prepare(CLAIM)
        finish = await connection.prepare(FINISH)
        await gate.ready()
        stopping = asyncio.create_task(gate.wait_for_stop())
        while not stopping.done():
            woken.clear()
            rows = await claim.fetch(worker, contender_protocol.BATCH)
            if rows:
                for row in rows:
                    on_job(row["payload"])
                await finish.fetch([row["id"] for row in rows], worker)
                continue
            waking = asyncio.create_task(woken.wait())
            await asyncio.wait({waking, stopping}, timeout=2.0, return_when=asyncio.FIRST_COMPLETED)
            waking.cancel()
        await connection.close()

    async def audit(self, url: str) -> tuple[int, int]:
        connection = await asyncpg.connect(url)
        waiting = await connection.fetchval("SELECT count(*) FROM jobs")
        recorded = await connection.fetchval("SELECT count(*) FROM history")
        await connection.close()
        return waiting, recorded


if __name__ == "__main__":
    contender_protocol.main(RawContender())
