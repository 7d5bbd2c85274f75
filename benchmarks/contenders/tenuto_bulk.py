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
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import asyncpg

from benchmarks.contenders import contender_protocol
from benchmarks.contenders.start_counters import CounterFile
from tenuto import Job, Manifest, Tenuto, every
from tenuto.scheduling import manifest_manager

MAX_ACTIVE = 50
TABLES = ["users", *(f"group-{number}" for number in range(8))]
"""Tables of the items: the name of a group, or `users` for items without a group."""
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


class HandlerClock:
    """Counts the handlers of a worker process, and records from when to when each was active."""

    def __init__(self, counters: CounterFile | None) -> None:
        self._counters = counters
        self._count = 0

    async def run(self, scope: int = 0) -> None:
        """Let other handlers begin before this one ends, so that as many are active as the limits allow."""
        counters = self._counters
        assert counters is not None, "only a worker runs jobs"
        began = time.monotonic_ns()
        counters.count("")
        await asyncio.sleep(0)
        counters.record_interval(self._count, scope, began)
        self._count += 1


def build(
    url: str, home: str | None = None, counters: CounterFile | None = None
) -> tuple[Tenuto, dict[str, Manifest], Job[..., Any]]:
    app = Tenuto(database=url, home=home)
    clock = HandlerClock(counters)

    @app.job
    async def replicate(slice: TableSlice) -> None:
        await clock.run(TABLES.index(slice.table))

    @app.job
    async def tick() -> None:
        """The job of every manifest with a trigger."""

    @app.job
    async def plain(number: int) -> None:
        await clock.run()

    made = {
        "free": app.manifest("free", replicate, on_demand=True),
        "capped": app.manifest("capped", replicate, on_demand=True, max_active=MAX_ACTIVE),
        "clock": app.manifest("clock", tick, trigger=every("1d", anchor=datetime.now(UTC) + timedelta(days=1))),
    }
    for name in TABLES[1:]:
        made[name] = app.manifest(name, replicate, on_demand=True, group=name)
    return app, made, plain


def slices(count: int, table: str = "users") -> Iterator[TableSlice]:
    return (TableSlice(table, number) for number in range(count))


async def prepare(url: str) -> None:
    app, *_ = build(url)
    await app.migrate()
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


async def load(url: str, count: int, which: str) -> None:
    """Enqueue that many tasks. ``which`` is a manifest, "plain" for jobs without a manifest, or "groups" for items of
    manifests in eight groups with a cap each.
    """
    app, made, plain = build(url)
    async with app:
        if which == "plain":
            await app.enqueue_many(plain, ({"number": number} for number in range(count)))
        elif which == "groups":
            for name in TABLES[1:]:
                await app.manifests.change_group(name, max_active=MAX_ACTIVE_IN_GROUP)
                await app.bulk_enqueue(made[name], slices(count // len(TABLES[1:]), name))
        else:
            await app.bulk_enqueue(made[which], slices(count))
    contender_protocol.print_answer(loaded=count)


async def work(url: str, counters: CounterFile) -> None:
    """Run a worker process until the stop command."""
    gate = contender_protocol.StandardStreamGate()
    await gate.open()
    with TemporaryDirectory(prefix="tenuto-bench-home-") as home:
        app, *_ = build(url, home, counters)
        async with app:
            await gate.ready()
            async with app.worker(name=f"bench-{os.getpid()}"):
                await gate.wait_for_stop()


async def audit(url: str) -> None:
    """Answer with the numbers of open and of completed tasks."""
    connection = await asyncpg.connect(url)
    waiting = await connection.fetchval("SELECT count(*) FROM tenuto.tasks")
    recorded = await connection.fetchval("SELECT count(*) FROM tenuto.activities WHERE status = 'completed'")
    await connection.close()
    contender_protocol.print_answer(waiting=waiting, recorded=recorded)


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
    parser.add_argument("verb", choices=["versions", "prepare", "fill", "load", "work", "audit", "many", "poll"])
    parser.add_argument("--url", default="")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--due", type=int, default=0)
    parser.add_argument("--which", default="free")
    parser.add_argument("--counters", type=Path)
    parser.add_argument("--samples", type=int, default=0)
    asked = parser.parse_args()
    match asked.verb:
        case "versions":
            contender_protocol.versions(("tenuto", "asyncpg"))
        case "prepare":
            contender_protocol.run(prepare(asked.url))
        case "fill":
            contender_protocol.run(fill(asked.url, asked.count, asked.which))
        case "load":
            contender_protocol.run(load(asked.url, asked.count, asked.which))
        case "work":
            contender_protocol.run(work(asked.url, CounterFile(asked.counters, asked.samples)))
        case "audit":
            contender_protocol.run(audit(asked.url))
        case "many":
            contender_protocol.run(many(asked.url, asked.count))
        case _:
            contender_protocol.run(poll(asked.url, asked.count, asked.due))


if __name__ == "__main__":
    main()
