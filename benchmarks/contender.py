"""Contenders: the same commands for each product. Every measurement of a benchmark goes through here."""

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
from benchmarks.contenders.start_counters import CounterFile
from benchmarks.load import find_postmaster, server_cpu_seconds
from benchmarks.peers import peers_python
from benchmarks.processes import ContenderFailed, ContenderProcess, start_process

START_TIMEOUT_SECONDS = 60.0
END_TIMEOUT_SECONDS = 30.0
IDLE_WINDOW_SECONDS = 3.0

QUEUES = {
    "tenuto": "benchmarks.contenders.tenuto_contender",
    "pgqueuer": "benchmarks.contenders.pgqueuer_contender",
    "raw": "benchmarks.contenders.raw_contender",
}


OWN = frozenset(
    f"benchmarks.contenders.{name}" for name in ("raw_runs", "raw_identity", "script_identity", "script_ldap")
)
"""Modules that need no package of a peer: they run in the environment of Tenuto."""


@dataclass(frozen=True)
class Drain:
    """Figures of one drain."""

    rate: float
    """Jobs per second between the first and the last handler start."""
    worker_microseconds: float
    """CPU time of the workers per job, without their start."""
    server_microseconds: float
    """CPU time of all processes of the server per job."""
    wal_bytes: float
    """Bytes of the write-ahead log per job, with those of the page images after a checkpoint."""


@dataclass(frozen=True)
class Idle:
    """Cost of an idle process per minute."""

    cpu_milliseconds: float
    """CPU time of the process and its children."""
    server_milliseconds: float
    """CPU time of all processes of the server, with autovacuum and what the server does for itself."""
    statements: float
    """Transactions of its database."""


