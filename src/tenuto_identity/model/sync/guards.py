"""Guards: conditions that stop a run before changes leave the connector space.

A guard trips if the affected share is above its percentage *and* the number is at least its minimum. The functions only
decide; the processors hold the system, schedule the rest for later or fail the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any


class GuardKind(StrEnum):
    """What a guard watches."""

    EMPTY_SOURCE = "empty_source"
    EMPTIED = "emptied"
    DELETIONS = "deletions"
    CLEARING = "clearing"
    IDENTITY_DELETIONS = "identity_deletions"
    EXPORT_DELETES = "export_deletes"


class Consequence(StrEnum):
    """What a tripped guard leads to."""

    FAIL = "fail"
    HOLD = "hold"
    SCHEDULE = "schedule"
    """The rest is scheduled for one day later."""
    HOLD_DELETES = "hold_deletes"
    """Creates and updates are sent, deletes are held."""


_CONSEQUENCES = {
    GuardKind.EMPTY_SOURCE: Consequence.FAIL,
    GuardKind.EMPTIED: Consequence.HOLD,
    GuardKind.DELETIONS: Consequence.HOLD,
    GuardKind.CLEARING: Consequence.HOLD,
    GuardKind.IDENTITY_DELETIONS: Consequence.SCHEDULE,
    GuardKind.EXPORT_DELETES: Consequence.HOLD_DELETES,
}


@dataclass(frozen=True, slots=True)
class GuardLimit:
    """Above this percentage, from this number on."""

    percent: float = 20.0
    at_least: int = 10

    def is_exceeded(self, affected: int, total: int) -> bool:
        """Return whether the affected number is too large. Computed in whole numbers: 20 of 100 is not above 20 %."""
        if affected < max(self.at_least, 1):
            return False
        # guard: identity.guard_percentage
        return affected * 100 > Fraction(str(self.percent)) * total


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """The limits of a system or run profile: one default, and others by kind of guard."""

    default: GuardLimit = GuardLimit()
    by_kind: Mapping[GuardKind, GuardLimit] | None = None

    def limit(self, kind: GuardKind) -> GuardLimit:
        """Return the limit of a guard."""
        return (self.by_kind or {}).get(kind, self.default)


DEFAULT_LIMITS = GuardLimits()


@dataclass(frozen=True, slots=True)
class GuardMeasurement:
    """Affected and total number of objects that a guard compares with its limit."""

    kind: GuardKind
    subject: str
    """Type, container or attribute: ``person``, ``ou=people,dc=test``, ``person.department``."""
    affected: int
    total: int
    """How many there were before."""


@dataclass(frozen=True, slots=True)
class TrippedGuard:
    """A guard that stops something."""

    kind: GuardKind
    subject: str
    affected: int
    total: int
    limit: GuardLimit
    consequence: Consequence

    def to_json(self) -> dict[str, Any]:
        """Return the guard as it is stored with a hold and shown."""
        return {
            "kind": self.kind.value,
            "subject": self.subject,
            "affected": self.affected,
            "total": self.total,
            "limit_percent": self.limit.percent,
            "limit_count": self.limit.at_least,
        }

    @property
    def message(self) -> str:
        """Say what would happen, how much of it, and the limit."""
        share = f"{self.affected} of {self.total}"
        percent = f"{self.affected * 100 / self.total:.4g} %" if self.total else "100 %"
        limit = f"limit {self.limit.percent:g} % from {self.limit.at_least}"
        match self.kind:
            case GuardKind.EMPTY_SOURCE:
                return f"nothing was read, although there were {self.total} objects of {self.subject}"
            case GuardKind.EMPTIED:
                return f"emptied {self.subject}: none of {self.total} objects was read"
            case GuardKind.DELETIONS:
                return f"{share} ({percent}) of {self.subject} would be deleted, {limit}"
            case GuardKind.CLEARING:
                return f"cleared {self.subject}: {share} ({percent}) lost their value, {limit}"
            case GuardKind.IDENTITY_DELETIONS:
                return f"{share} ({percent}) of the metaverse type {self.subject} would be deleted at once, {limit}"
            case GuardKind.EXPORT_DELETES:
                return f"{share} ({percent}) objects of {self.subject} would be deleted or disabled, {limit}"


def evaluate_guards(measures: Iterable[GuardMeasurement], limits: GuardLimits) -> tuple[TrippedGuard, ...]:
    """Return the guards that trip, the most severe first."""
    tripped = [
        TrippedGuard(
            measure.kind,
            measure.subject,
            measure.affected,
            measure.total,
            limits.limit(measure.kind),
            _CONSEQUENCES[measure.kind],
        )
        for measure in measures
        if _trips(measure, limits.limit(measure.kind))
    ]
    severity = list(Consequence)
    return tuple(sorted(tripped, key=lambda guard: severity.index(guard.consequence)))


def _trips(measure: GuardMeasurement, limit: GuardLimit) -> bool:
    match measure.kind:
        case GuardKind.EMPTY_SOURCE:
            # guard: identity.guard_empty_source
            return measure.total > 0 and measure.affected >= measure.total
        case GuardKind.EMPTIED:
            # No percentage: an emptied type or container is suspicious even where many deletions are allowed.
            # guard: identity.guard_emptied
            return measure.total >= max(limit.at_least, 1) and measure.affected >= measure.total
        case _:
            return limit.is_exceeded(measure.affected, measure.total)


def allowed_count(total: int, limit: GuardLimit) -> int:
    """Return how many of ``total`` may be affected without the guard tripping, for guards that let a part pass."""
    by_percent = int(Fraction(str(limit.percent)) * total / 100)
    return min(total, max(by_percent, limit.at_least - 1))
