"""Compare: one table of Tenuto beside its peers. How fast jobs go in and out, how soon a single one begins, and how
many executions of several steps end in a second. What a kill of the worker costs is measured in `losses`.

Smaller counts than in the benchmarks with one peer, so that all of it ends within minutes; the same rules otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import databases, executions
from benchmarks.contenders.arena import URL
from benchmarks.contenders.ledger import Ledger
from benchmarks.contest import END_LIMIT, START_LIMIT, Contender
from benchmarks.figures import Size
from benchmarks.lineup import DURABLE_REDIS, LINEUP, POSTGRESQL, REDIS, Entry
from benchmarks.losses import losses
from benchmarks.measure import Case, percentile, progress, rounded
from benchmarks.processes import ContenderFailed, Talking, started
from benchmarks.redisserver import redis_server

STEP_COUNTS = {"tenuto": 2_000, "celery": 150, "celery-durable": 150, "dbos": 100}


class Field:
    """All who take part, and where each finds its store."""

    def __init__(self, server: str, sockets: Mapping[str, str | None], names: Sequence[str]) -> None:
        self._server = server
        self._sockets = sockets
        self.entries = [
            entry
            for entry in LINEUP
            if entry.name in names and (entry.store == POSTGRESQL or sockets.get(entry.store) is not None)
        ]

    @contextlib.asynccontextmanager
    async def prepared(self, entry: Entry) -> AsyncIterator[str]:
        """A fresh store for one contender: a database of its own, or its own part of a Redis, emptied."""
        if entry.store != POSTGRESQL:
            socket = self._sockets[entry.store]
            assert socket is not None
            await entry.ask(socket, "prepare", limit=START_LIMIT)
            yield socket
            return
        database = f"bench_{entry.name}"
        url = await databases.fresh(self._server, database)
        await entry.ask(url, "prepare", limit=START_LIMIT)
        try:
            yield url
        finally:
            await databases.drop(self._server, database)

    def on_the_course(self, entry: Entry) -> Contender:
        """The same product for work of several steps."""
        server = self._server if entry.store == POSTGRESQL else self._sockets[entry.store] or ""
        return Contender(entry.name, f"benchmarks.contenders.{entry.steps}", entry.python, server)


@contextlib.contextmanager
def stores(names: Sequence[str]) -> Any:
    """The Redis servers that are needed."""
    wanted = {entry.store for entry in LINEUP if entry.name in names}
    with contextlib.ExitStack() as stack:
        yield {
            store: stack.enter_context(redis_server(durable=store == DURABLE_REDIS))
            for store in (REDIS, DURABLE_REDIS)
            if store in wanted
        }


async def compare(server: str, names: Sequence[str], size: Size) -> tuple[list[Case], dict[str, object]]:
    """The cases, and what the object says beside them: who they are, and what each lost."""
    with stores(names) as sockets:
        field = Field(server, sockets, names)
        about = {entry.name: await _about(entry) for entry in field.entries}
        cases = await speed(field, size)
        return cases, {"contenders": about, "losses": await losses(field.entries, field.prepared, size)}


async def _about(entry: Entry) -> dict[str, object]:
    return {
        "title": entry.title,
        "store": entry.store,
        "settings": entry.settings,
        "durability": entry.durability,
        "versions": await entry.ask("", "versions", limit=START_LIMIT),
    }


async def speed(field: Field, size: Size) -> list[Case]:
    """A, B, C, A, B, C: each run through all that is measured of one contender before the next."""
    single, bulk = Case("enqueue one by one", "jobs/s"), Case("enqueue in bulk", "jobs/s")
    drained = Case("drain", "jobs/s")
    middle, tail = Case("pick-up p50", "ms"), Case("pick-up p99", "ms")
    steps = Case("executions of 1→1→2→2 steps", "executions/s")

    async def one(entry: Entry) -> None:
        async with field.prepared(entry) as url, contextlib.AsyncExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tenuto-bench-"))
            few, count, samples = size.of(500, 100), max(100, entry.drain // size.of(1, 10)), size.of(100, 20)
            ledger = Ledger(Path(folder) / "ledger", count + samples)
            await _settled(entry, url)
            alone = min(few, count // 2) if entry.bulk else count
            single.add(entry.name, await _enqueue(entry, url, "single", 0, alone))
            if entry.bulk:
                bulk.add(entry.name, await _enqueue(entry, url, "bulk", alone, count - alone))
            await _settled(entry, url)
            worker = await stack.enter_async_context(contextlib.AsyncExitStack())
            await worker.enter_async_context(working(entry, url, ledger))
            drained.add(entry.name, await _drain(entry, url, ledger, count))
            if entry.in_process:
                await worker.aclose()  # it would compete with the one that samples
            taken = await _latency(entry, url, ledger, count, samples)
            middle.add(entry.name, percentile(taken, 0.50))
            tail.add(entry.name, percentile(taken, 0.99))
        if entry.steps:
            steps.add(entry.name, await _executions(field, entry, size))

    for run in range(size.runs):
        for entry in field.entries:
            if entry.speed:
                progress(f"{entry.title}, run {run + 1} of {size.runs}")
                try:
                    await one(entry)
                except ContenderFailed as failure:
                    if entry.name == "tenuto":
                        raise
                    progress(f"  left out from here: {failure}")
    return [single, bulk, drained, middle, tail, steps]


async def _enqueue(entry: Entry, url: str, verb: str, begin: int, count: int) -> float:
    """Jobs per second. The store must have all of them afterwards."""
    numbers = ["--begin", str(begin), "--count", str(count)]
    answer = await entry.ask(url, verb, *numbers, limit=START_LIMIT + count / 20)
    if answer["remembered"] != begin + count:
        raise ContenderFailed(f"{entry.title} should have {begin + count} jobs waiting, has {answer['remembered']}")
    return count / float(str(answer["seconds"]))


async def _drain(entry: Entry, url: str, ledger: Ledger, count: int) -> float:
    """Jobs per second between the first and the last start of a job, all of them enqueued before the worker started."""
    limit = time.monotonic() + START_LIMIT + count / 50
    while 0 in ledger.ends()[:count]:
        if time.monotonic() > limit:
            raise ContenderFailed(f"{entry.title} did not come to the end of its drain")
        await asyncio.sleep(0.05)
    while (await entry.ask(url, "remembered", limit=START_LIMIT)) != {"remembered": 0}:
        if time.monotonic() > limit:
            raise ContenderFailed(f"{entry.title} ran all jobs and still remembers some")
    if set(ledger.starts()[:count]) != {1}:
        raise ContenderFailed(f"{entry.title} ran {sum(ledger.starts())} jobs for {count}")
    times = ledger.first_starts()[:count]
    return count * 1e9 / (max(times) - min(times))


async def _latency(entry: Entry, url: str, ledger: Ledger, begin: int, samples: int) -> list[float]:
    """Milliseconds from just before the enqueuing call to the start of the job, on an idle system."""
    numbers = ["--begin", str(begin), "--count", str(samples), "--ledger", str(ledger.path)]
    taken = (await entry.ask(url, "sample", *numbers, limit=START_LIMIT + samples * 5))["milliseconds"]
    assert isinstance(taken, list)
    return taken


async def _executions(field: Field, entry: Entry, size: Size) -> float:
    count = max(20, STEP_COUNTS[entry.name] // size.of(1, 10))
    return await executions.drained(field.on_the_course(entry), count)


@contextlib.asynccontextmanager
async def working(entry: Entry, url: str, ledger: Ledger, nap: float = 0.0) -> AsyncIterator[Talking]:
    """The product's own worker; on leaving it is asked to end, and killed if it does not."""
    arguments = ["work", "--ledger", str(ledger.path), "--folder", str(ledger.path.parent), "--nap", str(nap)]
    async with started(entry.python, entry.module, arguments, entry.name, {URL: url}) as process:
        yield process
        await process.leave(END_LIMIT)


async def _settled(entry: Entry, url: str) -> None:
    if entry.store == POSTGRESQL:
        await databases.settle(url)


def summary(extra: Mapping[str, Any]) -> str:
    """What was lost, for people."""
    rows = [["contender", "tasks", "lost", "stuck", "done twice", "seconds until done"]]
    for name, found in extra["losses"].items():
        figures = [found[key] for key in ("tasks", "lost", "stuck", "twice")]
        done = found["seconds"]
        rows.append([name, *map(str, figures), "never" if done is None else f"{rounded(done):g}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
