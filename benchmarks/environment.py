"""Environment of a measurement: machine, versions, settings. Printed with every result."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import databases
from benchmarks.contender import Contender
from benchmarks.contenders import contender_protocol
from benchmarks.contenders.start_counters import make_payload
from benchmarks.queue_benchmarks import Size


async def describe(url: str, contenders: Sequence[Contender], size: Size) -> dict[str, object]:
    """Return everything needed to judge or repeat a run."""
    settings = await databases.settings(url)
    return {
        "date": datetime.now(UTC).date().isoformat(),
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


def _first(file: str, field: str) -> str:
    for line in Path(file).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return "unknown"
