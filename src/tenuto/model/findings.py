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


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    name: str
    title: str
    severity: Severity
    details: list[str] = field(default_factory=list)
    meaning: str | None = None
    remedy: str | None = None
