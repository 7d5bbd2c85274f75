"""CPU use of other processes during a measurement, reported with the figures."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import databases

TICKS = os.sysconf("SC_CLK_TCK")
MAX_QUIET_CORES = 0.2


@dataclass(frozen=True)
class Load:
    """Average number of cores used by other processes, and of cores that the host gave to other guests."""

    others: float
    stolen: float

    @property
    def is_quotable(self) -> bool:
        return self.others + self.stolen <= MAX_QUIET_CORES


class LoadMonitor:
    """CPU time of the machine since a moment, minus that of this benchmark: harness, contenders, server."""

    def __init__(self, postmaster: int) -> None:
        self._postmaster = postmaster
        self._began = time.monotonic()
        self._before = self._now()

    @classmethod
    async def start(cls, url: str) -> LoadMonitor:
        return cls(await find_postmaster(url))

    def load(self) -> Load:
        busy, stolen, ours = (now - then for now, then in zip(self._now(), self._before, strict=True))
        passed = time.monotonic() - self._began
        return Load(round(max(0.0, busy - ours) / passed, 2), round(stolen / passed, 2))

    def _now(self) -> tuple[float, float, float]:
        user, nice, system, _idle, _wait, interrupts, soft, stolen = (
            int(field) / TICKS for field in Path("/proc/stat").read_text().split()[1:9]
        )
        return (
            user + nice + system + interrupts + soft,
            stolen,
            sum(os.times()[:4]) + server_cpu_seconds(self._postmaster),
        )


async def find_postmaster(url: str) -> int:
    """Return the process id of the server's first process."""
    async with databases.connected(url) as connection:
        backend = await connection.fetchval("SELECT pg_backend_pid()")
        return int(_stat(Path(f"/proc/{backend}"))[1])


def server_cpu_seconds(postmaster: int) -> float:
    """Return the CPU time of the server: postmaster, ended backends and live backends."""
    used = sum(map(int, _stat(Path(f"/proc/{postmaster}"))[11:15]))
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _stat(folder)
        if fields and int(fields[1]) == postmaster:
            used += sum(map(int, fields[11:13]))
    return used / TICKS


def _stat(folder: Path) -> list[str]:
    """Return the fields of a process after its name (state, parent, …); empty if it has ended."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
