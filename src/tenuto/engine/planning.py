"""Files of definitions: what bringing them into force would change, and doing exactly that.

Looking changes nothing. Doing is one transaction: all of it, or none. It is done only if everything is still as it was
when the plan was made, so that nobody's change of the meantime is lost and nothing happens that was not shown. What no
file declares any more is named; it is deleted only if that was asked for, and only if a file had declared it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.engine import definitions
from tenuto.engine.definitions import Author, Effect
from tenuto.errors import Conflict, Invalid
from tenuto.ids import new_id
from tenuto.model.definitionfiles import Declared
from tenuto.model.schedules import Definition, Plan, changes, refuse_cycles
from tenuto.model.steps import SCHEDULE
from tenuto.model.triggers import check_runs
from tenuto.store import schedules
from tenuto.store.database import Connection, Database
from tenuto.store.schedules import Schedule

RUNS_SHOWN = 3
MAX_OTHERS = 10_000

_DOES_SOMETHING: tuple[Effect, ...] = ("created", "changed")


@dataclass(frozen=True, slots=True)
class Change:
    """What would become of one schedule of the files."""

    declared: Declared
    definition: Definition
    effect: Effect
    present: Schedule | None
    differences: Mapping[str, tuple[Any, Any]]
    """The fields in which what is in force and what the file says differ."""
    notes: Sequence[str]
    runs_before: Sequence[datetime]
    runs_after: Sequence[datetime]

    @property
    def name(self) -> str:
        return self.definition.name


@dataclass(frozen=True, slots=True)
class Planned:
    """What bringing some files into force would do."""

    at: datetime
    changes: Sequence[Change]
    """In the order in which they are made: what others run as a step first."""
    others: Sequence[Schedule]
    """Declared by a file once, and not by these."""
    prune: bool = False

    @property
    def deleted(self) -> Sequence[Schedule]:
        """The others, if they are to go: those that run others first."""
        if not self.prune:
            return ()
        by_name = {each.name: each for each in self.others}
        return [by_name[each.name] for each in reversed(those_needed_first(each.definition for each in self.others))]

    @property
    def changes_something(self) -> bool:
        return bool(self.deleted) or any(change.effect in _DOES_SOMETHING for change in self.changes)


async def plan(
    database: Database,
    files: Sequence[Declared],
    resolve: Callable[[Definition], Definition],
    now: datetime,
    *,
    prune: bool = False,
) -> Planned:
    """Check every definition and find out what it would change. Nothing is changed."""
    wanted = {each.name: _resolved(each, resolve) for each in files}

    async def look(connection: Connection) -> tuple[dict[str, Schedule], list[Schedule], dict[str, Plan], set[str]]:
        return (
            await schedules.named_any(connection, wanted),
            await schedules.other_from_files(connection, wanted, MAX_OTHERS),
            await schedules.plans_with_schedules(connection),
            await schedules.known(connection, {name for new in wanted.values() for name in new.plan.targets(SCHEDULE)}),
        )

    present, others, plans, known = await database.transaction(look)
    effects = {name: definitions.effect_of(present.get(name), new.to_fields()) for name, new in wanted.items()}
    plans |= {name: new.plan for name, new in wanted.items() if effects[name] != "kept"}
    known |= wanted.keys()
    if prune:
        known -= {each.name for each in others}
    for each in files:
        _check_steps(each, wanted[each.name], plans, known)
        if effects[each.name] in _DOES_SOMETHING:  # what is in force already may well be over by now
            _check_runs(each, now)
    by_name = {each.name: each for each in files}
    found = [
        _change(by_name[new.name], new, effects[new.name], present.get(new.name), now)
        for new in those_needed_first(wanted.values())
    ]
    return Planned(now, found, others, prune)


async def carry_out(database: Database, planned: Planned, author: Author) -> None:
    """Do what was planned, in one transaction; refused if something has changed since."""
    ids = {change.name: new_id() for change in planned.changes}
    await database.transaction(lambda connection: carry_out_within(connection, planned, author, ids))


async def carry_out_within(connection: Connection, planned: Planned, author: Author, ids: Mapping[str, UUID]) -> None:
    """As `carry_out`, as part of a larger change; the ids are for schedules that come to be."""
    deleted = planned.deleted
    for change in planned.changes:  # before any schedule is held: everybody takes these locks in this order
        await schedules.lock_circles(connection, change.definition)
    present = await schedules.locked_any(connection, [*ids, *(each.name for each in deleted)])
    if _is_done(planned, present):
        return  # by ourselves, and only the reply was lost; or by somebody who wanted the same
    _refuse_changed_since(planned, present)
    for change in planned.changes:
        await definitions.declare_within(connection, change.definition, author, ids[change.name])
    for each in deleted:
        await definitions.delete_within(connection, each.name, author)


def those_needed_first(wanted: Iterable[Definition]) -> Sequence[Definition]:
    """In an order in which each comes after those it runs as a step."""
    by_name = {each.name: each for each in wanted}
    ordered: dict[str, Definition] = {}

    def place(each: Definition, above: tuple[str, ...]) -> None:
        if each.name in ordered:
            return
        for target in sorted(each.plan.targets(SCHEDULE)):
            if target in above or target == each.name:
                path = " → ".join((*above, each.name, target))
                raise Invalid(f"runs itself: {path}", field="steps", remedy="break the circle")
            if target in by_name:
                place(by_name[target], (*above, each.name))
        ordered[each.name] = each

    for each in by_name.values():
        place(each, ())
    return tuple(ordered.values())


# --- inside ---------------------------------------------------------------------------------------------------------


def _resolved(each: Declared, resolve: Callable[[Definition], Definition]) -> Definition:
    try:
        return resolve(each.definition)
    except Invalid as error:
        raise each.refused(error) from error


def _check_runs(each: Declared, now: datetime) -> None:
    try:
        check_runs(each.definition.trigger, now)
    except Invalid as error:
        raise each.refused(error) from error


def _check_steps(each: Declared, new: Definition, plans: Mapping[str, Plan], known: set[str]) -> None:
    """That the schedules it runs are there, or will be, and lead to no circle."""
    try:
        for _, _, step in new.plan.numbered():
            if step.kind == SCHEDULE and step.target not in known:
                raise Invalid(
                    f"there is no schedule named {step.target!r}",
                    field=f"steps.{step.name}",
                    remedy="declare it too, or correct the name",
                )
        refuse_cycles(new.name, new.plan, plans)
    except Invalid as error:
        raise each.refused(error) from error


def _change(each: Declared, new: Definition, effect: Effect, present: Schedule | None, now: datetime) -> Change:
    if present is None:
        return Change(each, new, effect, None, {}, (), (), new.trigger.preview(now, RUNS_SHOWN))
    differing = changes(present.definition.to_fields(), new.to_fields())
    before = present.definition.trigger.preview(now, RUNS_SHOWN, str(present.id)) if present.enabled else []
    after = new.trigger.preview(now, RUNS_SHOWN, str(present.id)) if present.enabled else []
    return Change(
        each, new, effect, present, differing, _notes(effect, present), before, before if effect == "kept" else after
    )


def _notes(effect: Effect, present: Schedule) -> list[str]:
    notes = []
    if not present.enabled:
        notes.append("disabled, and stays so")
    if effect == "kept":
        notes.append("changed by an operator, and the file says nothing new: it stays as it is")
    elif effect == "changed" and present.declared not in (None, present.definition.to_fields()):
        notes.append("changed by an operator since it was declared: the file replaces that")
    if present.origin != "file" and effect != "kept":
        made = "declared in code" if present.origin == "code" else "made by hand"
        notes.append(f"{made}: from now on the file keeps it")
    return notes


def _is_done(planned: Planned, present: Mapping[str, Schedule]) -> bool:
    """Whether everything is as the plan wants it. A plan that changes nothing may still have something to note."""
    if any(each.name in present for each in planned.deleted):
        return False
    for change in planned.changes:
        there, fields = present.get(change.name), change.definition.to_fields()
        if change.effect != "kept" and (there is None or fields != there.declared):
            return False
        if change.effect in _DOES_SOMETHING and (there is None or fields != there.definition.to_fields()):
            return False
    return True


def _refuse_changed_since(planned: Planned, present: Mapping[str, Schedule]) -> None:
    seen = {change.name: change.present for change in planned.changes}
    seen |= {each.name: each for each in planned.deleted}
    for name, before in seen.items():
        there = present.get(name)
        if (there and (there.id, there.version)) != (before and (before.id, before.version)):
            raise Conflict(f"{name!r} was changed while this was planned", remedy="plan again, and look")
