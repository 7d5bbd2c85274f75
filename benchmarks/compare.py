"""Compare: one table of Tenuto and its peers: enqueue and drain rates, latency of a single job, and executions of
several
steps per second. `losses` measures the effect of killing the worker.

The counts are smaller than in the benchmarks with one peer, so that all ends within minutes; the rules are the same.
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
from benchmarks.contender import END_TIMEOUT_SECONDS, START_TIMEOUT_SECONDS, Contender
from benchmarks.contenders.ledger import Ledger
from benchmarks.contenders.peer_protocol import URL
from benchmarks.losses import losses
from benchmarks.measure import Case, percentile, progress, rounded
from benchmarks.peer_entries import DURABLE_REDIS, ENTRIES, POSTGRESQL, REDIS, PeerEntry
from benchmarks.processes import ContenderFailed, ContenderProcess, start_process
from benchmarks.queue_benchmarks import Size
from benchmarks.redis_server import redis_server

STEP_COUNTS = {"tenuto": 2_000, "celery": 150, "celery-durable": 150, "dbos": 100}


class Comparison:
    """All entries and the stores they use."""

    def __init__(self, server: str, sockets: Mapping[str, str | None], names: Sequence[str]) -> None:
        self._server = server
        self._sockets = sockets
        self.entries = [
            entry
            for entry in ENTRIES
            if entry.name in names and (entry.store == POSTGRESQL or sockets.get(entry.store) is not None)
        ]

    @contextlib.asynccontextmanager
    async def prepared_store(self, entry: PeerEntry) -> AsyncIterator[str]:
        """Provide a fresh store for one entry: its own database, or its own emptied part of a Redis."""
        if entry.store != POSTGRESQL:
            socket = self._sockets[entry.store]
            assert socket is not None
            await entry.run_command(socket, "prepare", limit=START_TIMEOUT_SECONDS)
            yield socket
            return
        database = f"bench_{entry.name}"
        url = await databases.create_fresh(self._server, database)
        await entry.run_command(url, "prepare", limit=START_TIMEOUT_SECONDS)
        try:
            yield url
        finally:
            await databases.drop(self._server, database)

    def as_runner(self, entry: PeerEntry) -> Contender:
        """Return the contender for executions of several steps."""
        server = self._server if entry.store == POSTGRESQL else self._sockets[entry.store] or ""
        return Contender(entry.name, f"benchmarks.contenders.{entry.runner_script}", entry.python, server)


@contextlib.contextmanager
def redis_servers(names: Sequence[str]) -> Any:
    """Start the Redis servers that are needed."""
    wanted = {entry.store for entry in ENTRIES if entry.name in names}
    with contextlib.ExitStack() as stack:
        yield {
            store: stack.enter_context(redis_server(durable=store == DURABLE_REDIS))
            for store in (REDIS, DURABLE_REDIS)
            if store in wanted
        }


async def compare(server: str, names: Sequence[str], size: Size) -> tuple[list[Case], dict[str, object]]:
    """Return the cases, the description of the entries, and their losses."""
    with redis_servers(names) as sockets:
        field = Comparison(server, sockets, names)
        about = {entry.name: await _describe(entry) for entry in field.entries}
        cases = await measure_speed(field, size)
        return cases, {"contenders": about, "losses": await losses(field.entries, field.prepared_store, size)}


async def _describe(entry: PeerEntry) -> dict[str, object]:
    return {
        "title": entry.title,
        "store": entry.store,
        "settings": entry.settings,
        "durability": entry.durability,
        "versions": await entry.run_command("", "versions", limit=START_TIMEOUT_SECONDS),
    }


async def measure_speed(field: Comparison, size: Size) -> list[Case]:
    """Alternate A, B, C, A, B, C: measure everything of one entry before the next."""
    single, bulk = Case("enqueue one by one", "jobs/s"), Case("enqueue in bulk", "jobs/s")
    drained = Case("drain", "jobs/s")
    middle, tail = Case("pick-up p50", "ms"), Case("pick-up p99", "ms")
    steps = Case("executions of 1→1→2→2 steps", "executions/s")

    async def one(entry: PeerEntry) -> None:
        async with field.prepared_store(entry) as url, contextlib.AsyncExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tenuto-bench-"))
            few, count, samples = size.of(500, 100), max(100, entry.drain_count // size.of(1, 10)), size.of(100, 20)
            ledger = Ledger(Path(folder) / "ledger", count + samples)
            await _has_settled(entry, url)
            alone = min(few, count // 2) if entry.has_bulk else count
            single.add(entry.name, await _measure_enqueue(entry, url, "single", 0, alone))
            if entry.has_bulk:
                bulk.add(entry.name, await _measure_enqueue(entry, url, "bulk", alone, count - alone))
            await _has_settled(entry, url)
            worker = await stack.enter_async_context(contextlib.AsyncExitStack())
            await worker.enter_async_context(running_worker(entry, url, ledger))
            drained.add(entry.name, await _measure_drain(entry, url, ledger, count))
            if entry.in_process:
                await worker.aclose()  # it would compete with the sampling process
            taken = await _measure_latency(entry, url, ledger, count, samples)
            middle.add(entry.name, percentile(taken, 0.50))
            tail.add(entry.name, percentile(taken, 0.99))
        if entry.runner_script:
            steps.add(entry.name, await _measure_executions(field, entry, size))

    for run in range(size.runs):
        for entry in field.entries:
            if entry.measures_speed:
                progress(f"{entry.title}, run {run + 1} of {size.runs}")
                try:
                    await one(entry)
                except ContenderFailed as failure:
                    if entry.name == "tenuto":
                        raise
                    progress(f"  left out from here: {failure}")
    return [single, bulk, drained, middle, tail, steps]


async def _measure_enqueue(entry: PeerEntry, url: str, verb: str, begin: int, count: int) -> float:
    """Return jobs per second. The store must have all of them afterwards."""
    numbers = ["--begin", str(begin), "--count", str(count)]
    answer = await entry.run_command(url, verb, *numbers, limit=START_TIMEOUT_SECONDS + count / 20)
    if answer["remembered"] != begin + count:
        raise ContenderFailed(f"{entry.title} should have {begin + count} jobs waiting, has {answer['remembered']}")
    return count / float(str(answer["seconds"]))


async def _measure_drain(entry: PeerEntry, url: str, ledger: Ledger, count: int) -> float:
    """Return jobs per second between the first and the last start of a job, all enqueued before the worker started."""
    limit = time.monotonic() + START_TIMEOUT_SECONDS + count / 50
    while 0 in ledger.ends()[:count]:
        if time.monotonic() > limit:
            raise ContenderFailed(f"{entry.title} did not finish its drain")
        await asyncio.sleep(0.05)
    while (await entry.run_command(url, "remembered", limit=START_TIMEOUT_SECONDS)) != {"remembered": 0}:
        if time.monotonic() > limit:
            raise ContenderFailed(f"{entry.title} ran all jobs and still has some in its store")
    if set(ledger.starts()[:count]) != {1}:
        raise ContenderFailed(f"{entry.title} ran {sum(ledger.starts())} jobs for {count}")
    times = ledger.first_starts()[:count]
    return count * 1e9 / (max(times) - min(times))


async def _measure_latency(entry: PeerEntry, url: str, ledger: Ledger, begin: int, samples: int) -> list[float]:
    """Return milliseconds from just before the enqueuing call to the start of the job, on an idle system."""
    numbers = ["--begin", str(begin), "--count", str(samples), "--ledger", str(ledger.path)]
    taken = (await entry.run_command(url, "sample", *numbers, limit=START_TIMEOUT_SECONDS + samples * 5))[
        "milliseconds"
    ]
    assert isinstance(taken, list)
    return taken


async def _measure_executions(field: Comparison, entry: PeerEntry, size: Size) -> float:
    count = max(20, STEP_COUNTS[entry.name] // size.of(1, 10))
    return await executions.measure_drain(field.as_runner(entry), count)


@contextlib.asynccontextmanager
async def running_worker(
    entry: PeerEntry, url: str, ledger: Ledger, nap: float = 0.0
) -> AsyncIterator[ContenderProcess]:
    """Run the product's own worker; at the end ask it to stop, and kill it if it does not."""
    arguments = ["work", "--ledger", str(ledger.path), "--folder", str(ledger.path.parent), "--nap", str(nap)]
    async with start_process(entry.python, entry.module, arguments, entry.name, {URL: url}) as process:
        yield process
        await process.terminate(END_TIMEOUT_SECONDS)


async def _has_settled(entry: PeerEntry, url: str) -> None:
    if entry.store == POSTGRESQL:
        await databases.settle(url)


def loss_summary(extra: Mapping[str, Any]) -> str:
    """Return the losses as text."""
    rows = [["contender", "tasks", "lost", "stuck", "done twice", "seconds until done"]]
    for name, found in extra["losses"].items():
        figures = [found[key] for key in ("tasks", "lost", "stuck", "twice")]
        done = found["seconds"]
        rows.append([name, *map(str, figures), "never" if done is None else f"{rounded(done):g}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
