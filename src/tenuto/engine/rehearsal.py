"""Gathers what a simulation needs (definitions, how long runs took, the room there is) and has it played through.

Reads only. What is given (a changed definition, a duration, a number of slots) stands before what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from tenuto.engine import health
from tenuto.engine.simulation import Simulation, Span, Subject, simulate
from tenuto.errors import Invalid, NotFound
from tenuto.model.schedules import Definition, misfire_from_fields, plan_from_fields
from tenuto.model.steps import SCHEDULE
from tenuto.model.triggers import Manual, trigger_from_fields
from tenuto.store import schedules, why
from tenuto.store.database import Database

ASSUMED_SECONDS = 60.0
"""How long a run takes of which nothing is known."""
HISTORY = timedelta(days=90)
MOST_SCHEDULES = 10_000
_PAGE = 500


@dataclass(frozen=True, slots=True)
class Given:
    """What stands before the stored."""

    names: Sequence[str] = ()
    """Only these schedules; none: all that are enabled."""
    definitions: Sequence[Definition] = ()
    """In the place of those of the same names."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """How long runs take, by the name of the schedule; the name ``*`` for all others."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """How many tasks of a queue run at a time; the name ``*`` for all others."""
    outages: Sequence[Span] = ()


async def rehearse(database: Database, start: datetime, end: datetime, given: Given) -> Simulation:
    """What would fire between two instants."""
    chosen, notes = await _chosen(database, given)
    history = await schedules.typical_durations(database, database.clock.now() - HISTORY)
    subjects = [_subject(definition, seed, given.seconds, history) for definition, seed in chosen]
    queues = {queue for subject in subjects for queue in subject.needs()}
    room, unknown = await _room(database, queues, given.slots)
    notes += [f"no worker serves queue {queue}: whether it has room is not judged (--slots says)" for queue in unknown]
    notes += _assumptions(subjects)
    played = simulate(subjects, start, end, room=room, outages=given.outages)
    return replace(played, notes=[*notes, *played.notes])


async def _chosen(database: Database, given: Given) -> tuple[list[tuple[Definition, str]], list[str]]:
    found: dict[str, tuple[Definition, str]] = {}
    disabled = []
    async for record in _stored(database):
        if record["enabled"] or record["name"] in given.names:
            found[record["name"]] = (_definition(record), str(record["id"]))
        else:
            disabled.append(record["name"])
    for definition in given.definitions:
        seed = found[definition.name][1] if definition.name in found else definition.name
        found[definition.name] = (definition, seed)
    if given.names:
        missing = sorted(set(given.names) - found.keys())
        if missing:
            raise NotFound(f"there is no schedule named {missing[0]!r}", remedy="see `tenuto schedule list`")
        found = {name: found[name] for name in sorted(set(given.names))}
        disabled = []
    elif unused := sorted(given.seconds.keys() - found.keys() - {"*"}):
        raise NotFound(f"there is no schedule named {unused[0]!r}", remedy="correct --duration")
    left = sorted(set(disabled) - found.keys())
    notes = [f"disabled, and left out: {', '.join(left[:10])}{' …' if len(left) > 10 else ''}"] if left else []
    return [entry for _, entry in sorted(found.items())], notes


async def _stored(database: Database) -> Any:
    after: str | None = None
    for _ in range(MOST_SCHEDULES // _PAGE + 1):
        page = await schedules.list_schedules(database, after=after, enabled=None, search=None, limit=_PAGE)
        for record in page:
            yield record
        if len(page) < _PAGE:
            return
        after = page[-1]["name"]
    raise Invalid(f"there are more than {MOST_SCHEDULES:,} schedules", field="schedule", remedy="name those to look at")


def _definition(record: Mapping[str, Any]) -> Definition:
    return Definition(
        record["name"],
        trigger_from_fields(record["trigger"]),
        plan_from_fields(record["plan"]),
        record["description"],
        record["overlap"],
        misfire_from_fields(record["misfire"]),
    )


def _subject(definition: Definition, seed: str, given: Mapping[str, float], history: Mapping[str, float]) -> Subject:
    name = definition.name
    if name in given:
        return Subject(definition, seed, given[name], "given")
    if name in history:
        return Subject(definition, seed, history[name], "history")
    if "*" in given:
        return Subject(definition, seed, given["*"], "given")
    return Subject(definition, seed, ASSUMED_SECONDS, "assumed")


async def _room(
    database: Database, queues: Iterable[str], given: Mapping[str, int]
) -> tuple[dict[str, int], list[str]]:
    """How many tasks of each queue can run at a time, and the queues of which nobody knows."""
    known = {row["queue"]: row for row in await why.capacity(database, health.STALE_AFTER["worker"])}
    room: dict[str, int] = {}
    unknown = []
    for queue in sorted(queues):
        row = known.get(queue, {"slots": 0, "max_running": None})
        slots = given.get(queue, given.get("*", row["slots"] or None))
        if slots is None:
            unknown.append(queue)
        else:
            room[queue] = slots if row["max_running"] is None else min(slots, row["max_running"])
    return room, unknown


def _assumptions(subjects: Sequence[Subject]) -> list[str]:
    assumed = [subject.name for subject in subjects if subject.duration_is == "assumed" and _has_clock(subject)]
    nested = sorted({target for subject in subjects for target in subject.definition.plan.targets(SCHEDULE)})
    notes = []
    if assumed:
        names = ", ".join(assumed[:5]) + (" …" if len(assumed) > 5 else "")
        notes.append(f"never run, taken to last {ASSUMED_SECONDS:.0f} s (--duration says otherwise): {names}")
    if nested:
        notes.append(f"runs as a step of another schedule are not played through: {', '.join(nested[:5])}")
    return notes


def _has_clock(subject: Subject) -> bool:
    return not isinstance(subject.definition.trigger, Manual)
