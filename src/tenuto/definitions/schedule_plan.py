"""Files of definitions: what bringing them into force would change, and doing exactly that.

Looking changes nothing. Doing is one transaction: all of it, or none. It is done only if everything is still as it was
when the plan was made, so that nobody's change of the meantime is lost and nothing happens that was not shown. What no
file declares any more is named; it is deleted only if that was asked for, and only if a file had declared it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tenuto.definitions import schedule_definitions
from tenuto.definitions.declarations import (
    DOES_SOMETHING,
    MAX_OTHERS,
    Change,
    blaming,
    change_of,
    effect_of,
    is_done,
    refuse_changed_since,
)
from tenuto.definitions.schedule_files import Declared
from tenuto.definitions.versioned import Author
from tenuto.errors import Invalid
from tenuto.model.schedules import Definition, Plan, check_names, refuse_cycles, those_needed_first
from tenuto.model.steps import SCHEDULE
from tenuto.model.triggers import check_runs
from tenuto.postgres.database import Connection, Database
from tenuto.store import schedules
from tenuto.store.schedules import Schedule

ScheduleChange = Change[Declared, Definition, Schedule]
"""What would become of one schedule of the files."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What bringing some files into force would do."""

    at: datetime
    changes: Sequence[ScheduleChange]
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
        return bool(self.deleted) or any(change.effect in DOES_SOMETHING for change in self.changes)


async def plan(
    database: Database,
    files: Sequence[Declared],
    resolve: Callable[[Definition], Definition],
    now: datetime,
    *,
    prune: bool = False,
) -> Planned:
    """Check every definition and find out what it would change. Nothing is changed."""
    wanted = {}
    for each in files:
        with blaming(each):
            wanted[each.name] = resolve(each.definition)

    async def look(connection: Connection) -> tuple[dict[str, Schedule], list[Schedule], dict[str, Plan], set[str]]:
        return (
            await schedules.named_any(connection, wanted),
            await schedules.other_from_files(connection, wanted, MAX_OTHERS),
            await schedules.plans_with_schedules(connection),
            await schedules.known(connection, {name for new in wanted.values() for name in new.plan.targets(SCHEDULE)}),
        )

    present, others, plans, known = await database.transaction(look)
    effects = {name: effect_of(present.get(name), new.to_fields()) for name, new in wanted.items()}
    plans |= {name: new.plan for name, new in wanted.items() if effects[name] != "kept"}
    known |= wanted.keys()
    if prune:
        known -= {each.name for each in others}
    for each in files:
        with blaming(each):
            _check_steps(wanted[each.name], plans, known)
            before, after = present.get(each.name), wanted[each.name]
            if effects[each.name] in DOES_SOMETHING:
                check_names(after, before.definition if before else None)
            if before is None or (effects[each.name] in DOES_SOMETHING and schedule_definitions.retimed(before, after)):
                check_runs(after.trigger, now)  # what is in force already may well be over by now, and be edited
    by_name = {each.name: each for each in files}
    found = []
    for new in those_needed_first(wanted.values()):
        there, effect = present.get(new.name), effects[new.name]
        found.append(change_of(by_name[new.name], new, effect, there, now))
    return Planned(now, found, others, prune)


async def carry_out_within(connection: Connection, planned: Planned, author: Author, ids: Mapping[str, UUID]) -> None:
    """Do what was planned; refused if something has changed since. The ids are for schedules that come to be."""
    deleted = planned.deleted
    for change in planned.changes:  # before any schedule is held: everybody takes these locks in this order
        await schedules.lock_circles(connection, change.definition)
    present = await schedules.locked_any(connection, [*ids, *(each.name for each in deleted)])
    if is_done(planned.changes, (each.name for each in deleted), present):
        return  # by ourselves, and only the reply was lost; or by somebody who wanted the same
    refuse_changed_since(planned.changes, {each.name: each for each in deleted}, present)
    for change in planned.changes:
        await schedule_definitions.declare_within(connection, change.definition, author, ids[change.key])
    for each in deleted:
        await schedule_definitions.delete_within(connection, each.name, author)


# --- inside ---------------------------------------------------------------------------------------------------------


def _check_steps(new: Definition, plans: Mapping[str, Plan], known: set[str]) -> None:
    """That the schedules it runs are there, or will be, and lead to no circle."""
    for _, _, step in new.plan.numbered():
        if step.kind == SCHEDULE and step.target not in known:
            raise Invalid(
                f"there is no schedule named {step.target!r}",
                field=f"steps.{step.name}",
                remedy="declare it too, or correct the name",
            )
    refuse_cycles(new.name, new.plan, plans)
