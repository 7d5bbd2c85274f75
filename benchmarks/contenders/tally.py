"""What a worker leaves behind for the harness to read: numbers in a small file that both map into memory.

Times are `time.monotonic_ns()`, which on Linux is one clock for all processes. Each worker has a file of its own, so no
two processes write the same word. Must stay free of imports beyond the standard library.
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

WORD = 8


class Tally(NamedTuple):
    """How many handlers started, and when the first and the last of them did."""

    starts: int
    first_ns: int
    last_ns: int


class Words:
    """A file of 64-bit words, shared by mapping: three of the tally, then the start time of each sample."""

    def __init__(self, path: Path, samples: int = 0) -> None:
        self.path = path
        with path.open("a+b") as file:
            file.truncate((3 + samples) * WORD)
            self._view = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")

    def count(self, _payload: str | bytes) -> None:
        """The drain's handler: one more start. Only the worker that owns the file calls this."""
        view, now = self._view, time.monotonic_ns()
        if not view[0]:
            view[1] = now
        view[2] = now
        view[0] += 1

    def note(self, payload: str | bytes) -> None:
        """The latency handler: when the sample named in the payload started. The clock is read first."""
        now = time.monotonic_ns()
        sample: int = json.loads(payload)["sample"]
        if not self._view[3 + sample]:
            self._view[3 + sample] = now
        self._view[0] += 1

    def tally(self) -> Tally:
        return Tally(self._view[0], self._view[1], self._view[2])

    def started(self, sample: int) -> int:
        """When a sample's handler started, or 0 as long as it has not."""
        return self._view[3 + sample]


class Starts:
    """Starts counted in a folder, by all threads and all child processes of a worker: each process has a file there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._process = 0
        self._words: Words | None = None

    def count(self) -> None:
        """One more start."""
        with self._lock:
            if self._words is None or self._process != os.getpid():
                self._process = os.getpid()
                self._words = Words(self.folder / str(self._process))
            self._words.count("")

    def tally(self) -> Tally:
        """All of them together."""
        found = [tally for path in self.folder.iterdir() if (tally := Words(path).tally()).starts]
        starts, firsts, lasts = zip(*found, strict=True) if found else ((0,), (0,), (0,))
        return Tally(sum(starts), min(firsts), max(lasts))


def payload(number: int) -> str:
    """The input of one job: about 200 bytes of JSON, different for each job."""
    body = {"sample": number, "table": "people", "slice": f"part-{number:08d}", "note": "", "tags": ["a", "b"]}
    body["note"] = "x" * (200 - len(json.dumps(body)))
    return json.dumps(body)
