"""Report of a chaos run: the figures as a JSON object or a table, and every violated rule."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.task_audit import Finding

ALLOWED = ("kills", "tasks", "recoveries")
MUST_BE_ZERO = ("lost", "doubled", "advanced_twice", "overlapping", "missing_ledger_rows", "repaired_executions")
_FURTHER_FIGURES = (
    "attempts",
    "set_aside",
    "stops",
    "gave_up",
    "restarted",
    "skewed",
    "lost_replies",
    "cuts",
    "silences",
    "backends_ended",
    "backends_killed",
    "database_restarts",
    "asked_again",
)
_DESCRIPTIONS = {
    "kills": "processes killed with SIGKILL",
    "tasks": "finished tasks",
    "recoveries": "attempts recovered from dead workers",
    "lost": "acknowledged, but not finished as required",
    "doubled": "succeeded twice, or held by two workers at once",
    "advanced_twice": "steps started twice or out of order",
    "overlapping": "ran in parallel although not allowed",
    "missing_ledger_rows": "due instants or effects without a record",
    "repaired_executions": "executions that needed a repair",
    "set_aside": "tasks set aside after three dead workers",
    "gave_up": "workers that ended themselves in time",
    "skewed": "processes started with a wrong clock",
    "asked_again": "requests repeated by clients",
}


@dataclass(frozen=True, slots=True)
class Report:
    seed: int
    seconds: float
    counts: Mapping[str, int]
    findings: Sequence[Finding]
    wrong: Sequence[str]
    """Events that no fault explains."""

    @property
    def figures(self) -> dict[str, int]:
        allowed = {name: self.counts.get(name, 0) for name in ALLOWED}
        zero = {name: sum(each.count for each in self.findings if each.figure == name) for name in MUST_BE_ZERO}
        return allowed | zero

    @property
    def holds(self) -> bool:
        return not self.findings and not self.wrong

    def as_json(self) -> str:
        further: dict[str, Any] = {name: self.counts.get(name, 0) for name in _FURTHER_FIGURES}
        further |= {"seed": self.seed, "seconds": round(self.seconds, 1), "broken": self._violations()}
        return json.dumps(self.figures | further)

    def as_table(self) -> str:
        shown = self.figures | {name: self.counts.get(name, 0) for name in _FURTHER_FIGURES}
        lines = [f"{name:20} {value:>10,}  {_DESCRIPTIONS.get(name, '')}".rstrip() for name, value in shown.items()]
        lines.append(f"{'seed':20} {self.seed:>10}  {self.seconds:.0f} s")
        lines += ["", "everything holds" if self.holds else "DOES NOT HOLD:", *self._violations()]
        return "\n".join(lines)

    def _violations(self) -> list[str]:
        rules = [
            f"{each.figure}: {each.count} violations of “{each.rule}”: {'; '.join(each.rows)}" for each in self.findings
        ]
        return rules + list(self.wrong)
