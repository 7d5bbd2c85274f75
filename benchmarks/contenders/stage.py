"""The stage: the same entry point, clock and barrier for every contender script, so that only the product differs.

A script offers an object of the shape `Contender` and calls `main`. The harness starts it with a verb; the answer is
one line of JSON on stdout. A worker prints a line when it is ready, starts on the line `go` and ends on the line `stop`
(or when the harness is gone and its stdin closes). Standard library only, and uvloop where it can be had.
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

from benchmarks.contenders.tally import Words, payload

BULK = 1000
BATCH = 100
GAPS = (0.020, 0.060)
OVERDUE = 10.0

OnJob = Callable[[str | bytes], None]


class Sender(Protocol):
    """What puts jobs into the queue, over a connection that is open already."""

    async def one(self, payload: str) -> None:
        """Enqueue one job, committed on return, and wake an idle worker as the product would."""

    async def many(self, payloads: list[str]) -> None:
        """Enqueue a list of jobs in the product's fastest way, a thousand in a transaction, committed on return."""


class Gate(Protocol):
    """The barrier between a worker that is ready and one that works."""

    async def ready(self) -> None:
        """Tell the harness that all is prepared, and wait for its word to start."""

    async def stopped(self) -> None:
        """Wait for the word to stop."""


class Contender(Protocol):
    """What each script offers."""

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages whose versions matter."""

    async def prepare(self, url: str) -> None:
        """Make the tables in an empty database."""

    def sender(self, url: str) -> AbstractAsyncContextManager[Sender]:
        """Open what enqueues."""

    async def work(self, url: str, on_job: OnJob, gate: Gate) -> None:
        """Be a worker process: connect, pass the gate, call `on_job(payload)` for each job until the word to stop."""

    async def audit(self, url: str) -> tuple[int, int]:
        """Jobs not yet done, and jobs with a full record of success."""


class Pipe:
    """The gate, over this process's stdin and stdout."""

    def __init__(self) -> None:
        self._lines = asyncio.StreamReader()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self._lines), sys.stdin)

    async def ready(self) -> None:
        answer(ready=True)
        if await self._lines.readline() != b"go\n":
            raise SystemExit("the harness left before the start")

    async def stopped(self) -> None:
        await self._lines.readline()

    async def line(self) -> str:
        """The next word; nothing when the harness is gone."""
        return (await self._lines.readline()).decode().strip()


def thousands(payloads: list[str]) -> Iterator[list[str]]:
    """The list in the pieces of one transaction each, for a product that does not make them itself."""
    for at in range(0, len(payloads), BULK):
        yield payloads[at : at + BULK]


def answer(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


async def _enqueue(contender: Contender, url: str, count: int, *, bulk: bool) -> None:
    payloads = [payload(number) for number in range(count)]
    async with contender.sender(url) as sender:
        began = time.monotonic_ns()
        if bulk:
            await sender.many(payloads)
        else:
            for text in payloads:
                await sender.one(text)
        answer(seconds=(time.monotonic_ns() - began) / 1e9)


async def _sample(contender: Contender, url: str, samples: int, words: Words) -> None:
    """Enqueue one job at a time into an idle system; answer with the times just before and just after each call.

    Sample 0 warms up both sides and is not counted. The next job waits until the one before has been picked up.
    """
    sent: list[int] = []
    committed: list[int] = []
    dice = random.Random(20)
    async with contender.sender(url) as sender:
        for sample in range(samples):
            await asyncio.sleep(dice.uniform(*GAPS))
            text = payload(sample)
            sent.append(time.monotonic_ns())
            await sender.one(text)
            committed.append(time.monotonic_ns())
            overdue = time.monotonic() + OVERDUE
            while not words.started(sample):
                if time.monotonic() > overdue:
                    raise SystemExit(f"sample {sample} was not picked up within {OVERDUE} s")
                await asyncio.sleep(0.010)
    answer(sent=sent, committed=committed)


async def _work(contender: Contender, url: str, on_job: OnJob) -> None:
    gate = Pipe()
    await gate.open()
    await contender.work(url, on_job, gate)
    used = resource.getrusage(resource.RUSAGE_SELF)
    answer(cpu_seconds=used.ru_utime + used.ru_stime)


async def _audit(contender: Contender, url: str) -> None:
    waiting, recorded = await contender.audit(url)
    answer(waiting=waiting, recorded=recorded)


def versions(packages: tuple[str, ...]) -> None:
    found = {"python": sys.version.split()[0]}
    for package in (*packages, "uvloop"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    answer(**found)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop where it is installed, else on asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(coroutine)
    else:
        uvloop.run(coroutine)


def main(contender: Contender) -> None:
    """The command line of a contender script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["versions", "prepare", "bulk", "single", "work", "sample", "audit"])
    parser.add_argument("--url", default="")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--words", type=Path)
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
        case "work":
            words = Words(asked.words, asked.samples)
            run(_work(contender, asked.url, words.note if asked.samples else words.count))
        case "sample":
            run(_sample(contender, asked.url, asked.samples, Words(asked.words, asked.samples)))
        case _:
            run(_audit(contender, asked.url))
