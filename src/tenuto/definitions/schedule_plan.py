"""Plan and apply of schedules in definition files.

Planning changes nothing. Applying is one transaction. It raises `Conflict` if a definition has changed since the plan
was made, so that no change is lost and nothing happens that the plan did not show. Schedules that no file declares any
more are listed; they are deleted only with ``prune``, and only if a file declared them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tenuto.definitions import schedule_definitions
from tenuto.definitions.declarations import (
    CHANGING_EFFECTS,
    MAX_UNDECLARED,
    PlannedChange,
    check_unchanged_since_plan,
    declaration_effect,
    is_plan_applied,
    locating_errors,
    plan_change,
)
from tenuto.definitions.definition_files import DeclaredSchedule
from tenuto.definitions.versioned_definitions import ChangeContext
from tenuto.errors import Invalid
from tenuto.model.schedules import (
    Plan,
    ScheduleDefinition,
    check_no_schedule_cycle,
    check_schedule_names,
    sort_schedules_by_dependency,
)
from tenuto.model.steps import SCHEDULE
from tenuto.model.triggers import check_has_run_after
from tenuto.postgres.database import Connection, Database
from tenuto.store import schedules
from tenuto.store.schedules import Schedule

ScheduleChange = PlannedChange[DeclaredSchedule, ScheduleDefinition, Schedule]
"""The effect of one schedule of the files."""


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """What applying definition files would change."""

    at: datetime
    changes: Sequence[ScheduleChange]
    """In the order of application: schedules that others run as a step come first."""
    undeclared: Sequence[Schedule]
    """Declared by a file before, and not by these files."""
    prune: bool = False

    @property
    def deleted(self) -> Sequence[Schedule]:
        """With ``prune``: the undeclared schedules, those that run others first."""
        if not self.prune:
            return ()
        by_name = {each.name: each for each in self.undeclared}
        return [
            by_name[each.name]
            for each in reversed(sort_schedules_by_dependency(each.definition for each in self.undeclared))
        ]

    @property
    def has_changes(self) -> bool:
        return bool(self.deleted) or any(change.effect in CHANGING_EFFECTS for change in self.changes)


async def plan_schedules(
    database: Database,
    declared: Sequence[DeclaredSchedule],
    resolve: Callable[[ScheduleDefinition], ScheduleDefinition],
    now: datetime,
    *,
    prune: bool = False,
) -> SchedulePlan:
    """Check every definition and return what it would change."""
    wanted = {}
    for each in declared:
        with locating_errors(each):
            wanted[each.name] = resolve(each.definition)

    async def read_state(
        connection: Connection,
    ) -> tuple[dict[str, Schedule], list[Schedule], dict[str, Plan], set[str]]:
        return (
            await schedules.load_schedules(connection, wanted),
            await schedules.list_others_from_files(connection, wanted, MAX_UNDECLARED),
            await schedules.load_plans_with_schedule_steps(connection),
            await schedules.find_existing_names(
                connection, {name for new in wanted.values() for name in new.plan.targets_of_kind(SCHEDULE)}
            ),
        )

    current, undeclared, plans, known = await database.transaction(read_state)
    effects = {name: declaration_effect(current.get(name), new.to_fields()) for name, new in wanted.items()}
    plans |= {name: new.plan for name, new in wanted.items() if effects[name] != "kept"}
    known |= wanted.keys()
    if prune:
        known -= {each.name for each in undeclared}
    for each in declared:
        with locating_errors(each):
            _check_steps(wanted[each.name], plans, known)
            before, after = current.get(each.name), wanted[each.name]
            if effects[each.name] in CHANGING_EFFECTS:
                check_schedule_names(after, before.definition if before else None)
            if before is None or (
                effects[each.name] in CHANGING_EFFECTS and schedule_definitions.timing_changed(before, after)
            ):
                check_has_run_after(after.trigger, now)  # an existing trigger may have ended and still be edited
    by_name = {each.name: each for each in declared}
    changes = []
    for new in sort_schedules_by_dependency(wanted.values()):
        stored, effect = current.get(new.name), effects[new.name]
        changes.append(plan_change(by_name[new.name], new, effect, stored, now))
    return SchedulePlan(now, changes, undeclared, prune)


async def apply_plan_in_tx(
    connection: Connection, planned: SchedulePlan, context: ChangeContext, ids: Mapping[str, UUID]
) -> None:
    """Apply a plan, or raise `Conflict` if a definition has changed since. ``ids`` are for new schedules."""
    deleted = planned.deleted
    for change in planned.changes:  # before any row is locked: all processes take these locks in this order
        await schedules.lock_cycle_check(connection, change.definition)
    current = await schedules.lock_schedules(connection, [*ids, *(each.name for each in deleted)])
    if is_plan_applied(planned.changes, (each.name for each in deleted), current):
        return  # by an earlier attempt whose acknowledgement was lost, or by another caller with the same plan
    check_unchanged_since_plan(planned.changes, {each.name: each for each in deleted}, current)
    for change in planned.changes:
        await schedule_definitions.declare_in_tx(connection, change.definition, context, ids[change.key])
    for each in deleted:
        await schedule_definitions.delete_in_tx(connection, each.name, context)


def _check_steps(new: ScheduleDefinition, plans: Mapping[str, Plan], known: set[str]) -> None:
    """Check that schedules which are steps of this one exist or are declared, and form no cycle."""
    for _, _, step in new.plan.enumerate_steps():
        if step.kind == SCHEDULE and step.target not in known:
            raise Invalid(
                f"there is no schedule named {step.target!r}, which is a step",
                code="schedule.step.schedule_not_found",
                field=f"steps.{step.name}",
                remedy="declare it too, or correct the name",
            )
    check_no_schedule_cycle(new.name, new.plan, plans)
