"""Answers about triggers and schedules before they are saved: description, next runs, clock changes, conflicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tenuto.errors import Invalid
from tenuto.model.definitions.schedules import ScheduleDefinition
from tenuto.model.triggers import Trigger
from tenuto.postgres.database import Database
from tenuto.simulation.clock_changes import ClockChangeEffect, clock_change_effects
from tenuto.simulation.input_loader import SimulationOptions, simulate_stored_schedules
from tenuto.simulation.simulator import Clash, Simulation
from tenuto.store.definitions.schedules import Schedule

CLOCK_CHANGE_SPAN = timedelta(days=366)
"""Clock changes are reported so far ahead."""
CONFLICT_SPANS = (timedelta(days=7), timedelta(hours=24), timedelta(hours=1))
"""Conflicts are searched so far ahead; in a shorter span if there are too many runs."""
MAX_CONFLICTS = 50


@dataclass(frozen=True, slots=True)
class TriggerExplanation:
    """A trigger in plain English, and what follows from it."""

    trigger: Mapping[str, Any]
    """The complete fields of the trigger."""
    description: str
    zone: str | None
    """Time zone of the trigger; None if it has none."""
    next_runs: Sequence[datetime]
    clock_changes: Sequence[ClockChangeEffect]
    """Effects of clock changes within a year."""


@dataclass(frozen=True, slots=True)
class ScheduleCheck:
    """Changes and effects of saving a valid definition."""

    definition: ScheduleDefinition
    stored: Schedule | None
    """The schedule that it would replace."""
    explanation: TriggerExplanation
    usual_seconds: float | None
    """Usual duration of a run, from history; None if there is none."""
    conflicts: Sequence[Clash]
    """Conflicts in which the schedule takes part."""
    conflicts_until: datetime
    """Conflicts were searched up to here."""
    notes: Sequence[str]


def explain_trigger(
    trigger: Trigger, now: datetime, count: int, *, seed: str = "", name: str = ""
) -> TriggerExplanation:
    """Describe a trigger with its next runs; ``seed`` selects its jitter."""
    fields = trigger.to_fields()
    return TriggerExplanation(
        trigger=fields,
        description=trigger.describe(),
        zone=fields.get("zone"),
        next_runs=trigger.preview(now, count, seed),
        clock_changes=list(clock_change_effects(name, trigger, now, now + CLOCK_CHANGE_SPAN)),
    )


async def check_schedule(
    database: Database, new: ScheduleDefinition, stored: Schedule | None, count: int
) -> ScheduleCheck:
    """Answer what saving a definition would cause. Nothing is saved."""
    now = database.clock.now()
    seed = new.name if stored is None else str(stored.id)
    replaced = () if stored is None else (stored.name,)
    options = SimulationOptions(edited=(new,), without=replaced)
    result, notes = await _simulate_ahead(database, now, options)
    total = next((each for each in result.totals if each.schedule == new.name), None)
    return ScheduleCheck(
        definition=new,
        stored=stored,
        explanation=explain_trigger(new.trigger, now, count, seed=seed, name=new.name),
        usual_seconds=total.seconds if total is not None and total.duration_is == "history" else None,
        conflicts=[clash for clash in result.clashes if new.name in clash.schedules][:MAX_CONFLICTS],
        conflicts_until=result.end,
        notes=notes,
    )


async def _simulate_ahead(
    database: Database, now: datetime, options: SimulationOptions
) -> tuple[Simulation, Sequence[str]]:
    for span in CONFLICT_SPANS:
        try:
            result = await simulate_stored_schedules(database, now, now + span, options)
            return result, result.notes
        except Invalid as error:
            if error.code != "simulation.too_many_runs":
                raise
    note = "conflicts were not searched: there are too many runs in an hour"
    return Simulation(now, now, {}, [], [], []), [note]
