"""Protocol of the scripts for `compare`: the same commands for every product, each run by the command its users
start.

A script provides a `Peer` and calls `main`. The harness starts it with a command; the answer is one line of JSON on
stdout. `work` becomes the product's own worker, in the same process, until a signal ends it. The application that the
product imports finds the store (`BENCH_URL`) in the environment, as the script does. Standard library only, and
uvloop.
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

from benchmarks.contenders import contender_protocol
from benchmarks.contenders.ledger import LEDGER, NAP, Ledger
from benchmarks.contenders.start_counters import make_payload

URL, CONTENDER, FOLDER = "BENCH_URL", "BENCH_CONTENDER", "BENCH_FOLDER"
TIMEOUT_SECONDS = 30.0


class Peer(Protocol):
    """Interface of a script."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages whose versions are reported."""

    async def prepare(self, url: str) -> None:
        """Create the product's tables or keys in an empty store."""

    def sender(self, url: str) -> AbstractAsyncContextManager[contender_protocol.Sender]:
        """Open a sender; `many` is used only for a product with bulk enqueue."""

    def command(self) -> list[str]:
        """Return the arguments after `python` that start its worker. `BENCH_URL` is the store."""

    async def remembered(self, url: str) -> int:
        """Return the jobs in the store that are not done: waiting, taken, or to be retried."""


def is_durable() -> bool:
    """Return whether this entry uses all settings that its documentation has for keeping jobs."""
    return os.environ.get(CONTENDER, "").endswith("-durable")


def module_name(spec: ModuleSpec | None) -> str:
    """Return the name under which a product may import the running script."""
    assert spec is not None
    return spec.name


async def _enqueue(peer: Peer, url: str, numbers: range, *, bulk: bool) -> None:
    payloads = [make_payload(number) for number in numbers]
    async with peer.sender(url) as sender:
        began = time.monotonic_ns()
        if bulk:
            await sender.many(payloads)
        else:
            for text in payloads:
                await sender.one(text)
        taken = time.monotonic_ns() - began
    contender_protocol.print_answer(seconds=taken / 1e9, remembered=await peer.remembered(url))


async def _sample(peer: Peer, url: str, numbers: range, ledger: Ledger) -> None:
    """Enqueue one job at a time into an idle system; the next one waits until the last has started. The first warms
    up.
    """
    taken: list[float] = []
    dice = random.Random(20)
    async with peer.sender(url) as sender:
        for number in numbers:
            await asyncio.sleep(dice.uniform(*contender_protocol.GAPS))
            text = make_payload(number)
            sent = time.monotonic_ns()
            await sender.one(text)
            overdue = time.monotonic() + TIMEOUT_SECONDS
            while not (started := ledger.first_start(number)):
                if time.monotonic() > overdue:
                    raise SystemExit(f"sample {number} did not start within {TIMEOUT_SECONDS:.0f} s")
                await asyncio.sleep(0.005)
            taken.append((started - sent) / 1e6)
    contender_protocol.print_answer(milliseconds=taken[1:])


async def _remembered(peer: Peer, url: str) -> None:
    contender_protocol.print_answer(remembered=await peer.remembered(url))


def _work(peer: Peer, asked: argparse.Namespace) -> None:
    os.environ.update({LEDGER: str(asked.ledger), NAP: str(asked.nap), FOLDER: str(asked.folder)})
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # stdout is for answers; banners are discarded
    os.execv(sys.executable, [sys.executable, "-W", "ignore", *peer.command()])


def main(peer: Peer) -> None:
    """Command line of a script."""
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
            contender_protocol.versions(peer.packages)
        case "prepare":
            contender_protocol.run(peer.prepare(url))
        case "bulk":
            contender_protocol.run(_enqueue(peer, url, numbers, bulk=True))
        case "single":
            contender_protocol.run(_enqueue(peer, url, numbers, bulk=False))
        case "work":
            _work(peer, asked)
        case "sample":
            os.environ.update({LEDGER: str(asked.ledger), NAP: "0"})
            contender_protocol.run(_sample(peer, url, numbers, Ledger(asked.ledger)))
        case _:
            contender_protocol.run(_remembered(peer, url))
