"""The arena: the same verbs for every product of `compare`, each run by the command its own users start it with.

A script offers an object of the shape `Peer` and calls `main`. The harness starts it with a verb; the answer is one
line of JSON on stdout. `work` becomes the product's own worker, in the same process, until it is ended by a signal.
What the product imports as its application finds the store (`BENCH_URL`) in the environment, as the script does.
Standard library only, and uvloop.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from contextlib import AbstractAsyncContextManager
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Protocol

from benchmarks.contenders import stage
from benchmarks.contenders.ledger import LEDGER, NAP, Ledger
from benchmarks.contenders.tally import payload

URL, CONTENDER, FOLDER = "BENCH_URL", "BENCH_CONTENDER", "BENCH_FOLDER"
OVERDUE = 30.0


class Peer(Protocol):
    """What each script offers."""

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages whose versions matter."""

    async def prepare(self, url: str) -> None:
        """Make what the product keeps in an empty store."""

    def sender(self, url: str) -> AbstractAsyncContextManager[stage.Sender]:
        """Open what enqueues; `many` is asked only of a product that has something for it."""

    def command(self) -> list[str]:
        """The arguments after `python` that start its worker. `BENCH_URL` says where the store is."""

    async def remembered(self, url: str) -> int:
        """Jobs the store still has and does not hold for done: waiting, taken, or to be tried again."""


def durable() -> bool:
    """Whether this contender stands here with all that its documentation has for keeping jobs."""
    return os.environ.get(CONTENDER, "").endswith("-durable")


def module(spec: ModuleSpec | None) -> str:
    """The name under which a product may import the script that is running."""
    assert spec is not None
    return spec.name


async def _enqueue(peer: Peer, url: str, numbers: range, *, bulk: bool) -> None:
    payloads = [payload(number) for number in numbers]
    async with peer.sender(url) as sender:
        began = time.monotonic_ns()
        if bulk:
            await sender.many(payloads)
        else:
            for text in payloads:
                await sender.one(text)
        taken = time.monotonic_ns() - began
    stage.answer(seconds=taken / 1e9, remembered=await peer.remembered(url))


async def _sample(peer: Peer, url: str, numbers: range, ledger: Ledger) -> None:
    """One job at a time into an idle system; the next one waits until the last has started. The first warms up."""
    taken: list[float] = []
    dice = random.Random(20)
    async with peer.sender(url) as sender:
        for number in numbers:
            await asyncio.sleep(dice.uniform(*stage.GAPS))
            text = payload(number)
            sent = time.monotonic_ns()
            await sender.one(text)
            overdue = time.monotonic() + OVERDUE
            while not (started := ledger.first_start(number)):
                if time.monotonic() > overdue:
                    raise SystemExit(f"sample {number} was not picked up within {OVERDUE:.0f} s")
                await asyncio.sleep(0.005)
            taken.append((started - sent) / 1e6)
    stage.answer(milliseconds=taken[1:])


async def _remembered(peer: Peer, url: str) -> None:
    stage.answer(remembered=await peer.remembered(url))


def _work(peer: Peer, asked: argparse.Namespace) -> None:
    os.environ.update({LEDGER: str(asked.ledger), NAP: str(asked.nap), FOLDER: str(asked.folder)})
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # stdout is for answers; banners are for nobody
    os.execv(sys.executable, [sys.executable, "-W", "ignore", *peer.command()])


def main(peer: Peer) -> None:
    """The command line of a script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["versions", "prepare", "bulk", "single", "work", "sample", "remembered"])
    parser.add_argument("--begin", type=int, default=0)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--ledger", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--nap", type=float, default=0.0)
    asked = parser.parse_args()
    url, numbers = os.environ.get(URL, ""), range(asked.begin, asked.begin + asked.count)
    match asked.verb:
        case "versions":
            stage.versions(peer.packages)
        case "prepare":
            stage.run(peer.prepare(url))
        case "bulk":
            stage.run(_enqueue(peer, url, numbers, bulk=True))
        case "single":
            stage.run(_enqueue(peer, url, numbers, bulk=False))
        case "work":
            _work(peer, asked)
        case "sample":
            os.environ.update({LEDGER: str(asked.ledger), NAP: "0"})
            stage.run(_sample(peer, url, numbers, Ledger(asked.ledger)))
        case _:
            stage.run(_remembered(peer, url))
