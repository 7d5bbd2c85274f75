"""Plan and apply of the schedules, manifests and groups in definition files.

Planning changes nothing. Applying is one transaction. It raises `Conflict` if a definition has changed since the plan
was made, so that no change is lost and nothing happens that the plan did not show. Definitions that no file declares
any more are listed; they are deleted only with ``prune``, and only if a file declared them. The options of a group in a
file are set each time the file is applied; other options remain. Groups are not deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from tenuto.definitions import manifest_definitions
from tenuto.definitions.definition_files import DeclaredGroup, DeclaredManifest, DeclaredSchedule
from tenuto.definitions.versioned_definitions import (
    CHANGING_EFFECTS,
    ChangeContext,
    Effect,
    VersionedDefinitions,
    declaration_effect,
)
from tenuto.errors import Conflict, Invalid
from tenuto.model.definitions.dependency_order import check_no_cycle, sort_definitions
from tenuto.model.definitions.manifests import Manifest
from tenuto.model.definitions.schedules import ScheduleDefinition, changed_fields
from tenuto.model.triggers import Trigger, check_has_run_after
from tenuto.model.triggers.descriptions import format_duration
from tenuto.model.triggers.trigger import ClockTrigger
from tenuto.postgres.database import Connection, Database
from tenuto.store.definitions import manifests
from tenuto.store.definitions.definition_rows import Definition, StoredDefinition
from tenuto.store.definitions.manifests import GroupSettings, StoredManifest
from tenuto.store.definitions.schedules import Schedule

PREVIEW_RUN_COUNT = 3
MAX_UNDECLARED = 10_000


class DeclaredEntry(Protocol):
    """A definition of a file with its location."""

    @property
    def name(self) -> str: ...
    def locate_error(self, error: Invalid) -> Invalid: ...


@contextmanager
def locating_errors(declared: DeclaredEntry) -> Iterator[None]:
    """Add the location of the entry to errors raised within the block."""
    try:
        yield
    except Invalid as error:
        raise declared.locate_error(error) from error


F = TypeVar("F", bound=DeclaredEntry)
D = TypeVar("D", bound=Definition)
S = TypeVar("S", bound=StoredDefinition[Any])


@dataclass(frozen=True, slots=True)
class PlannedChange(Generic[F, D, S]):
    """The effect of one definition of the files."""

    entry: F
    definition: D
    effect: Effect
    current: S | None
    differences: Mapping[str, tuple[Any, Any]]
    """The fields that differ, as (stored, declared)."""
    notes: Sequence[str]
    runs_before: Sequence[datetime]
    runs_after: Sequence[datetime]

    @property
    def key(self) -> str:
        return self.definition.key

    @property
    def fields(self) -> Mapping[str, Any]:
        return self.definition.to_fields()


ScheduleChange = PlannedChange[DeclaredSchedule, ScheduleDefinition, Schedule]
ManifestChange = PlannedChange[DeclaredManifest, Manifest, StoredManifest]


@dataclass(frozen=True, slots=True)
class DefinitionPlan(Generic[F, D, S]):
    """Changes that applying the schedules or the manifests of definition files would make."""

    changes: Sequence[PlannedChange[F, D, S]] = ()
    """In the order of application: definitions that others refer to come first."""
    undeclared: Sequence[S] = ()
    """Declared by a file before, and not by these files."""
    deleted: Sequence[S] = ()
    """With ``prune``: the undeclared definitions, those that refer to others first."""

    @property
    def has_changes(self) -> bool:
        return bool(self.deleted) or any(change.effect in CHANGING_EFFECTS for change in self.changes)


SchedulePlan = DefinitionPlan[DeclaredSchedule, ScheduleDefinition, Schedule]
ManifestPlan = DefinitionPlan[DeclaredManifest, Manifest, StoredManifest]


async def plan_definitions(
    kind: VersionedDefinitions[D, S],
    database: Database,
    declared: Sequence[F],
    resolve: Callable[[F], D],
    now: datetime,
    *,
    prune: bool = False,
) -> DefinitionPlan[F, D, S]:
    """Check every definition and return what it would change."""
    wanted: dict[str, tuple[F, D]] = {}
    for entry in declared:
        with locating_errors(entry):
            resolved = resolve(entry)
            wanted[resolved.key] = entry, resolved
    referenced = {key for _, new in wanted.values() for key in new.references}

    async def read_state(connection: Connection) -> tuple[dict[str, S], list[S], dict[str, Collection[str]]]:
        return (
            await kind.rows.load_many(connection, {*wanted, *referenced}),
            await kind.rows.list_others_from_files(connection, wanted, MAX_UNDECLARED),
            await kind.load_references(connection),
        )

    current, undeclared, references = await database.transaction(read_state)
    known = current.keys() | wanted.keys()
    if prune:
        known -= {each.key for each in undeclared}
    effects = {key: declaration_effect(current.get(key), new.to_fields()) for key, (_, new) in wanted.items()}
    references |= {key: new.references for key, (_, new) in wanted.items() if effects[key] != "kept"}
    for key, (entry, new) in wanted.items():
        before, changes = current.get(key), effects[key] in CHANGING_EFFECTS
        with locating_errors(entry):
            if missing := sorted(set(new.references) - known):
                raise kind.missing_reference(new, missing[0], "declare it too, or correct the name")
            check_no_cycle(new, references)
            if changes:
                kind.check_names(new, before.definition if before else None)
            if before is None or (changes and kind.timing_changed(before, new)):
                check_has_run_after(new.trigger, now)  # an existing trigger may have ended and still be edited
    changed = [
        _plan_change(wanted[new.key][0], new, effects[new.key], current.get(new.key), now)
        for new in sort_definitions(new for _, new in wanted.values())
    ]
    by_key = {each.key: each for each in undeclared} if prune else {}
    deleted = [by_key[each.key] for each in reversed(sort_definitions(each.definition for each in by_key.values()))]
    return DefinitionPlan(changed, undeclared, deleted)


async def apply_plan_in_tx(
    kind: VersionedDefinitions[D, S],
    connection: Connection,
    planned: DefinitionPlan[F, D, S],
    context: ChangeContext,
    ids: Mapping[str, UUID],
) -> None:
    """Apply a plan, or raise `Conflict` if a definition has changed since. ``ids`` are for new definitions."""
    # Before any row is locked: all processes take these locks in this order.
    await kind.lock_reference_changes(connection, [change.definition for change in planned.changes])
    current = await kind.rows.lock_many(connection, [*ids, *(each.key for each in planned.deleted)])
    if _is_applied(planned, current):
        return  # by an earlier attempt whose acknowledgement was lost, or by another caller with the same plan
    _check_unchanged(planned, current)
    for change in planned.changes:
        await kind.declare_in_tx(connection, change.definition, context, ids[change.key])
    for each in planned.deleted:
        await kind.delete_in_tx(connection, each.key, context)


def _plan_change(entry: F, new: D, effect: Effect, current: S | None, now: datetime) -> PlannedChange[F, D, S]:
    if current is None:
        runs_after, notes = new.trigger.preview(now, PREVIEW_RUN_COUNT), _jitter_notes(new.trigger)
        return PlannedChange(
            entry, new, effect, None, differences={}, notes=notes, runs_before=(), runs_after=runs_after
        )

    def preview(trigger: Trigger) -> Sequence[datetime]:
        return trigger.preview(now, PREVIEW_RUN_COUNT, str(current.id)) if current.enabled else ()

    runs_before = preview(current.trigger)
    return PlannedChange(
        entry,
        new,
        effect,
        current,
        differences=changed_fields(current.fields, new.to_fields()),
        notes=_notes(effect, current),
        runs_before=runs_before,
        runs_after=runs_before if effect == "kept" else preview(new.trigger),
    )


def _jitter_notes(trigger: Trigger) -> list[str]:
    """Explain that a preview is without jitter: the jitter depends on the id, which a new definition does not have."""
    if not isinstance(trigger, ClockTrigger) or not trigger.limits.jitter:
        return []
    jitter = format_duration(trigger.limits.jitter, one="1 ")
    return [f"after creation each run is up to {jitter} later than shown (jitter)"]


def _notes(effect: Effect, current: StoredDefinition[Any]) -> list[str]:
    notes = []
    if not current.enabled:
        notes.append("disabled, and remains disabled")
    if effect == "kept":
        notes.append("changed by an operator, and the declaration is unchanged: kept as it is")
    elif effect == "changed" and current.declared not in (None, current.fields):
        notes.append("changed by an operator since it was declared: the file replaces that change")
    if current.origin != "file" and effect != "kept":
        origin = "declared in code" if current.origin == "code" else "created by an operator"
        notes.append(f"{origin}: from now on managed by the file")
    return notes


def _is_applied(planned: DefinitionPlan[Any, Any, Any], current: Mapping[str, StoredDefinition[Any]]) -> bool:
    """Return whether the database is in the planned state, including the declarations that the plan records."""
    if any(each.key in current for each in planned.deleted):
        return False
    for change in planned.changes:
        stored = current.get(change.key)
        if change.effect != "kept" and (stored is None or change.fields != stored.declared):
            return False
        if change.effect in CHANGING_EFFECTS and (stored is None or change.fields != stored.fields):
            return False
    return True


def _check_unchanged(planned: DefinitionPlan[Any, Any, Any], current: Mapping[str, StoredDefinition[Any]]) -> None:
    """Raise `Conflict` if a definition has changed since the plan was made."""
    planned_from: dict[str, StoredDefinition[Any] | None] = {change.key: change.current for change in planned.changes}
    for name, before in (planned_from | {each.key: each for each in planned.deleted}).items():
        stored = current.get(name)
        if (stored and (stored.id, stored.version)) != (before and (before.id, before.version)):
            raise Conflict(
                f"{name!r} has changed since the plan was made",
                code="definition.changed_since_plan",
                remedy="make a new plan and review it",
            )


# --- groups ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupChange:
    """The effect of one group of the files."""

    entry: DeclaredGroup
    effect: Effect
    current: GroupSettings | None
    differences: Mapping[str, tuple[Any, Any]]

    @property
    def key(self) -> str:
        return self.entry.name


async def plan_groups(database: Database, declared: Sequence[DeclaredGroup]) -> list[GroupChange]:
    """Return what the groups of the files would change."""

    async def plan(connection: Connection) -> list[GroupChange]:
        return [_plan_group(each, await manifests.load_group(connection, each.name)) for each in declared]

    return await database.transaction(plan)


async def apply_groups_in_tx(connection: Connection, planned: Sequence[GroupChange], context: ChangeContext) -> None:
    for group in planned:
        if group.effect in CHANGING_EFFECTS:
            await manifest_definitions.change_group_in_tx(connection, group.key, group.entry.options, context)


def _plan_group(each: DeclaredGroup, current: GroupSettings | None) -> GroupChange:
    before = current or GroupSettings()
    differing = {
        field: (getattr(before, field), value)
        for field, value in each.options.items()
        if getattr(before, field) != value
    }
    effect: Effect = "unchanged" if not differing else "created" if current is None else "changed"
    return GroupChange(each, effect, current, differing)
