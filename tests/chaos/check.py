"""A check of the audit, and the figures of a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Figure = Literal[
    "lost", "doubled", "advanced_twice", "overlapping", "missing_ledger_rows", "repaired_executions", "else"
]


@dataclass(frozen=True, slots=True)
class Check:
    invariants: str
    figure: Figure
    rule: str
    violations: str
