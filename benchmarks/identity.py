"""Identity synchronisation: the runs of a nightly run on CSV files, beside the bare database and a usual script.

*raw* is `csv.reader`, COPY and a set-based diff. *floor* writes the rows that the run wrote, by one COPY per table in
one transaction: no reading, no deciding. *script* works row by row, with a commit per row, on a tenth of the people.
Memory is that of the worker process; a million people are measured only on request.
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

IDENTITY = {
    "tenuto": "benchmarks.contenders.tenuto_identity_runs",
    "raw": "benchmarks.contenders.raw_identity",
    "script": "benchmarks.contenders.script_identity",
}
LIMIT_SECONDS = 1800.0
SCRIPT_SHARE = 10
STAGES = {
    "import new": "import, all new",
    "import unchanged": "import, nothing changed",
    "import changed": "import, 1 % changed",
    "sync new": "full sync, all new, two targets",
    "sync unchanged": "full sync, nothing changed",
    "export": "export of new objects to a file",
    "confirming import": "confirming import",
}
"""Stages with a rate in people a second."""
TENUTO_VERBS = ("import", "sync", "export", "second-night")
MEMORY_STAGES = {"import": "the import of", "sync": "the first sync of", "export": "the export to files of"}
CPU_STAGES = ("import new", "import unchanged", "sync new", "sync unchanged", "export")


async def identity(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Return rates of the runs, CPU time per person, delta syncs and memory by number of people."""
    count, few = size.of(100_000, 3_000), size.of(10_000, 1_000)
    changed = count // 100
    rates = _RateCases(count)
    growth = {people: _GrowthCases(people, changed) for people in (few, count)}

    async def run(contender: Contender) -> None:
        people = count // SCRIPT_SHARE if contender.name == "script" else count
        answer = await _measure(contender, people, people // 100)
        rates.add(contender.name, people, answer)
        if contender.name == "tenuto":
            growth[count].add(answer)

    await alternate(contenders, size.runs, run, f"nightly runs of {count:,} people")
    tenuto = [contender for contender in contenders if contender.name == "tenuto"]
    for people in (few, *([1_000_000] if size.large else [])) if tenuto else ():
        progress(f"delta sync and memory with {people:,} people")
        growth.setdefault(people, _GrowthCases(people, changed))
        growth[people].add(await _measure(tenuto[0], people, changed, has_floor=False))
    by_size = [growth[people] for people in sorted(growth)]
    for each in by_size[1:]:
        each.compare(by_size[0])
    memory = [each.memory[part] for part in MEMORY_STAGES for each in by_size]
    return [*rates.all(), *(each.delta for each in by_size), *memory]


class _RateCases:
    """Rates of the stages, and the CPU time of worker and server per person."""

    def __init__(self, count: int) -> None:
        self._rates = {stage: Case(f"{name}, {count:,}", "people/s") for stage, name in STAGES.items()}
        self._rates["import changed"].baseline = self._rates["import unchanged"]
        self._staged = Case(f"exports staged by the full sync, {count:,} people", "exports/s")
        self._worker = {stage: Case(f"{STAGES[stage]}: CPU of the worker per person", "µs") for stage in CPU_STAGES}
        self._server = {stage: Case(f"{STAGES[stage]}: CPU of the server per person", "µs") for stage in CPU_STAGES}

    def add(self, name: str, people: int, answer: dict[str, Any]) -> None:
        stages = answer["stages"]
        for stage, case in self._rates.items():
            if stage in stages:
                case.add(name, people / stages[stage]["seconds"])
        for stage in (stage for stage in CPU_STAGES if stage in stages):
            self._worker[stage].add(name, stages[stage]["client"] / people * 1e6)
            self._server[stage].add(name, stages[stage]["server"] / people * 1e6)
        for stage, figures in answer["floors"].items():
            self._rates[stage].add("floor", people / figures["seconds"])
            self._server[stage].add("floor", figures["server"] / people * 1e6)
        if "read" in stages:
            self._rates["import unchanged"].add("csv.reader", people / stages["read"]["seconds"])
        if name == "tenuto":
            self._staged.add(name, 2 * people / stages["sync new"]["seconds"])

    def all(self) -> list[Case]:
        return [*self._rates.values(), self._staged, *self._worker.values(), *self._server.values()]


class _GrowthCases:
    """A delta sync of the same number of changes, and memory, among a number of people."""

    def __init__(self, people: int, changed: int) -> None:
        self.delta = Case(f"delta sync of {changed:,} among {people:,}", "s")
        self.memory = {part: Case(f"memory grown by {name} {people:,}", "MB") for part, name in MEMORY_STAGES.items()}

    def add(self, answer: dict[str, Any]) -> None:
        self.delta.add("tenuto", answer["stages"]["delta sync"]["seconds"])
        for part, case in self.memory.items():
            case.add("tenuto", max(answer["grown"][part], 1.0))

    def compare(self, first: _GrowthCases) -> None:
        self.delta.baseline = first.delta
        for part, case in self.memory.items():
            case.baseline = first.memory[part]


async def _measure(contender: Contender, people: int, changed: int, *, has_floor: bool = True) -> dict[str, Any]:
    """Return stages, floors and memory of one contender on a fresh database."""
    with tempfile.TemporaryDirectory(prefix="tenuto-bench-identity-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        async with contender.prepared_database() as url:
            await databases.settle(url)
            arguments = ["--url", url, "--count", str(people), "--changed", str(changed), "--folder", folder]
            limit = LIMIT_SECONDS * max(1.0, people / 100_000)
            found: dict[str, Any] = {"stages": {}, "floors": {}, "grown": {}}
            for verb in TENUTO_VERBS if contender.name == "tenuto" else ("measure",):
                answer = await contender.run_command(verb, *arguments, limit=limit)
                found["stages"] |= answer["stages"]
                found["grown"][verb] = answer.get("grown", 0.0)
                if has_floor and contender.name == "tenuto" and verb in ("import", "sync"):
                    found["floors"][f"{verb} new"] = await contender.run_command(
                        f"floor-{verb}", *arguments, limit=limit
                    )
            return found
