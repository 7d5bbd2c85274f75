"""Ledger: for every job of a run, its first start, the number of its starts, and the number of its ends.

A file mapped into memory by the harness and by every process and thread of a worker; it survives a kill of the
writer.
Each job has its own 64-bit words, so no lock is needed. Standard library only.
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
    """Three words per job."""

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
        """Return when a job started first; 0 if it has not."""
        return self._words[job * WORDS + FIRST]

    def first_starts(self) -> list[int]:
        """Return when each job started first; 0 for those that have not."""
        return list(self._words[FIRST::WORDS])

    def starts(self) -> list[int]:
        return list(self._words[STARTS::WORDS])

    def ends(self) -> list[int]:
        return list(self._words[ENDS::WORDS])


@functools.cache
def _own_ledger() -> tuple[Ledger, float]:
    """Return the ledger of this worker and the duration of its jobs."""
    return Ledger(Path(os.environ[LEDGER])), float(os.environ[NAP])


def _duration(nap: float, number: int) -> float:
    """Return half to one and a half of it, so that jobs started together do not end together."""
    return nap * (0.5 + number * 37 % 101 / 100)


def job(payload: str | bytes) -> None:
    """The job of contenders with plain functions: record the start, sleep, record the end."""
    ledger, nap = _own_ledger()
    number: int = json.loads(payload)["sample"]
    ledger.started(number)
    if nap:
        time.sleep(_duration(nap, number))
    ledger.ended(number)


async def async_job(payload: str | bytes) -> None:
    """The same for contenders with coroutines."""
    ledger, nap = _own_ledger()
    number: int = json.loads(payload)["sample"]
    ledger.started(number)
    if nap:
        await asyncio.sleep(_duration(nap, number))
    ledger.ended(number)
