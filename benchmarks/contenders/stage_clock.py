"""Wall time of a stage, beside the CPU time of this process and of the database server.

On a machine that others use, CPU times say more than wall time.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


class StageClock:
    """Measures stages. ``backend`` is the process of any connection to the server."""

    def __init__(self, backend: int) -> None:
        self._postmaster = int(_stat(Path(f"/proc/{backend}"))[1])
        self.stages: dict[str, dict[str, float]] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a block; its figures are in ``stages`` afterwards."""
        began, client, server = time.monotonic(), time.process_time(), self._server_seconds()
        yield
        self.stages[name] = {
            "seconds": time.monotonic() - began,
            "client": time.process_time() - client,
            "server": self._server_seconds() - server,
        }

    def _server_seconds(self) -> float:
        """Return the CPU time of the server: postmaster, ended backends and live backends."""
        used = sum(map(int, _stat(Path(f"/proc/{self._postmaster}"))[11:15]))
        for folder in Path("/proc").glob("[0-9]*"):
            fields = _stat(folder)
            if fields and int(fields[1]) == self._postmaster:
                used += sum(map(int, fields[11:13]))
        return used / _TICKS


def peak_megabytes() -> float:
    """Return the largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _stat(folder: Path) -> list[str]:
    """Return the fields of a process after its name (state, parent, …); empty if it has ended."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
