"""Ends what a program has left behind when nobody watched over it: its guardian was killed, by hand or by the system.

Such processes are known by the attempt their environment speaks of, which children inherit. Only where ``/proc`` shows
it; one that has thrown its environment away is not found. Kills nothing that belongs to another attempt.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

MARKS = ("TENUTO_TASK_ID", "TENUTO_ATTEMPT", "TENUTO_FENCE")
_ROUNDS = 50
_PAUSE = 0.02


def end(environment: Mapping[str, str]) -> None:
    """Kill whatever runs with the marks of this environment, and what that starts meanwhile. Blocks for a moment."""
    marks = {f"{name}={environment[name]}".encode() for name in MARKS if name in environment}
    if len(marks) < len(MARKS):
        return
    for _ in range(_ROUNDS):
        strays = list(_with(marks))
        if not strays:
            return
        for pid in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE)


def _with(marks: set[bytes]) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # gone, or somebody else's
            continue
        if marks <= set(found):
            yield int(entry.name)
