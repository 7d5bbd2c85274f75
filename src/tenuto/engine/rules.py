"""What a rule of the doctor is: one statement in ``store/doctor.sql`` that finds offenders, and the words for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    WARNING = "warning"
    """Work may be late or at risk."""
    PROBLEM = "problem"
    """A promise is broken."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """One rule."""

    name: str
    holds: str
    """What to say when it does."""
    fault: str
    """What to say when it does not, and how grave that is."""
    otherwise: Verdict
    says: str
    """One offending row in words; names in braces are its columns."""
    means: str
    remedy: str
    given: tuple[str, ...] = ()
    """The bounds its statement takes, in order."""
    lasting: str | None = None
    """The column that names what offends, of a rule that work under way may break for a moment: it counts only if it is
    still there when it is asked for again."""


REPORT = "this should be impossible: keep the rows, and report it with the output of `tenuto doctor -o json`"

NAMED = 20
"""So many offenders are named of each rule."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question."""

    name: str
    title: str
    verdict: Verdict
    details: list[str] = field(default_factory=list)
    means: str | None = None
    remedy: str | None = None
