"""The ledger: for every job of a run, when it first started, how often it started, and how often it came to its end.

A file mapped into memory by the harness and by every process and thread of a worker; what was written stays when the
writer is killed. Each job has words of its own, so nobody needs a lock. Standard library only.
"""

from __future__ import annotations

import asyncio
import functools
import json
import mmap
import os
import time
from pathlib import Path

LEDGER, NAP = "BENCH_LEDGER", "BENCH_NAP"
WORD = 8
FIRST, STARTS, ENDS, WORDS = 0, 1, 2, 3


class Ledger:
    """Three words a job."""

    def __init__(self, path: Path, jobs: int = 0) -> None:
        self.path = path
        with path.open("a+b") as file:
            if jobs:
                file.truncate(jobs * WORDS * WORD)
            self._words = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
        self.jobs = len(self._words) // WORDS

    def started(self, job: int) -> None:
        now, at = time.monotonic_ns(), job * WORDS
        if not self._words[at + FIRST]:
            self._words[at + FIRST] = now
        self._words[at + STARTS] += 1

    def ended(self, job: int) -> None:
        self._words[job * WORDS + ENDS] += 1

    def first_start(self, job: int) -> int:
        """When a job started first; 0 as long as it has not."""
        return self._words[job * WORDS + FIRST]

    def first_starts(self) -> list[int]:
        """When each job started first; 0 for those that have not."""
        return list(self._words[FIRST::WORDS])

    def starts(self) -> list[int]:
        return list(self._words[STARTS::WORDS])

    def ends(self) -> list[int]:
        return list(self._words[ENDS::WORDS])


@functools.cache
def _mine() -> tuple[Ledger, float]:
    """The ledger this worker was told to write in, and how long its jobs take."""
    return Ledger(Path(os.environ[LEDGER])), float(os.environ[NAP])


def _moment(nap: float, number: int) -> float:
    """From half to one and a half of it, so that those begun together do not end together."""
    return nap * (0.5 + number * 37 % 101 / 100)


def job(payload: str | bytes) -> None:
    """The job of every contender with plain functions: counted, for a moment busy with nothing, counted."""
    ledger, nap = _mine()
    number: int = json.loads(payload)["sample"]
    ledger.started(number)
    if nap:
        time.sleep(_moment(nap, number))
    ledger.ended(number)


async def async_job(payload: str | bytes) -> None:
    """The same for contenders with coroutines."""
    ledger, nap = _mine()
    number: int = json.loads(payload)["sample"]
    ledger.started(number)
    if nap:
        await asyncio.sleep(_moment(nap, number))
    ledger.ended(number)
