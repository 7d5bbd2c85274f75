"""Environment of a measurement: machine, versions, settings. Printed with every result."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import databases
from benchmarks.contender import Contender
from benchmarks.contenders import contender_protocol
from benchmarks.contenders.start_counters import make_payload
from benchmarks.peers import ROOT
from benchmarks.queue_benchmarks import Size


async def describe(url: str, contenders: Sequence[Contender], size: Size) -> dict[str, object]:
    """Return everything needed to judge or repeat a run."""
    settings = await databases.settings(url)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "cores": len(os.sched_getaffinity(0)),
        "processor": _first("/proc/cpuinfo", "model name"),
        "memory": _first("/proc/meminfo", "MemTotal"),
        "system": platform.platform(),
        "postgresql": settings.pop("server_version"),
        "settings": settings,
        "connection": "unix socket" if "host=/" in url or "host=%2F" in url else "tcp",
        "versions": {contender.name: await contender.versions() for contender in contenders},
        "runs": size.runs,
        "quick": size.quick,
        "payload bytes": len(make_payload(0)),
        "bulk": contender_protocol.BULK_SIZE,
        "batch": contender_protocol.BATCH,
    }


def _commit() -> str:
    """Return the measured commit, with `-dirty` if the measured code or the benchmarks differ from it."""
    commit = _git("describe", "--always", "--abbrev=10")
    changed = _git("status", "--porcelain", "--", "src", "benchmarks", ":!benchmarks/results")
    return f"{commit}{'-dirty' if changed else ''}" if commit else "unknown"


def _git(*arguments: str) -> str:
    """Return the output of git, or an empty text outside of a repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _first(file: str, field: str) -> str:
    for line in Path(file).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return "unknown"
