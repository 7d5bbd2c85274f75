"""The course: what `stage` is for queues, for products that run work of several steps in order.

The shape is one step, one step, two at a time, two at a time: six no-op steps, the later ones begun when the earlier
ones have ended. A script offers an object of the shape `Runner` and calls `main`. Standard library only.
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

from benchmarks.contenders import stage
from benchmarks.contenders.tally import Starts

STEPS = 6
OVERDUE = 20.0

OnStep = Callable[[], None]


class Submitter(Protocol):
    """What starts executions, over connections that are open already."""

    async def submit(self) -> Any:
        """Start one execution, as safe on return as the product makes it."""

    async def ended(self, execution: Any) -> None:
        """Wait until an execution is known to have ended well, as a user of the product would wait."""


class Runner(Protocol):
    """What each script offers."""

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages whose versions matter."""

    async def prepare(self, url: str) -> None:
        """Make what the product keeps in an empty store."""

    def submitter(self, url: str) -> AbstractAsyncContextManager[Submitter]:
        """Open what submits."""

    async def work(self, url: str, starts: Starts, gate: stage.Gate) -> None:
        """Be a worker: pass the gate, count the start of each step, until the word to stop."""

    async def audit(self, url: str) -> tuple[int, int]:
        """Executions that have not ended, and executions that have ended with every step on record."""

    async def handovers(self, url: str) -> list[float]:
        """Milliseconds from the end of each group to the starts in the next, if the product's records tell."""


async def _submit(runner: Runner, url: str, count: int) -> None:
    async with runner.submitter(url) as submitter:
        began = time.monotonic_ns()
        for _ in range(count):
            await submitter.submit()
        stage.answer(seconds=(time.monotonic_ns() - began) / 1e9)


async def _sample(runner: Runner, url: str, samples: int) -> None:
    """One execution at a time on an idle system: just before it is submitted until its end is known here.

    The first warms up both sides and is not counted.
    """
    taken: list[float] = []
    dice = random.Random(20)
    async with runner.submitter(url) as submitter:
        for _ in range(samples + 1):
            await asyncio.sleep(dice.uniform(*stage.GAPS))
            began = time.monotonic_ns()
            async with asyncio.timeout(OVERDUE):
                await submitter.ended(await submitter.submit())
            taken.append((time.monotonic_ns() - began) / 1e6)
    stage.answer(milliseconds=taken[1:])


async def _work(runner: Runner, url: str, folder: Path) -> None:
    gate = stage.Pipe()
    await gate.open()
    await runner.work(url, Starts(folder), gate)


async def _audit(runner: Runner, url: str) -> None:
    open_, ended = await runner.audit(url)
    stage.answer(open=open_, ended=ended)


async def _handovers(runner: Runner, url: str) -> None:
    stage.answer(milliseconds=await runner.handovers(url))


def main(runner: Runner) -> None:
    """The command line of a script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["versions", "prepare", "submit", "work", "sample", "audit", "handovers"])
    parser.add_argument("--url", default="")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    match asked.verb:
        case "versions":
            stage.versions(runner.packages)
        case "prepare":
            stage.run(runner.prepare(asked.url))
        case "submit":
            stage.run(_submit(runner, asked.url, asked.count))
        case "work":
            stage.run(_work(runner, asked.url, asked.folder))
        case "sample":
            stage.run(_sample(runner, asked.url, asked.count))
        case "audit":
            stage.run(_audit(runner, asked.url))
        case _:
            stage.run(_handovers(runner, asked.url))
