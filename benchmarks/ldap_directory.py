"""The LDAP connector on a real slapd: export and full import beside a plain ldap3 script, delta imports, memory.

The script sends the same entries in a loop and reads the same attributes in pages of the same size, by the same
library. It stores what it reads in one flat table of a separate database, page by page with durable commits, and
confirms nothing of what it wrote. Reading alone is compared too: nothing is stored by either.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
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
    "read": "LDAP read, nothing stored",
    "import new": "LDAP full import, all new",
    "import unchanged": "LDAP full import, nothing changed",
    "confirming import": "LDAP confirming import",
}
"""Stages with a rate in entries a second."""
COUNTERPARTS = {"confirming import": "import new"}
"""Stages of Tenuto whose counterpart in the script has another name: the confirming import stores all entries too."""
VERBS = {"tenuto": ("export", "confirm", "import"), "script": ("measure",)}
OWN_DATABASE = ("import",)
"""Verbs with an empty database, as the import of the script has: not one with the people and their exports in it."""


async def ldap(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Return rates of export and imports, CPU time per entry, delta imports and memory by number of entries."""
    count, few = size.of(100_000, 2_000), size.of(10_000, 500)
    # The baseline of memory has many pages of 2,500: one is written, the next one is complete and a third one is read.
    some = size.of(20_000, 1_000)
    changed = size.of(500, 100)
    rates = {stage: Case(f"{name}, {count:,}", "entries/s") for stage, name in STAGES.items()}
    used = {stage: Case(f"{name}: CPU of the process per entry", "µs") for stage, name in STAGES.items()}
    stored = [stage for stage in STAGES if stage not in ("export", "read")]
    served = {stage: Case(f"{STAGES[stage]}: CPU of the database per entry", "µs") for stage in stored}
    delta = {each: Case(f"LDAP delta import of {changed:,} among {each:,}", "s") for each in (few, count)}
    memory = {each: Case(f"memory grown by the LDAP import of {each:,}", "MB") for each in (some, count)}
    delta[count].baseline, memory[count].baseline = delta[few], memory[some]

    def add_growth(entries: int, answer: dict[str, Any]) -> None:
        if entries in delta:
            runs = [each["seconds"] for name, each in answer["stages"].items() if name.startswith("delta import")]
            delta[entries].add("tenuto", statistics.median(runs))
        if entries in memory:
            memory[entries].add("tenuto", max(answer["grown"]["import"], 1.0))

    async def run(contender: Contender) -> None:
        answer = await _measure(contender, count, changed)
        for stage in STAGES:
            found = answer["stages"].get(stage) or answer["stages"].get(COUNTERPARTS.get(stage, ""))
            if found is not None:
                rates[stage].add(contender.name, count / found["seconds"])
                used[stage].add(contender.name, found["client"] / count * 1e6)
                if stage in served:
                    served[stage].add(contender.name, found["server"] / count * 1e6)
        if contender.name == "tenuto":
            add_growth(count, answer)

    await alternate(contenders, size.runs, run, f"LDAP runs of {count:,} entries")
    for contender in contenders:
        if contender.name == "tenuto":
            for entries in (few, some):
                progress(f"delta import or memory with {entries:,} entries")
                add_growth(entries, await _measure(contender, entries, changed))
    return [*rates.values(), *used.values(), *served.values(), *delta.values(), *memory.values()]


async def _measure(contender: Contender, count: int, changed: int) -> dict[str, Any]:
    """Return stages and memory of one contender on fresh databases and a fresh directory."""
    with (
        tempfile.TemporaryDirectory(prefix="tenuto-bench-ldap-", dir="/var/tmp") as folder,
        slapd_server() as directory,
    ):
        Path(folder).chmod(0o755)
        found: dict[str, Any] = {"stages": {}, "grown": {}}
        async with AsyncExitStack() as databases_in_use:
            url = await databases_in_use.enter_async_context(contender.prepared_database())
            for verb in VERBS[contender.name]:
                if verb in OWN_DATABASE:
                    other = contender.prepared_database(f"bench_{contender.name}_{verb}")
                    url = await databases_in_use.enter_async_context(other)
                await databases.settle(url)
                arguments = ["--url", url, "--directory", directory, "--count", str(count)]
                arguments += ["--changed", str(changed), "--folder", folder]
                answer = await contender.run_command(verb, *arguments, limit=LIMIT_SECONDS)
                found["stages"] |= answer["stages"]
                found["grown"][verb] = answer.get("grown", 0.0)
        return found
