"""Traces of decisions: why the engine decided as it did.

Every decision function takes ``trace=None``. With a trace it records its reasons, so that `explain` shows the decision
itself and is never a second implementation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One recorded reason."""

    step: str
    """What was decided: ``scope``, ``match``, ``contribution``, ``winner``, ``expression``, ``export`` …"""
    facts: dict[str, Any]
    """Plain data: names, values, results."""


@dataclass(slots=True)
class Trace:
    """Collects the reasons of decisions in order."""

    entries: list[TraceEntry] = field(default_factory=list)

    def add(self, step: str, **facts: Any) -> None:
        """Record one reason."""
        self.entries.append(TraceEntry(step, facts))

    def find(self, step: str) -> list[dict[str, Any]]:
        """Return the facts recorded for one kind of step, in order."""
        return [entry.facts for entry in self.entries if entry.step == step]


def add_if(trace: Trace | None, step: str, **facts: Any) -> None:
    """Record a reason if there is a trace."""
    if trace is not None:
        trace.add(step, **facts)
