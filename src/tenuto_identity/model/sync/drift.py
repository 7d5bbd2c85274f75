"""Drift: differences between desired and imported values that no pending export explains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tenuto_identity.model.objects import ConnectorObject
from tenuto_identity.model.rules.sync_rules import AttributeMapping
from tenuto_identity.model.sync.decision_trace import Trace, add_if
from tenuto_identity.model.sync.pending_exports import Change


@dataclass(frozen=True, slots=True)
class Drift:
    """The differences of one object, sorted by what happens to them."""

    flows: tuple[Change, ...] = ()
    """The desired value changed, or the change is still outstanding: ordinary changes."""
    corrections: tuple[Change, ...] = ()
    """The value was changed in the system and is set again; the item is ``DriftCorrected``."""
    reported: tuple[Change, ...] = ()
    """The value was changed in the system, the rule does not enforce it, and it was not reported before."""
    ignored: tuple[Change, ...] = ()
    """As reported, but reported before; or the system itself contributes the value."""

    @property
    def staged(self) -> tuple[Change, ...]:
        """Return the changes that are staged."""
        return self.flows + self.corrections

    @property
    def unenforced(self) -> frozenset[str]:
        """Return the attributes that differ and are not enforced, for `ConnectorObject.drift_reported`."""
        return frozenset(change.attribute for change in self.reported + self.ignored)


NO_DRIFT = Drift()


def detect_drift(
    object: ConnectorObject,
    changes: Iterable[Change],
    mappings: Mapping[str, AttributeMapping],
    *,
    changed: frozenset[str] | None,
    outstanding: frozenset[str],
    contributed: frozenset[str] = frozenset(),
    trace: Trace | None = None,
) -> Drift:
    """Sort the computed changes of an object that was imported.

    ``changed`` are the attributes whose desired value differs from the one before this sync; None means all, because
    the object was joined now or its rule changed. ``outstanding`` are the attributes with a pending change.
    ``contributed`` are the attributes whose winning contribution is this object itself.
    """
    flows, corrections, reported, ignored = [], [], [], []
    for change in changes:
        name = change.attribute
        mapping = mappings.get(name)
        if changed is None or name in changed or name in outstanding or mapping is None:
            flows.append(change)
        elif name in contributed:
            ignored.append(change)
        elif mapping.enforce:
            corrections.append(change)
        elif name in object.drift_reported:
            ignored.append(change)
        else:
            reported.append(change)
    drift = Drift(tuple(flows), tuple(corrections), tuple(reported), tuple(ignored))
    if drift.corrections or drift.reported:
        add_if(
            trace,
            "drift",
            system=object.system,
            corrected=[change.attribute for change in drift.corrections],
            reported=[change.attribute for change in drift.reported],
        )
    return drift
