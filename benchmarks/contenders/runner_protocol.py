"""Protocol of the scripts for `executions`: products that run work of several steps in order.

The shape is one step, one step, two in parallel, two in parallel: six no-op steps, each group started when the
previous
one has ended. A script provides a `Runner` and calls `main`. Standard library only.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from benchmarks.contenders import contender_protocol
from benchmarks.contenders.start_counters import Starts

STEPS = 6
SEQUENTIAL_STEPS, PARALLEL_STEPS = 10, 5
WORKFLOW_STEPS = SEQUENTIAL_STEPS + PARALLEL_STEPS + 1
"""Of `workflows`: steps in a loop, parallel steps, and the step of a child workflow."""
TIMEOUT_SECONDS = 20.0

OnStep = Callable[[], None]


class Submitter(Protocol):
    """Starts executions over open connections."""

    async def submit(self) -> Any:
        """Start one execution, as durable on return as the product makes it."""

    async def ended(self, execution: Any) -> None:
        """Wait until an execution is known to have ended well, as a user of the product would wait."""


class Runner(Protocol):
    """Interface of a script."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages whose versions are reported."""

    async def prepare(self, url: str) -> None:
        """Create the product's tables or keys in an empty store."""

    def submitter(self, url: str) -> AbstractAsyncContextManager[Submitter]:
        """Open a submitter."""

    async def work(self, url: str, starts: Starts, gate: contender_protocol.Gate) -> None:
        """Run a worker: pass the gate, count the start of each step, until the stop command."""

    async def audit(self, url: str) -> tuple[int, int]:
        """Return executions that have not ended, and executions that have ended with every step recorded."""

    async def handovers(self, url: str) -> list[float]:
        """Return milliseconds from the end of each group to the starts in the next, if the product records them."""


async def _submit(runner: Runner, url: str, count: int) -> None:
    async with runner.submitter(url) as submitter:
        began = time.monotonic_ns()
        for _ in range(count):
            await submitter.submit()
        contender_protocol.print_answer(seconds=(time.monotonic_ns() - began) / 1e9)


async def _sample(runner: Runner, url: str, samples: int) -> None:
    """Time one execution at a time on an idle system: from just before the submission until its end is known here.

    The first one warms up both sides and is not counted.
    """
    taken: list[float] = []
    dice = random.Random(20)
    async with runner.submitter(url) as submitter:
        for _ in range(samples + 1):
            await asyncio.sleep(dice.uniform(*contender_protocol.GAPS))
            began = time.monotonic_ns()
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await submitter.ended(await submitter.submit())
            taken.append((time.monotonic_ns() - began) / 1e6)
    contender_protocol.print_answer(milliseconds=taken[1:])


async def _work(runner: Runner, url: str, folder: Path) -> None:
    gate = contender_protocol.StandardStreamGate()
    await gate.open()
    await runner.work(url, Starts(folder), gate)


async def _audit(runner: Runner, url: str) -> None:
    open_, ended = await runner.audit(url)
    contender_protocol.print_answer(open=open_, ended=ended)


async def _handovers(runner: Runner, url: str) -> None:
    contender_protocol.print_answer(milliseconds=await runner.handovers(url))


def main(runner: Runner) -> None:
    """Command line of a script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["versions", "prepare", "submit", "work", "sample", "audit", "handovers"])
    parser.add_argument("--url", default="")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    match asked.verb:
        case "versions":
            contender_protocol.versions(runner.packages)
        case "prepare":
            contender_protocol.run(runner.prepare(asked.url))
        case "submit":
            contender_protocol.run(_submit(runner, asked.url, asked.count))
        case "work":
            contender_protocol.run(_work(runner, asked.url, asked.folder))
        case "sample":
            contender_protocol.run(_sample(runner, asked.url, asked.count))
        case "audit":
            contender_protocol.run(_audit(runner, asked.url))
        case _:
            contender_protocol.run(_handovers(runner, asked.url))
