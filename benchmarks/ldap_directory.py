"""The LDAP connector on a real slapd: export and full import beside a plain ldap3 script, delta imports, memory.

The script sends the same entries in a loop and reads the same attributes in pages of the same size, by the same
library. It keeps nothing of what it reads, and confirms nothing of what it wrote.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import databases
from benchmarks.contender import Contender
from benchmarks.measure import Case, alternate, progress
from benchmarks.queue_benchmarks import Size
from benchmarks.slapd_server import slapd_server

LDAP = {"tenuto": "benchmarks.contenders.tenuto_ldap", "script": "benchmarks.contenders.script_ldap"}
LIMIT_SECONDS = 1800.0
STAGES = {
    "export": "LDAP export of new entries",
    "import new": "LDAP full import, all new",
    "import unchanged": "LDAP full import, nothing changed",
    "confirming import": "LDAP confirming import",
}
"""Stages with a rate in entries a second. The script has one read, the counterpart of every import."""
VERBS = {"tenuto": ("export", "import", "confirm"), "script": ("measure",)}


async def ldap(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Return rates of export and imports, CPU time per entry, delta imports and memory by number of entries."""
    count, few = size.of(100_000, 2_000), size.of(10_000, 500)
    changed = size.of(500, 100)
    rates = {stage: Case(f"{name}, {count:,}", "entries/s") for stage, name in STAGES.items()}
    used = {stage: Case(f"{name}: CPU of the process per entry", "µs") for stage, name in STAGES.items()}
    delta = {each: Case(f"LDAP delta import of {changed:,} among {each:,}", "s") for each in (few, count)}
    memory = {each: Case(f"memory grown by the LDAP import of {each:,}", "MB") for each in (few, count)}
    delta[count].baseline, memory[count].baseline = delta[few], memory[few]

    def add_growth(entries: int, answer: dict[str, Any]) -> None:
        delta[entries].add("tenuto", answer["stages"]["delta import"]["seconds"])
        memory[entries].add("tenuto", max(answer["grown"]["import"], 1.0))

    async def run(contender: Contender) -> None:
        answer = await _measure(contender, count, changed)
        for stage in STAGES:
            found = answer["stages"].get(stage) or answer["stages"].get("read")
            if found is not None:
                rates[stage].add(contender.name, count / found["seconds"])
                used[stage].add(contender.name, found["client"] / count * 1e6)
        if contender.name == "tenuto":
            add_growth(count, answer)

    await alternate(contenders, size.runs, run, f"LDAP runs of {count:,} entries")
    for contender in contenders:
        if contender.name == "tenuto":
            progress(f"delta import and memory with {few:,} entries")
            add_growth(few, await _measure(contender, few, changed))
    return [*rates.values(), *used.values(), *delta.values(), *memory.values()]


async def _measure(contender: Contender, count: int, changed: int) -> dict[str, Any]:
    """Return stages and memory of one contender on a fresh database and a fresh directory."""
    with (
        tempfile.TemporaryDirectory(prefix="tenuto-bench-ldap-", dir="/var/tmp") as folder,
        slapd_server() as directory,
    ):
        Path(folder).chmod(0o755)
        async with contender.prepared_database() as url:
            await databases.settle(url)
            arguments = ["--url", url, "--directory", directory, "--count", str(count)]
            arguments += ["--changed", str(changed), "--folder", folder]
            found: dict[str, Any] = {"stages": {}, "grown": {}}
            for verb in VERBS[contender.name]:
                answer = await contender.run_command(verb, *arguments, limit=LIMIT_SECONDS)
                found["stages"] |= answer["stages"]
                found["grown"][verb] = answer.get("grown", 0.0)
            return found
