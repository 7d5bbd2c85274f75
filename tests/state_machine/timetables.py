"""Model of schedules: due instants, the overlap policy, and the ledger entries of definition changes.

Triggers are taken as correct (they have their own tests); the model decides every due instant once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from tenuto.model.triggers import Trigger


@dataclass
class Timetable:

    id: UUID
    name: str
    trigger: Trigger
    overlap: str
    groups: tuple[int, ...]
    enabled: bool
    next_run: datetime | None
    off_since: datetime | None = None
    """Since when it has been disabled with its current trigger."""

    def after(self, instant: datetime) -> datetime | None:
        return self.trigger.next_after(instant, str(self.id))


@dataclass
class Entry:

    schedule: str
    due: datetime
    origin: str
    decision: str


@dataclass
class Calendar:
    """All schedules, and the ledger entries of all that ever existed."""

    tables: dict[str, Timetable] = field(default_factory=dict)
    ledger: list[Entry] = field(default_factory=list)

    def due(self, table: Timetable, now: datetime) -> list[datetime]:
        instants: list[datetime] = []
        instant = table.next_run
        while instant is not None and instant <= now:
            instants.append(instant)
            instant = table.after(instant)
        return instants

    def queued(self, name: str) -> list[Entry]:
        waiting = [entry for entry in self.ledger if entry.schedule == name and entry.decision == "queued"]
        return sorted(waiting, key=lambda entry: entry.due)

    def write(self, table: Timetable, due: datetime, decision: str, origin: str = "trigger") -> Entry:
        entry = Entry(table.name, due, origin, decision)
        self.ledger.append(entry)
        return entry

    def meets(self, table: Timetable, *, active: bool) -> str:
        """Return the decision of the overlap policy on one more run."""
        waiting = bool(self.queued(table.name))
        if table.overlap == "allow" or not (active or waiting):
            return "fired"
        if table.overlap == "skip":
            return "skipped"
        return "coalesced" if waiting else "queued"

    def leave_overdue(self, table: Timetable, now: datetime) -> None:
        """Record the due instants that did not fire before a change as missed, in one row."""
        if table.next_run is not None and table.next_run <= now:
            self.write(table, table.next_run, "missed")

    def leave_pause(self, table: Timetable, now: datetime) -> None:
        """Record the due instants of the disabled period as missed."""
        first = None if table.off_since is None else table.after(table.off_since)
        if first is not None and first <= now:
            self.write(table, first, "missed")

    def give_up(self, table: Timetable, *, by_hand_too: bool) -> None:
        for entry in self.queued(table.name):
            if by_hand_too or entry.origin == "trigger":
                entry.decision = "missed"
