"""Protocol of the contender scripts: the same entry point, clock and barrier, so that only the product differs.

A script provides a `Contender` and calls `main`. The harness starts it with a command; the answer is one line of JSON
on stdout. A worker prints a line when it is ready, starts on the line `go` and ends on the line `stop` (or when stdin
closes because the harness is gone). Standard library only, and uvloop if it is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from benchmarks.contenders.start_counters import CounterFile, make_payload

BULK_SIZE = 1000
BATCH = 100
POOL_SIZE = 10
GAPS = (0.020, 0.060)
TIMEOUT_SECONDS = 10.0

OnJob = Callable[[str | bytes], None]


class Sender(Protocol):
    """Enqueues jobs over an open connection."""

    async def one(self, payload: str) -> None:
        """Enqueue one job, committed on return, and wake an idle worker as the product would."""

    async def many(self, payloads: list[str]) -> None:
        """Enqueue a list of jobs in the product's fastest way, a thousand per transaction, committed on return."""


class Gate(Protocol):
    """The barrier between a ready worker and a working one."""

    async def ready(self) -> None:
        """Report readiness to the harness and wait for its start command."""

    async def wait_for_stop(self) -> None:
        """Wait for the stop command."""


class Contender(Protocol):
    """Interface of a script."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages whose versions are reported."""

    async def prepare(self, url: str) -> None:
        """Create the tables in an empty database."""

    def sender(self, url: str) -> AbstractAsyncContextManager[Sender]:
        """Open a sender."""

    def pooled_sender(self, url: str) -> AbstractAsyncContextManager[Sender]:
        """Open a sender for concurrent callers, with `POOL_SIZE` connections."""

    async def work(self, url: str, on_job: OnJob, gate: Gate) -> None:
        """Run a worker process: connect, pass the gate, call `on_job(payload)` for each job until the stop command."""

    async def audit(self, url: str) -> tuple[int, int]:
        """Return the number of open jobs, and of jobs with a full record of success."""


class StandardStreamGate:
    """The gate over stdin and stdout of this process."""

    def __init__(self) -> None:
        self._lines = asyncio.StreamReader()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self._lines), sys.stdin)

    async def ready(self) -> None:
        print_answer(ready=True)
        if await self._lines.readline() != b"go\n":
            raise SystemExit("the harness ended before the start")

    async def wait_for_stop(self) -> None:
        await self._lines.readline()

    async def read_line(self) -> str:
        """Return the next line; empty when the harness is gone."""
        return (await self._lines.readline()).decode().strip()


def in_transactions(payloads: list[str]) -> Iterator[list[str]]:
    """Split the list into pieces of one transaction each, for products that do not split it themselves."""
    for at in range(0, len(payloads), BULK_SIZE):
        yield payloads[at : at + BULK_SIZE]


def print_answer(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


async def _enqueue(contender: Contender, url: str, count: int, *, bulk: bool) -> None:
    payloads = [make_payload(number) for number in range(count)]
    async with contender.sender(url) as sender:
        began = time.monotonic_ns()
        if bulk:
            await sender.many(payloads)
        else:
            for text in payloads:
                await sender.one(text)
        print_answer(seconds=(time.monotonic_ns() - began) / 1e9)


async def _enqueue_concurrently(contender: Contender, url: str, count: int, callers: int) -> None:
    """Enqueue from several callers of this process, each its next job as soon as its last one is committed; answer with
    the time of the first and the last call, and the milliseconds of each call."""
    gate = StandardStreamGate()
    await gate.open()
    payloads = iter([make_payload(number) for number in range(count)])
    taken: list[float] = []

    async def call(sender: Sender) -> None:
        for text in payloads:
            began = time.monotonic_ns()
            await sender.one(text)
            taken.append((time.monotonic_ns() - began) / 1e6)

    async with contender.pooled_sender(url) as sender:
        await sender.one(make_payload(count))  # opens connections
        await gate.ready()
        began = time.monotonic_ns()
        await asyncio.gather(*(call(sender) for _ in range(callers)))
        print_answer(began=began, ended=time.monotonic_ns(), milliseconds=sorted(taken))


async def _sample(contender: Contender, url: str, samples: int, counters: CounterFile) -> None:
    """Enqueue one job at a time into an idle system; answer with the times just before and just after each call.

    Sample 0 warms up both sides and is not counted. The next job waits until the previous one has started.
    """
    sent: list[int] = []
    committed: list[int] = []
    dice = random.Random(20)
    async with contender.sender(url) as sender:
        for sample in range(samples):
            await asyncio.sleep(dice.uniform(*GAPS))
            text = make_payload(sample)
            sent.append(time.monotonic_ns())
            await sender.one(text)
            committed.append(time.monotonic_ns())
            overdue = time.monotonic() + TIMEOUT_SECONDS
            while not counters.started(sample):
                if time.monotonic() > overdue:
                    raise SystemExit(f"sample {sample} did not start within {TIMEOUT_SECONDS} s")
                await asyncio.sleep(0.010)
    print_answer(sent=sent, committed=committed)


async def _work(contender: Contender, url: str, on_job: OnJob) -> None:
    gate = StandardStreamGate()
    await gate.open()
    await contender.work(url, on_job, gate)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print_answer(cpu_seconds=used.ru_utime + used.ru_stime)


async def _audit(contender: Contender, url: str) -> None:
    waiting, recorded = await contender.audit(url)
    print_answer(waiting=waiting, recorded=recorded)


def versions(packages: tuple[str, ...]) -> None:
    found = {"python": sys.version.split()[0]}
    for package in (*packages, "uvloop"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    print_answer(**found)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop if it is installed, otherwise on the loop of asyncio."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(coroutine)
    else:
        uvloop.run(coroutine)


def main(contender: Contender) -> None:
    """Command line of a contender script."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "verb", choices=["versions", "prepare", "bulk", "single", "concurrent", "work", "sample", "audit"]
    )
    parser.add_argument("--url", default="")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--callers", type=int, default=1)
    parser.add_argument("--counters", type=Path)
    parser.add_argument("--samples", type=int, default=0)
    asked = parser.parse_args()
    match asked.verb:
        case "versions":
            versions(contender.packages)
        case "prepare":
            run(contender.prepare(asked.url))
        case "bulk":
            run(_enqueue(contender, asked.url, asked.count, bulk=True))
        case "single":
            run(_enqueue(contender, asked.url, asked.count, bulk=False))
        case "concurrent":
            run(_enqueue_concurrently(contender, asked.url, asked.count, asked.callers))
        case "work":
            counters = CounterFile(asked.counters, asked.samples)
            run(_work(contender, asked.url, counters.record_sample if asked.samples else counters.count))
        case "sample":
            run(_sample(contender, asked.url, asked.samples, CounterFile(asked.counters, asked.samples)))
        case _:
            run(_audit(contender, asked.url))
