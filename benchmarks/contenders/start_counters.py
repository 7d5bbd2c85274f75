"""Counters that a worker leaves for the harness: numbers in a small file that both map into memory.

Times are `time.monotonic_ns()`, which on Linux is one clock for all processes. Each worker has its own file, so no
two
processes write the same word. Standard library only.
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

WORD = 8


class Tally(NamedTuple):
    """Number of started handlers, and when the first and the last of them started."""

    starts: int
    first_ns: int
    last_ns: int


class Interval(NamedTuple):
    """When a handler under the limit of a scope began and ended."""

    scope: int
    began_ns: int
    ended_ns: int


def count_most_active(intervals: Iterable[Interval]) -> int:
    """Return how many handlers of one scope ran at the same time at most, over all scopes."""
    changes = sorted(
        change for each in intervals for change in ((each.scope, each.began_ns, 1), (each.scope, each.ended_ns, -1))
    )
    most, active = 0, Counter[int]()
    for scope, _, change in changes:
        active[scope] += change
        most = max(most, active[scope])
    return most


class CounterFile:
    """A mapped file of 64-bit words: three of the tally, then the start time of each sample."""

    def __init__(self, path: Path, samples: int = 0) -> None:
        self.path = path
        with path.open("a+b") as file:
            file.truncate((3 + samples) * WORD)
            self._view = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")

    def count(self, _payload: str | bytes) -> None:
        """Count one start; the handler of the drain. Only the worker that owns the file calls this."""
        view, now = self._view, time.monotonic_ns()
        if not view[0]:
            view[1] = now
        view[2] = now
        view[0] += 1

    def record_sample(self, payload: str | bytes) -> None:
        """Record the start of the sample named in the payload; the handler of the latency test. Reads the clock
        first.
        """
        now = time.monotonic_ns()
        sample: int = json.loads(payload)["sample"]
        if not self._view[3 + sample]:
            self._view[3 + sample] = now
        self._view[0] += 1

    def record_interval(self, place: int, scope: int, began_ns: int) -> None:
        """Record that the handler with this place among the handlers of this file, which began then, ends now. The file
        has three words per handler.
        """
        first = 3 + 3 * place
        self._view[first : first + 3] = memoryview(array("Q", (scope, began_ns, time.monotonic_ns())))

    def intervals(self) -> list[Interval]:
        """Return the recorded intervals of all handlers."""
        words = self._view[3:].tolist()
        return [Interval(*words[at : at + 3]) for at in range(0, len(words), 3) if words[at + 1]]

    def tally(self) -> Tally:
        return Tally(self._view[0], self._view[1], self._view[2])

    def started(self, sample: int) -> int:
        """Return when the handler of a sample started; 0 if it has not."""
        return self._view[3 + sample]


class Starts:
    """Starts counted in a directory by all threads and child processes of a worker; each process has a file there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._process = 0
        self._words: CounterFile | None = None

    def count(self) -> None:
        """Count one start."""
        with self._lock:
            if self._words is None or self._process != os.getpid():
                self._process = os.getpid()
                self._words = CounterFile(self.folder / str(self._process))
            self._words.count("")

    def tally(self) -> Tally:
        """Return the total."""
        found = [tally for path in self.folder.iterdir() if (tally := CounterFile(path).tally()).starts]
        starts, firsts, lasts = zip(*found, strict=True) if found else ((0,), (0,), (0,))
        return Tally(sum(starts), min(firsts), max(lasts))


def make_payload(number: int) -> str:
    """Return the input of one job: about 200 bytes of JSON, different for each job."""
    body = {"sample": number, "table": "people", "slice": f"part-{number:08d}", "note": "", "tags": ["a", "b"]}
    body["note"] = "x" * (200 - len(json.dumps(body)))
    return json.dumps(body)
