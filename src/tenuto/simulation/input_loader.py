"""Load the inputs of a simulation (definitions, run durations, queue slots) and run it.

Reads only. Given definitions, durations and slots take precedence over stored ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenuto.definitions.versioned_definitions import declaration_effect
from tenuto.errors import Invalid, NotFound
from tenuto.model.definitions.schedules import ScheduleDefinition
from tenuto.model.definitions.steps import SCHEDULE
from tenuto.model.triggers import ManualTrigger
from tenuto.postgres.database import Database
from tenuto.simulation.simulator import SimulatedSchedule, Simulation, TimeSpan, simulate
from tenuto.store.definitions import schedules
from tenuto.store.definitions.schedules import Schedule, ScheduleRecord
from tenuto.store.reports import diagnosis
from tenuto.store.reports.diagnosis import QueueCapacity

ASSUMED_SECONDS = 60.0
"""The assumed duration of a run without history."""
HISTORY_SPAN = timedelta(days=90)
MAX_SCHEDULES = 10_000
_PAGE_SIZE = 500


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Inputs that take precedence over stored ones."""

    names: Sequence[str] = ()
    """Only these schedules; empty: all enabled schedules."""
    definitions: Sequence[ScheduleDefinition] = ()
    """Replace stored definitions of the same name, as far as applying them would do so."""
    run_seconds: Mapping[str, float] = field(default_factory=dict)
    """Run durations by schedule name; ``*`` for all others."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """Slots by queue; ``*`` for all others."""
    outages: Sequence[TimeSpan] = ()
    edited: Sequence[ScheduleDefinition] = ()
    """Replace stored definitions of the same name, as an edit by an operator does, and are enabled."""
    without: Sequence[str] = ()
    """Stored schedules that are left out, because an edited one replaces them under another name."""


@dataclass(frozen=True, slots=True)
class _SelectedSchedule:
    """A schedule with its current or planned definition."""

    definition: ScheduleDefinition
    seed: str
    running_since: datetime | None = None


async def simulate_stored_schedules(
    database: Database, start: datetime, end: datetime, options: SimulationOptions
) -> Simulation:
    """Simulate the schedules of the database between two instants."""
    selected, notes = await _select_schedules(database, options)
    history = await schedules.load_typical_durations(database, database.clock.now() - HISTORY_SPAN)
    simulated = [_make_simulated(each, options.run_seconds, history) for each in selected]
    queues = {queue for schedule in simulated for queue in schedule.slots_per_queue()}
    queue_slots, unserved = await _load_queue_slots(database, queues, options.slots)
    notes += [
        f"no worker serves queue {queue}: its slots are not checked (set them with --slots)" for queue in unserved
    ]
    notes += _assumption_notes(simulated)
    notes += _active_run_notes(simulated, start, database.clock.now())
    result = await asyncio.to_thread(
        simulate, simulated, start, end, queue_slots=queue_slots, outages=options.outages
    )  # not on the event loop: many runs take a while
    return replace(result, notes=[*notes, *result.notes])


async def _select_schedules(
    database: Database, options: SimulationOptions
) -> tuple[list[_SelectedSchedule], list[str]]:
    """Return the definitions as they would be after applying the given ones, and notes. Applying enables nothing, and
    keeps changes by operators if the declaration is unchanged."""
    stored: dict[str, _SelectedSchedule] = {}
    disabled: set[str] = set()
    async for record, definition in _iterate_stored(database):
        name, ended = record.name, record.last_ended_at
        running_since = record.last_started_at if ended is None else None
        stored[name] = _SelectedSchedule(definition, str(record.id), running_since)
        if not record.enabled and name not in options.names:
            disabled.add(name)
    kept = await _find_kept(database, options.definitions)
    for definition in options.definitions:
        if definition.name not in kept:
            before = stored.get(definition.name, _SelectedSchedule(definition, definition.name))
            stored[definition.name] = replace(before, definition=definition)
    _apply_edits(stored, disabled, options)
    found = {name: each for name, each in stored.items() if name not in disabled}
    if options.names:
        missing = sorted(set(options.names) - found.keys())
        if missing:
            raise NotFound(
                f"there is no schedule named {missing[0]!r}",
                code="schedule.not_found",
                remedy="list them with `tenuto schedule list`",
            )
        found = {name: found[name] for name in sorted(set(options.names))}
        disabled = set()
    elif unused := sorted(options.run_seconds.keys() - stored.keys() - {"*"}):
        raise NotFound(
            f"there is no schedule named {unused[0]!r}", code="schedule.not_found", remedy="correct --duration"
        )
    notes = [f"not simulated because disabled: {_list_names(disabled)}"] if disabled else []
    if kept_here := kept & found.keys():
        notes.append(f"simulated with the changes of an operator, which applying keeps: {_list_names(kept_here)}")
    return [each for _, each in sorted(found.items())], notes


def _apply_edits(stored: dict[str, _SelectedSchedule], disabled: set[str], options: SimulationOptions) -> None:
    edited = {each.name for each in options.edited}
    replaced = [stored.pop(name) for name in options.without if name in stored and name not in edited]
    for definition in options.edited:
        before = stored.get(definition.name) or next(iter(replaced), _SelectedSchedule(definition, definition.name))
        stored[definition.name] = replace(before, definition=definition)
        disabled.discard(definition.name)


async def _find_kept(database: Database, wanted: Sequence[ScheduleDefinition]) -> set[str]:
    """Return the names of schedules whose changes by an operator applying would keep."""
    if not wanted:
        return set()
    names = [each.name for each in wanted]
    present = await database.transaction(lambda connection: schedules.load_schedules(connection, names))
    return {
        each.name
        for each in wanted
        if (stored := present.get(each.name)) is not None
        and declaration_effect(stored, _complete_fields(each, stored)) == "kept"
    }


def _complete_fields(wanted: ScheduleDefinition, stored: Schedule) -> dict[str, Any]:
    """Return plain data with the job's defaults of each step. Without the app these are unknown; a step without other
    fields than the declared one has is taken as the declared one."""
    fields, before = wanted.to_fields(), (stored.declared or {}).get("steps", [])
    if [len(group) for group in fields["steps"]] == [len(group) for group in before]:
        fields["steps"] = [
            [declared if _is_covered_by(step, declared) else step for step, declared in zip(*groups, strict=True)]
            for groups in zip(fields["steps"], before, strict=True)
        ]
    return fields


def _is_covered_by(step: Mapping[str, Any], declared: Mapping[str, Any]) -> bool:
    if "policy" in step or step.get("continue_on_failure") != declared.get("continue_on_failure"):
        return False
    fields = {name: value for name, value in step.items() if name not in ("arguments", "rules")}
    return (
        fields.items() <= declared.items()
        and step.get("arguments", {}).items() <= declared.get("arguments", {}).items()
    )


async def _iterate_stored(database: Database) -> AsyncIterator[tuple[ScheduleRecord, ScheduleDefinition]]:
    after: str | None = None
    for _ in range(MAX_SCHEDULES // _PAGE_SIZE + 1):
        page = await schedules.list_schedules(database, after=after, enabled=None, search=None, limit=_PAGE_SIZE)
        definitions = await _load_definitions(database, page)
        for record in page:
            if record.id in definitions:  # otherwise it was deleted meanwhile
                yield record, definitions[record.id]
        if len(page) < _PAGE_SIZE:
            return
        after = page[-1].name
    raise Invalid(
        f"there are more than {MAX_SCHEDULES:,} schedules",
        code="simulation.too_many_schedules",
        field="schedule",
        remedy="name the schedules to simulate",
    )


_definitions: dict[tuple[UUID, int, datetime], ScheduleDefinition] = {}
"""Parsed definitions by id, version and time of the last change: parsing 500 takes longer than simulating a day."""


async def _load_definitions(database: Database, page: Sequence[ScheduleRecord]) -> dict[UUID, ScheduleDefinition]:
    """Return the definitions of listed schedules by id."""
    if len(_definitions) >= MAX_SCHEDULES:
        _definitions.clear()
    keys = {each.id: (each.id, each.version, each.updated_at) for each in page}
    found = {id: _definitions[key] for id, key in keys.items() if key in _definitions}
    missing = [each.name for each in page if each.id not in found]
    if missing:
        loaded = await database.transaction(lambda connection: schedules.load_schedules(connection, missing))
        for stored in loaded.values():
            found[stored.id] = _definitions[stored.id, stored.version, stored.updated_at] = stored.definition
    return found


def _make_simulated(
    selected: _SelectedSchedule, given: Mapping[str, float], history: Mapping[str, float]
) -> SimulatedSchedule:
    name = selected.definition.name
    if name in given:
        seconds, known = given[name], "given"
    elif name in history:
        seconds, known = history[name], "history"
    elif "*" in given:
        seconds, known = given["*"], "given"
    else:
        seconds, known = ASSUMED_SECONDS, "assumed"
    return SimulatedSchedule(selected.definition, selected.seed, seconds, known, selected.running_since)


async def _load_queue_slots(
    database: Database, queues: Iterable[str], given: Mapping[str, int]
) -> tuple[dict[str, int], list[str]]:
    """Return the slots of each queue, and the queues without given slots that no worker serves."""
    known = {each.queue: each for each in await diagnosis.list_queue_capacities(database)}
    queue_slots: dict[str, int] = {}
    unserved = []
    for queue in sorted(queues):
        capacity = known.get(queue, QueueCapacity(queue, 0, None, paused=False))
        slots = given.get(queue, given.get("*", capacity.slots or None))
        if slots is None:
            unserved.append(queue)
        else:
            queue_slots[queue] = slots if capacity.max_running is None else min(slots, capacity.max_running)
    return queue_slots, unserved


def _assumption_notes(schedules: Sequence[SimulatedSchedule]) -> list[str]:
    assumed = [
        schedule.name for schedule in schedules if schedule.duration_source == "assumed" and _has_clock(schedule)
    ]
    nested = sorted({target for schedule in schedules for target in schedule.definition.plan.targets_of_kind(SCHEDULE)})
    notes = []
    if assumed:
        notes.append(
            f"no history, assumed to take {ASSUMED_SECONDS:.0f} s (change with --duration): {_list_names(assumed, 5)}"
        )
    if nested:
        notes.append(f"runs as a step of another schedule are not simulated: {', '.join(nested[:5])}")
    return notes


def _active_run_notes(schedules: Sequence[SimulatedSchedule], start: datetime, now: datetime) -> list[str]:
    active = [each.name for each in schedules if each.active_until(start) is not None]
    late = [each.name for each in schedules if each.running_since is not None and each.active_until(now) is None]
    notes = []
    if active:
        notes.append(f"active at the start, assumed to take the usual time: {_list_names(active)}")
    if late and start >= now:
        notes.append(f"active for longer than usual, assumed to end immediately: {_list_names(late)}")
    return notes


def _list_names(names: Iterable[str], most: int = 10) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:most]) + (" …" if len(ordered) > most else "")


def _has_clock(schedule: SimulatedSchedule) -> bool:
    return not isinstance(schedule.definition.trigger, ManualTrigger)
