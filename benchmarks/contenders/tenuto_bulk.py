"""Tenuto's manifests for `bulk` and `manager`: typed items in bulk, memory while streaming, limits, polls over very
many.

Everything goes through the public API except the copies of one manifest, which are created with one statement,
because
creating them is not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory
from typing import Any

import asyncpg

from benchmarks.contenders import contender_protocol
from tenuto import Job, Manifest, Tenuto, every
from tenuto.postgres import migrator
from tenuto.scheduling import manifest_manager

MAX_ACTIVE = 50
GROUPS = 8
MAX_ACTIVE_IN_GROUP = 10
WARM_UP = 3

COPY = """
INSERT INTO tenuto.manifests (id, external_id, name, enabled, definition, job, schedule_type, version, origin,
                              created_at, updated_at, next_run_at, planned)
SELECT gen_random_uuid(), external_id || '-' || n, name, true,
       definition || jsonb_build_object('external_id', external_id || '-' || n), job, schedule_type, 1, origin,
       created_at, updated_at, next_run_at + n * interval '1 second', true
FROM tenuto.manifests, generate_series(1, $2::integer) AS n
WHERE external_id = $1
"""
SOME_DUE = """
UPDATE tenuto.manifests
SET next_run_at = now() - interval '1 millisecond'
WHERE id IN (SELECT id FROM tenuto.manifests ORDER BY id LIMIT $1)
"""


@dataclass
class TableSlice:
    """A typed item: a slice of a table to be replicated."""

    table: str
    number: int


def build(url: str, home: str | None = None) -> tuple[Tenuto, dict[str, Manifest], Job[..., Any]]:
    app = Tenuto(database=url, home=home)

    @app.job
    async def replicate(slice: TableSlice) -> None:
        """Do nothing."""

    @app.job
    async def tick() -> None:
        """The job of every manifest with a trigger."""

    @app.job
    async def plain(number: int) -> None:
        """Do nothing, without a manifest."""

    made = {
        "free": app.manifest("free", replicate, on_demand=True),
        "capped": app.manifest("capped", replicate, on_demand=True, max_active=MAX_ACTIVE),
        "clock": app.manifest("clock", tick, trigger=every("1d", anchor=datetime.now(UTC) + timedelta(days=1))),
    }
    for number in range(GROUPS):
        name = f"group-{number}"
        made[name] = app.manifest(name, replicate, on_demand=True, group=name)
    return app, made, plain


def slices(count: int) -> Iterator[TableSlice]:
    return (TableSlice("users", number) for number in range(count))


async def prepare(url: str) -> None:
    app, *_ = build(url)
    database = await app.connect(check_schema=False)
    await migrator.migrate(database)
    await database.close()
    async with app:
        await app.manifests.deploy()


async def fill(url: str, count: int, which: str) -> None:
    """Submit that many items of a manifest in one call; answer with the rate and the memory growth."""
    app, made, _ = build(url)
    async with app:
        await app.bulk_enqueue(made[which], slices(2_000))  # statements prepared, connections opened
        before = _megabytes()
        began = time.monotonic()
        batch = await app.bulk_enqueue(made[which], slices(count))
        seconds = time.monotonic() - began
        grown = _megabytes() - before
        total = (await batch.progress()).item_count
    if total != count:
        raise SystemExit(f"{count} items were sent, {total} are stored")
    contender_protocol.print_answer(rate=count / seconds, grown=grown)


async def drain(url: str, count: int, which: str, workers: int) -> None:
    """Process that many tasks; answer with the rate. ``which`` is a manifest, "plain" for jobs without a manifest, or
    "groups" for items of manifests in eight groups with a cap each.
    """
    with TemporaryDirectory(prefix="tenuto-bench-home-") as home:
        app, made, plain = build(url, home)
        async with app, AsyncExitStack() as stack:
            if which == "plain":
                await app.enqueue_many(plain, ({"number": number} for number in range(count)))
            elif which == "groups":
                for number in range(GROUPS):
                    name = f"group-{number}"
                    await app.manifests.change_group(name, max_active=MAX_ACTIVE_IN_GROUP)
                    await app.bulk_enqueue(made[name], slices(count // GROUPS))
            else:
                await app.bulk_enqueue(made[which], slices(count))
            connection = await asyncpg.connect(url)
            await connection.execute("VACUUM (ANALYZE) tenuto.tasks")
            began = time.monotonic()
            for number in range(workers):
                await stack.enter_async_context(app.worker(name=f"bench-{number}"))
            while await connection.fetchval("SELECT EXISTS (SELECT FROM tenuto.tasks)"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            seconds = time.monotonic() - began
            done = await connection.fetchval("SELECT count(*) FROM tenuto.activities WHERE status = 'completed'")
            await connection.close()
    if done != count:
        raise SystemExit(f"{count} tasks were sent, {done} were done")
    contender_protocol.print_answer(rate=count / seconds)


async def many(url: str, count: int) -> None:
    """Create manifests with a trigger, none of them due."""
    connection = await asyncpg.connect(url)
    await connection.execute(COPY, "clock", count - 1, timeout=600)
    await connection.execute("VACUUM (ANALYZE)", timeout=600)
    await connection.close()
    contender_protocol.print_answer(filled=count)


async def poll(url: str, times: int, due: int) -> None:
    """Time one poll with that many due, repeatedly; answer in milliseconds."""
    app, *_ = build(url)
    taken = []
    database = await app.connect(for_worker=True)
    connection = await asyncpg.connect(url)
    for _ in range(WARM_UP + times):
        await connection.execute("DELETE FROM tenuto.tasks")
        await connection.execute(SOME_DUE, due)
        began = time.monotonic_ns()
        result = await manifest_manager.poll_manifests(database, database.clock.now(), "bench")
        taken.append((time.monotonic_ns() - began) / 1e6)
        if result.enqueued != due:
            raise SystemExit(f"{due} were due, {result.enqueued} were enqueued: {json.dumps(result.skipped)}")
    await connection.close()
    await database.close()
    contender_protocol.print_answer(milliseconds=taken[WARM_UP:])


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["versions", "prepare", "fill", "drain", "many", "poll"])
    parser.add_argument("--url", default="")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--due", type=int, default=0)
    parser.add_argument("--which", default="free")
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    match asked.verb:
        case "versions":
            contender_protocol.versions(("tenuto", "asyncpg"))
        case "prepare":
            contender_protocol.run(prepare(asked.url))
        case "fill":
            contender_protocol.run(fill(asked.url, asked.count, asked.which))
        case "drain":
            contender_protocol.run(drain(asked.url, asked.count, asked.which, asked.workers))
        case "many":
            contender_protocol.run(many(asked.url, asked.count))
        case _:
            contender_protocol.run(poll(asked.url, asked.count, asked.due))


if __name__ == "__main__":
    main()
