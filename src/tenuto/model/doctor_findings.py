"""Findings of the doctor: the result of one check of an installation."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    OK = "ok"
    NOTE = "note"
    """Information; nothing is wrong."""
    WARNING = "warning"
    """Work may be late or at risk."""
    PROBLEM = "problem"
    """A guarantee is broken."""


MAX_DETAILS = 20
"""Details that a finding lists."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    name: str
    title: str
    severity: Severity
    details: list[str] = field(default_factory=list)
    meaning: str | None = None
    remedy: str | None = None

    @classmethod
    def from_details(
        cls,
        name: str,
        details: list[str],
        *,
        passed: str,
        failed: str,
        severity: Severity,
        meaning: str | None,
        remedy: str | None,
    ) -> Finding:
        """Return the finding of a check that looks for faults: passed if it found no details."""
        if not details:
            return cls(name, passed, Severity.OK)
        return cls(name, failed, severity, list_details(details), meaning, remedy)

    @classmethod
    def timed_out(cls, name: str, passed: str) -> Finding:
        """Return the finding of a check whose query timed out."""
        return cls(
            name,
            f"unknown whether {passed}",
            Severity.WARNING,
            ["the query timed out"],
            "The database is very busy, or its statistics are out of date.",
            "try again later; if it persists, run ANALYZE on the schema tenuto",
        )


def list_details(details: list[str]) -> list[str]:
    """Return the first details, and say if there are more."""
    return details[:MAX_DETAILS] + (["… and more"] if len(details) > MAX_DETAILS else [])
