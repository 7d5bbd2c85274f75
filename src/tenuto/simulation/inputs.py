"""Gathers what a simulation needs (definitions, how long runs took, the room there is) and has it played through.

Reads only. What is given (a changed definition, a duration, a number of slots) stands before what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from tenuto.definitions.declarations import effect_of
from tenuto.errors import Invalid, NotFound
from tenuto.model.schedules import Definition, misfire_as_stored, plan_from_fields
from tenuto.model.steps import SCHEDULE
from tenuto.model.triggers import Manual, trigger_from_fields
from tenuto.postgres.database import Database
from tenuto.service import health_file
from tenuto.simulation.simulator import Simulation, Span, Subject, simulate
from tenuto.store import schedules
from tenuto.store.reports import diagnosis
from tenuto.store.schedules import Schedule

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
    """In the place of those of the same names, as far as applying them would put them there."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """How long runs take, by the name of the schedule; the name ``*`` for all others."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """How many tasks of a queue run at a time; the name ``*`` for all others."""
    outages: Sequence[Span] = ()


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A schedule to be played, as it is or will be in force."""

    definition: Definition
    seed: str
    running_since: datetime | None = None


async def rehearse(database: Database, start: datetime, end: datetime, given: Given) -> Simulation:
    """What would fire between two instants."""
    chosen, notes = await _chosen(database, given)
    history = await schedules.typical_durations(database, database.clock.now() - HISTORY)
    subjects = [_subject(each, given.seconds, history) for each in chosen]
    queues = {queue for subject in subjects for queue in subject.needs()}
    room, unknown = await _room(database, queues, given.slots)
    notes += [f"no worker serves queue {queue}: whether it has room is not judged (--slots says)" for queue in unknown]
    notes += _assumptions(subjects)
    notes += _still_running(subjects, start, database.clock.now())
    played = simulate(subjects, start, end, room=room, outages=given.outages)
    return replace(played, notes=[*notes, *played.notes])


async def _chosen(database: Database, given: Given) -> tuple[list[_Chosen], list[str]]:
    """What is in force, or would be once what is given is applied: that switches nothing on, and leaves alone what an
    operator has changed while it says nothing new."""
    stored: dict[str, _Chosen] = {}
    disabled: set[str] = set()
    async for record in _stored(database):
        name, ended = record["name"], record["last_ended_at"]
        running_since = record["last_started_at"] if ended is None else None
        stored[name] = _Chosen(_definition(record), str(record["id"]), running_since)
        if not record["enabled"] and name not in given.names:
            disabled.add(name)
    kept = await _kept(database, given.definitions)
    for definition in given.definitions:
        if definition.name not in kept:
            before = stored.get(definition.name, _Chosen(definition, definition.name))
            stored[definition.name] = replace(before, definition=definition)
    found = {name: each for name, each in stored.items() if name not in disabled}
    if given.names:
        missing = sorted(set(given.names) - found.keys())
        if missing:
            raise NotFound(f"there is no schedule named {missing[0]!r}", remedy="see `tenuto schedule list`")
        found = {name: found[name] for name in sorted(set(given.names))}
        disabled = set()
    elif unused := sorted(given.seconds.keys() - stored.keys() - {"*"}):
        raise NotFound(f"there is no schedule named {unused[0]!r}", remedy="correct --duration")
    notes = [f"disabled, and left out: {_some(disabled)}"] if disabled else []
    if played := kept & found.keys():
        notes.append(f"kept as an operator changed it, and played so: {_some(played)}")
    return [each for _, each in sorted(found.items())], notes


async def _kept(database: Database, wanted: Sequence[Definition]) -> set[str]:
    """Those of which an operator has changed what is in force, while the declaration says what it said before."""
    if not wanted:
        return set()
    names = [each.name for each in wanted]
    present = await database.transaction(lambda connection: schedules.named_any(connection, names))
    return {
        each.name
        for each in wanted
        if (there := present.get(each.name)) is not None and effect_of(there, _completed(each, there)) == "kept"
    }


def _completed(wanted: Definition, present: Schedule) -> dict[str, Any]:
    """As plain data. Read without the app, a step does not say what it has from its job: where it says nothing else
    than what was declared, that is what it means."""
    fields, before = wanted.to_fields(), (present.declared or {}).get("steps", [])
    if [len(group) for group in fields["steps"]] == [len(group) for group in before]:
        fields["steps"] = [
            [was if _says_no_more(step, was) else step for step, was in zip(*groups, strict=True)]
            for groups in zip(fields["steps"], before, strict=True)
        ]
    return fields


def _says_no_more(step: Mapping[str, Any], was: Mapping[str, Any]) -> bool:
    if "policy" in step or step.get("continue_on_failure") != was.get("continue_on_failure"):
        return False
    said = {name: value for name, value in step.items() if name not in ("arguments", "rules")}
    return said.items() <= was.items() and step.get("arguments", {}).items() <= was.get("arguments", {}).items()


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
        misfire_as_stored(record["misfire"]),
    )


def _subject(chosen: _Chosen, given: Mapping[str, float], history: Mapping[str, float]) -> Subject:
    name = chosen.definition.name
    if name in given:
        seconds, known = given[name], "given"
    elif name in history:
        seconds, known = history[name], "history"
    elif "*" in given:
        seconds, known = given["*"], "given"
    else:
        seconds, known = ASSUMED_SECONDS, "assumed"
    return Subject(chosen.definition, chosen.seed, seconds, known, chosen.running_since)


async def _room(
    database: Database, queues: Iterable[str], given: Mapping[str, int]
) -> tuple[dict[str, int], list[str]]:
    """How many tasks of each queue can run at a time, and the queues of which nobody knows."""
    known = {row["queue"]: row for row in await diagnosis.capacity(database, health_file.STALE_AFTER["worker"])}
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
        notes.append(
            f"never run, taken to last {ASSUMED_SECONDS:.0f} s (--duration says otherwise): {_some(assumed, 5)}"
        )
    if nested:
        notes.append(f"runs as a step of another schedule are not played through: {', '.join(nested[:5])}")
    return notes


def _still_running(subjects: Sequence[Subject], start: datetime, now: datetime) -> list[str]:
    going_on = [each.name for each in subjects if each.runs_on_until(start) is not None]
    late = [each.name for each in subjects if each.running_since is not None and each.runs_on_until(now) is None]
    notes = []
    if going_on:
        notes.append(f"active at the beginning, and taken to last as long as usual: {_some(going_on)}")
    if late and start >= now:
        notes.append(f"active for longer than usual, and taken to end at once: {_some(late)}")
    return notes


def _some(names: Iterable[str], most: int = 10) -> str:
    all_of_them = sorted(names)
    return ", ".join(all_of_them[:most]) + (" …" if len(all_of_them) > most else "")


def _has_clock(subject: Subject) -> bool:
    return not isinstance(subject.definition.trigger, Manual)