@dataclass(frozen=True)
class Contender:
    """One contender on one server. Every command except `versions` starts with its own empty database."""

    name: str
    module: str
    """Module of its script."""
    python: Path
    server: str

    async def run_command(self, verb: str, *arguments: str, limit: float) -> dict[str, Any]:
        """Run one command of the script to its end and return its answer."""
        async with start_process(self.python, self.module, [verb, *arguments], self.name) as process:
            answer = {} if verb == "prepare" else await process.read_answer(limit)
            await process.wait_for_exit(limit)
            return answer

    async def versions(self) -> dict[str, str]:
        return await self.run_command("versions", limit=START_TIMEOUT_SECONDS)

    @contextlib.asynccontextmanager
    async def prepared_database(self, database: str = "") -> AsyncIterator[str]:
        """Provide a fresh database with the contender's tables, dropped afterwards."""
        database = database or f"bench_{self.name}"
        url = await databases.create_fresh(self.server, database)
        await self.run_command("prepare", "--url", url, limit=START_TIMEOUT_SECONDS)
        try:
            yield url
        finally:
            await databases.drop(self.server, database)

    async def enqueue_in_bulk(self, url: str, count: int) -> float:
        """Enqueue in bulk into an existing database; return the rate."""
        answer = await self.run_command(
            "bulk", "--url", url, "--count", str(count), limit=START_TIMEOUT_SECONDS + count / 500
        )
        return count / float(answer["seconds"])

    async def measure_bulk_enqueue(self, count: int) -> float:
        """Return jobs per second, a thousand at a time."""
        async with self.prepared_database() as url:
            await databases.settle(url)
            rate = await self.enqueue_in_bulk(url, count)
            await self.check(url, waiting=count, recorded=0)
            return rate

    async def measure_single_enqueue(self, count: int) -> float:
        """Return jobs per second, each in its own transaction, one after the other."""
        async with self.prepared_database() as url:
            await databases.settle(url)
            limit = START_TIMEOUT_SECONDS + count / 20
            answer = await self.run_command("single", "--url", url, "--count", str(count), limit=limit)
            await self.check(url, waiting=count, recorded=0)
            return count / float(answer["seconds"])

    async def measure_concurrent_enqueue(
        self, count: int, callers: int, processes: int = 1
    ) -> tuple[float, list[float]]:
        """Return jobs per second from concurrent callers, and the milliseconds of each call."""
        async with self.prepared_database() as url, contextlib.AsyncExitStack() as stack:
            await databases.settle(url)
            arguments = ["concurrent", "--url", url, "--count", str(count // processes), "--callers", str(callers)]
            running = [
                await stack.enter_async_context(start_process(self.python, self.module, arguments, self.name))
                for _ in range(processes)
            ]
            await asyncio.gather(*(process.read_answer(START_TIMEOUT_SECONDS) for process in running))
            for process in running:
                await process.send("go")
            limit = START_TIMEOUT_SECONDS + count / 100
            answers = await asyncio.gather(*(process.read_answer(limit) for process in running))
            await asyncio.gather(*(process.wait_for_exit(limit) for process in running))
            await self.check(url, waiting=(count // processes + 1) * processes, recorded=0)
        seconds = (max(each["ended"] for each in answers) - min(each["began"] for each in answers)) / 1e9
        calls = sorted(taken for each in answers for taken in each["milliseconds"])
        return len(calls) / seconds, calls

    async def measure_drain(self, count: int, workers: int, *, settled: bool = True) -> Drain:
        """Drain jobs that were all enqueued before. Without ``settled`` the tables were empty a moment ago, and neither
        vacuumed nor analysed since."""
        async with self.prepared_database() as url:
            await self.enqueue_in_bulk(url, count)
            if settled:
                await databases.settle(url)
            return await self.consume(url, count, workers)

    async def consume(self, url: str, count: int, workers: int) -> Drain:
        """Process the waiting jobs of a database. Every job must have run once and be recorded."""
        postmaster = await find_postmaster(url)
        async with self.running_workers(url, workers) as (processes, files), databases.connected(url) as connection:

            def used() -> tuple[float, float]:
                return sum(cpu_seconds(process.pid) for process in processes), server_cpu_seconds(postmaster)

            log_began = await connection.fetchval("SELECT pg_current_wal_insert_lsn()")
            before, skipped = used(), 0
            limit = time.monotonic() + START_TIMEOUT_SECONDS + count / 100
            while (started := sum(counters.tally().starts for counters in files)) < count:
                if started and not skipped:
                    before, skipped = used(), started  # without the start of the processes
                if time.monotonic() > limit:
                    raise ContenderFailed(f"{self.name} exceeded the time limit of its drain")
                if not all(process.is_running() for process in processes):
                    raise ContenderFailed(f"a worker of {self.name} ended during the drain")
                await asyncio.sleep(0.025)
            worker, server = (now - then for now, then in zip(used(), before, strict=True))
            await asyncio.gather(*(self._stop(process) for process in processes))
            log_bytes = await connection.fetchval("SELECT pg_current_wal_insert_lsn() - $1::pg_lsn", log_began)
            tallies = [counters.tally() for counters in files]
        ran = sum(tally.starts for tally in tallies)
        if ran != count:
            raise ContenderFailed(f"{self.name} ran {ran} handlers for {count} jobs")
        await self.check(url, waiting=0, recorded=count)
        began = min(tally.first_ns for tally in tallies if tally.starts)
        rate = count * 1e9 / (max(tally.last_ns for tally in tallies) - began)
        measured = count - skipped
        return Drain(rate, worker * 1e6 / measured, server * 1e6 / measured, float(log_bytes) / count)

    async def measure_latency(self, samples: int) -> tuple[list[float], list[float]]:
        """Return milliseconds to the start of the handler on an idle system: from the commit, and from before the
        call.
        """
        async with self.prepared_database() as url, self.running_workers(url, 1, samples + 1) as (processes, files):
            counters = files[0]
            arguments = ["--url", url, "--samples", str(samples + 1), "--counters", str(counters.path)]
            answer = await self.run_command("sample", *arguments, limit=START_TIMEOUT_SECONDS + samples * 12)
            await self._stop(processes[0])
            starts = [counters.started(sample) for sample in range(samples + 1)]
            from_commit, from_call = (
                [(start - then) / 1e6 for start, then in zip(starts, answer[key], strict=True)]
                for key in ("committed", "sent")
            )
            return from_commit[1:], from_call[1:]

    async def measure_idle(self, seconds: float, counting_seconds: float) -> Idle:
        """Return the cost of an idle worker."""
        async with self.prepared_database() as url, self.running_workers(url, 1) as (processes, _):
            cost = await self.measure_idle_process(processes[0], seconds, counting_seconds)
            await self._stop(processes[0])
            return cost

    async def measure_idle_process(self, process: ContenderProcess, seconds: float, counting_seconds: float) -> Idle:
        """Return the cost of a process that was just started: CPU time with autovacuum, as in production, then
        statements without it, because its transactions are counted too.
        """
        postmaster = await find_postmaster(self.server)
        await _wait_until_idle(process)
        before = cpu_seconds(process.pid), server_cpu_seconds(postmaster)
        await asyncio.sleep(seconds)
        after = cpu_seconds(process.pid), server_cpu_seconds(postmaster)
        own, server = ((now - then) * 60_000 / seconds for now, then in zip(after, before, strict=True))
        async with databases.without_autovacuum(self.server):
            counted = await databases.transaction_count(self.server, f"bench_{self.name}")
            await asyncio.sleep(counting_seconds)
            counted = await databases.transaction_count(self.server, f"bench_{self.name}") - counted
        return Idle(own, server, counted * 60 / counting_seconds)

    @contextlib.asynccontextmanager
    async def running_workers(
        self, url: str, workers: int, samples: int = 0
    ) -> AsyncIterator[tuple[list[ContenderProcess], list[CounterFile]]]:
        """Provide worker processes that start together, and their counter files."""
        async with contextlib.AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tenuto-bench-tally-")))
            processes, files = [], []
            for number in range(workers):
                path = folder / str(number)
                files.append(CounterFile(path, samples))
                arguments = ["work", "--url", url, "--counters", str(path), "--samples", str(samples)]
                running = start_process(self.python, self.module, arguments, self.name)
                processes.append(await stack.enter_async_context(running))
            await asyncio.gather(*(process.read_answer(START_TIMEOUT_SECONDS) for process in processes))
            for process in processes:
                await process.send("go")
            yield processes, files

    async def _stop(self, process: ContenderProcess) -> None:
        await process.send("stop")
        await process.wait_for_exit(END_TIMEOUT_SECONDS)

    async def check(self, url: str, *, waiting: int, recorded: int) -> None:
        """Raise unless the database confirms that the work was done."""
        found = await self.run_command("audit", "--url", url, limit=START_TIMEOUT_SECONDS)
        if (found["waiting"], found["recorded"]) != (waiting, recorded):
            raise ContenderFailed(f"{self.name} should have {waiting} waiting and {recorded} recorded, has {found}")


async def _wait_until_idle(process: ContenderProcess) -> None:
    """Wait until a process that was just started has loaded everything: it uses less than a tenth of a core."""
    await asyncio.sleep(IDLE_WINDOW_SECONDS)
    limit = time.monotonic() + START_TIMEOUT_SECONDS
    used = cpu_seconds(process.pid)
    while True:
        await asyncio.sleep(IDLE_WINDOW_SECONDS)
        used, before = cpu_seconds(process.pid), used
        if used - before < IDLE_WINDOW_SECONDS / 10:
            return
        if time.monotonic() > limit:
            raise ContenderFailed(
                f"the process does not become idle: {used - before:.2f} s CPU in {IDLE_WINDOW_SECONDS} s"
            )


def select_contenders(server: str, scripts: Mapping[str, str], names: Collection[str]) -> list[Contender]:
    """Return the requested contenders, Tenuto in this environment, the others in the environment of the peers."""
    return [
        Contender(name, module, Path(sys.executable) if name == "tenuto" or module in OWN else peers_python(), server)
        for name, module in scripts.items()
        if name in names
    ]


def cpu_seconds(session: int) -> float:
    """Return the CPU time of all threads of all live processes of a session."""
    used = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[3]) == session:
                for thread in stat.parent.glob("task/*/schedstat"):
                    used += int(thread.read_text().split()[0])
    return used / 1e9
