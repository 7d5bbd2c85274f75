"""Model of schedules: due instants, the overlap policy, and the ledger entries of definition changes.

Triggers are taken as correct (they have their own tests); the model decides every due instant once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from tenuto.model.triggers import Trigger


@dataclass
class ScheduleModel:
    id: UUID
    name: str
    trigger: Trigger
    overlap: str
    groups: tuple[int, ...]
    enabled: bool
    next_run_at: datetime | None
    disabled_since: datetime | None = None
    """Since when it has been disabled with its current trigger."""

    def next_after(self, instant: datetime) -> datetime | None:
        return self.trigger.next_after(instant, str(self.id))


@dataclass
class LedgerEntry:
    schedule: str
    due_at: datetime
    origin: str
    decision: str


@dataclass
class ScheduleModels:
    """All schedules, and the ledger entries of all that ever existed."""

    schedules: dict[str, ScheduleModel] = field(default_factory=dict)
    ledger: list[LedgerEntry] = field(default_factory=list)

    def due_instants(self, table: ScheduleModel, now: datetime) -> list[datetime]:
        instants: list[datetime] = []
        instant = table.next_run_at
        while instant is not None and instant <= now:
            instants.append(instant)
            instant = table.next_after(instant)
        return instants

    def queued(self, name: str) -> list[LedgerEntry]:
        waiting = [entry for entry in self.ledger if entry.schedule == name and entry.decision == "queued"]
        return sorted(waiting, key=lambda entry: entry.due_at)

    def record(self, table: ScheduleModel, due: datetime, decision: str, origin: str = "trigger") -> LedgerEntry:
        entry = LedgerEntry(table.name, due, origin, decision)
        self.ledger.append(entry)
        return entry

    def decide_overlap(self, table: ScheduleModel, *, active: bool) -> str:
        """Return the decision of the overlap policy on one more run."""
        waiting = bool(self.queued(table.name))
        if table.overlap == "allow" or not (active or waiting):
            return "fired"
        if table.overlap == "skip":
            return "skipped"
        return "coalesced" if waiting else "queued"

    def record_overdue(self, table: ScheduleModel, now: datetime) -> None:
        """Record the due instants that did not fire before a change as missed, in one row."""
        if table.next_run_at is not None and table.next_run_at <= now:
            self.record(table, table.next_run_at, "missed")

    def record_disabled_period(self, table: ScheduleModel, now: datetime) -> None:
        """Record the due instants of the disabled period as missed."""
        first = None if table.disabled_since is None else table.next_after(table.disabled_since)
        if first is not None and first <= now:
            self.record(table, first, "missed")

    def abandon_queued(self, table: ScheduleModel, *, by_hand_too: bool) -> None:
        for entry in self.queued(table.name):
            if by_hand_too or entry.origin == "trigger":
                entry.decision = "missed"
