"""The contest: each contender behind the same verbs, whatever the product. What a benchmark measures, it asks here."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import databases
from benchmarks.contenders.tally import Words
from benchmarks.peers import peers_python
from benchmarks.processes import ContenderFailed, Talking, started

START_LIMIT = 60.0
END_LIMIT = 30.0

QUEUES = {
    "tenuto": "benchmarks.contenders.tenuto_contender",
    "pgqueuer": "benchmarks.contenders.pgqueuer_contender",
    "raw": "benchmarks.contenders.raw_contender",
}


@dataclass(frozen=True)
class Contender:
    """One contender on one server. Every verb but `versions` starts from an empty database of its own."""

    name: str
    module: str
    """Its script."""
    python: Path
    server: str

    async def ask(self, verb: str, *arguments: str, limit: float) -> dict[str, Any]:
        """Run one verb of the script to its end and return its answer."""
        async with started(self.python, self.module, [verb, *arguments], self.name) as process:
            answer = {} if verb == "prepare" else await process.answer(limit)
            await process.end(limit)
            return answer

    async def versions(self) -> dict[str, str]:
        return await self.ask("versions", limit=START_LIMIT)

    @contextlib.asynccontextmanager
    async def prepared(self, database: str = "") -> AsyncIterator[str]:
        """A fresh database with the contender's tables in it; dropped afterwards."""
        database = database or f"bench_{self.name}"
        url = await databases.fresh(self.server, database)
        await self.ask("prepare", "--url", url, limit=START_LIMIT)
        try:
            yield url
        finally:
            await databases.drop(self.server, database)

    async def bulk(self, url: str, count: int) -> float:
        """Enqueue in bulk into a database that stays; the rate."""
        answer = await self.ask("bulk", "--url", url, "--count", str(count), limit=START_LIMIT + count / 500)
        return count / float(answer["seconds"])

    async def bulk_enqueue(self, count: int) -> float:
        """Jobs per second, a thousand at a time."""
        async with self.prepared() as url:
            await databases.settle(url)
            rate = await self.bulk(url, count)
            await self.check(url, waiting=count, recorded=0)
            return rate

    async def enqueue_one_by_one(self, count: int) -> float:
        """Jobs per second, each in its own transaction, one after the other."""
        async with self.prepared() as url:
            await databases.settle(url)
            limit = START_LIMIT + count / 20
            answer = await self.ask("single", "--url", url, "--count", str(count), limit=limit)
            await self.check(url, waiting=count, recorded=0)
            return count / float(answer["seconds"])

    async def drain(self, count: int, workers: int) -> float:
        """Jobs per second between the first and the last handler start, with everything enqueued before."""
        async with self.prepared() as url:
            await self.bulk(url, count)
            await databases.settle(url)
            return await self.consume(url, count, workers)

    async def consume(self, url: str, count: int, workers: int) -> float:
        """Work off what waits in a database; the rate. Every job must have run once and be on record."""
        async with self.working(url, workers) as (processes, files):
            limit = time.monotonic() + START_LIMIT + count / 100
            while sum(words.tally().starts for words in files) < count:
                if time.monotonic() > limit:
                    raise ContenderFailed(f"{self.name} overstayed its drain")
                if not all(process.running() for process in processes):
                    raise ContenderFailed(f"a worker of {self.name} ended during the drain")
                await asyncio.sleep(0.025)
            await asyncio.gather(*(self._stop(process) for process in processes))
            tallies = [words.tally() for words in files]
        ran = sum(tally.starts for tally in tallies)
        if ran != count:
            raise ContenderFailed(f"{self.name} ran {ran} handlers for {count} jobs")
        await self.check(url, waiting=0, recorded=count)
        began = min(tally.first_ns for tally in tallies if tally.starts)
        return count * 1e9 / (max(tally.last_ns for tally in tallies) - began)

    async def latency(self, samples: int) -> tuple[list[float], list[float]]:
        """Milliseconds to the start of the handler on an idle system: from the commit, and from before the call."""
        async with self.prepared() as url, self.working(url, 1, samples + 1) as (processes, files):
            words = files[0]
            arguments = ["--url", url, "--samples", str(samples + 1), "--words", str(words.path)]
            answer = await self.ask("sample", *arguments, limit=START_LIMIT + samples * 12)
            await self._stop(processes[0])
            starts = [words.started(sample) for sample in range(samples + 1)]
            from_commit, from_call = (
                [(start - then) / 1e6 for start, then in zip(starts, answer[key], strict=True)]
                for key in ("committed", "sent")
            )
            return from_commit[1:], from_call[1:]

    async def idle(self, seconds: float) -> tuple[float, float]:
        """An idle worker's CPU in ms per minute, and the statements it sends per minute (counted as transactions)."""
        async with (
            databases.without_autovacuum(self.server),
            self.prepared() as url,
            self.working(url, 1) as (processes, _),
        ):
            cost = await self.cost_of_idling(processes[0], seconds)
            await self._stop(processes[0])
            return cost

    async def cost_of_idling(self, process: Talking, seconds: float) -> tuple[float, float]:
        """What a process that has just been started costs with nothing to do: as `idle`."""
        await asyncio.sleep(3.0)  # until it has arrived
        database = f"bench_{self.name}"
        counted, used = await databases.transactions(self.server, database), cpu_seconds(process.pid)
        await asyncio.sleep(seconds)
        counted = await databases.transactions(self.server, database) - counted
        used = cpu_seconds(process.pid) - used
        return used * 1000 * 60 / seconds, counted * 60 / seconds

    @contextlib.asynccontextmanager
    async def working(
        self, url: str, workers: int, samples: int = 0
    ) -> AsyncIterator[tuple[list[Talking], list[Words]]]:
        """Worker processes, all past the barrier together, and the files they tally in."""
        async with contextlib.AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tenuto-bench-tally-")))
            processes, files = [], []
            for number in range(workers):
                path = folder / str(number)
                files.append(Words(path, samples))
                arguments = ["work", "--url", url, "--words", str(path), "--samples", str(samples)]
                running = started(self.python, self.module, arguments, self.name)
                processes.append(await stack.enter_async_context(running))
            await asyncio.gather(*(process.answer(START_LIMIT) for process in processes))
            for process in processes:
                await process.say("go")
            yield processes, files

    async def _stop(self, process: Talking) -> None:
        await process.say("stop")
        await process.end(END_LIMIT)

    async def check(self, url: str, *, waiting: int, recorded: int) -> None:
        """A figure counts only if the database agrees that the work was done."""
        found = await self.ask("audit", "--url", url, limit=START_LIMIT)
        if (found["waiting"], found["recorded"]) != (waiting, recorded):
            raise ContenderFailed(f"{self.name} should have {waiting} waiting and {recorded} recorded, has {found}")


def contenders(server: str, scripts: Mapping[str, str], names: Collection[str]) -> list[Contender]:
    """The contenders asked for, Tenuto in this environment, the others in the peers'."""
    return [
        Contender(name, module, Path(sys.executable) if name == "tenuto" else peers_python(), server)
        for name, module in scripts.items()
        if name in names
    ]


def cpu_seconds(session: int) -> float:
    """CPU used so far by all threads of all living processes of a session."""
    used = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[3]) == session:
                for thread in stat.parent.glob("task/*/schedstat"):
                    used += int(thread.read_text().split()[0])
    return used / 1e9
