"""Plan and apply of manifests and groups in definition files.

As with schedules, planning changes nothing, and applying raises `Conflict` if a definition has changed since. The
options of a group in a file are set each time the file is applied; other options remain. Groups are not deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.definitions import manifest_definitions
from tenuto.definitions.declarations import (
    CHANGING_EFFECTS,
    MAX_UNDECLARED,
    Effect,
    PlannedChange,
    check_unchanged_since_plan,
    declaration_effect,
    is_plan_applied,
    locating_errors,
    plan_change,
)
from tenuto.definitions.definition_files import DeclaredGroup, DeclaredManifest
from tenuto.definitions.manifest_definitions import GROUP_DEFAULTS
from tenuto.definitions.versioned_definitions import ChangeContext
from tenuto.errors import Invalid
from tenuto.model.manifests import Manifest, check_manifest_name, check_no_manifest_cycle, sort_manifests_by_dependency
from tenuto.model.triggers import check_has_run_after
from tenuto.postgres.database import Connection, Database
from tenuto.store import manifests
from tenuto.store.manifests import StoredManifest

Record = dict[str, Any]

ManifestChange = PlannedChange[DeclaredManifest, Manifest, StoredManifest]
"""The effect of one manifest of the files."""


@dataclass(frozen=True, slots=True)
class GroupChange:
    """The effect of one group of the files."""

    entry: DeclaredGroup
    effect: Effect
    current: Record | None
    differences: Mapping[str, tuple[Any, Any]]

    @property
    def key(self) -> str:
        return self.entry.name


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    """What applying the manifests and groups of definition files would change."""

    changes: Sequence[ManifestChange] = ()
    """In the order of application: manifests that others depend on come first."""
    groups: Sequence[GroupChange] = ()
    undeclared: Sequence[StoredManifest] = ()
    """Declared by a file before, and not by these files."""
    prune: bool = False

    @property
    def deleted(self) -> Sequence[StoredManifest]:
        """With ``prune``: the undeclared manifests, those that depend on others first."""
        if not self.prune:
            return ()
        by_id = {each.external_id: each for each in self.undeclared}
        ordered = sort_manifests_by_dependency(each.manifest for each in self.undeclared)
        return [by_id[each.external_id] for each in reversed(ordered)]

    @property
    def has_changes(self) -> bool:
        effects = [*(each.effect for each in self.changes), *(each.effect for each in self.groups)]
        return bool(self.deleted) or any(effect in CHANGING_EFFECTS for effect in effects)


async def plan_manifests(
    database: Database,
    declared: Sequence[DeclaredManifest],
    groups: Sequence[DeclaredGroup],
    resolve: Callable[[DeclaredManifest], Manifest],
    now: datetime,
    *,
    prune: bool = False,
) -> ManifestPlan:
    """Check every definition and return what it would change."""
    wanted = {}
    for each in declared:
        with locating_errors(each):
            wanted[each.external_id] = resolve(each)
    parents_wanted = {new.depends_on for new in wanted.values() if new.depends_on is not None}

    async def read_state(
        connection: Connection,
    ) -> tuple[dict[str, StoredManifest], list[StoredManifest], dict[str, str | None], dict[str, Record | None]]:
        return (
            await manifests.load_manifests(connection, {*wanted, *parents_wanted}),
            await manifests.list_others_from_files(connection, wanted, MAX_UNDECLARED),
            await manifests.load_dependencies(connection),
            {each.name: await manifests.load_group(connection, each.name) for each in groups},
        )

    current, undeclared, parents, groups_before = await database.transaction(read_state)
    effects = {id: declaration_effect(current.get(id), new.to_fields()) for id, new in wanted.items()}
    parents |= {id: new.depends_on for id, new in wanted.items() if effects[id] != "kept"}
    known = current.keys() | wanted.keys()
    if prune:
        known -= {each.external_id for each in undeclared}
    for each in declared:
        before, after = current.get(each.external_id), wanted[each.external_id]
        with locating_errors(each):
            _check_dependency(after, parents, known)
            if effects[each.external_id] in CHANGING_EFFECTS:
                check_manifest_name(after, before.manifest if before else None)
            if before is None or (
                effects[each.external_id] in CHANGING_EFFECTS and manifest_definitions.timing_changed(before, after)
            ):
                check_has_run_after(after.trigger, now)  # an existing trigger may have ended and still be edited
    by_id = {each.external_id: each for each in declared}
    changes = []
    for new in sort_manifests_by_dependency(wanted.values()):
        stored, effect = current.get(new.external_id), effects[new.external_id]
        changes.append(plan_change(by_id[new.external_id], new, effect, stored, now))
    return ManifestPlan(changes, [_plan_group(each, groups_before[each.name]) for each in groups], undeclared, prune)


async def apply_plan_in_tx(
    connection: Connection, planned: ManifestPlan, context: ChangeContext, ids: Mapping[str, UUID]
) -> None:
    """Apply a plan, or raise `Conflict` if a definition has changed since. ``ids`` are for new manifests."""
    deleted = planned.deleted
    await manifest_definitions.lock_dependency_changes(connection, [change.definition for change in planned.changes])
    current = await manifests.lock_manifests(connection, [*ids, *(each.external_id for each in deleted)])
    gone = {each.external_id: each for each in deleted}
    # If the plan is already applied, an earlier attempt committed it and lost the acknowledgement.
    if not is_plan_applied(planned.changes, gone, current):
        check_unchanged_since_plan(planned.changes, gone, current)
        for change in planned.changes:
            await manifest_definitions.declare_in_tx(connection, change.definition, context, ids[change.key])
        for each in deleted:
            await manifest_definitions.delete_in_tx(connection, each.external_id, context)
    for group in planned.groups:
        if group.effect in CHANGING_EFFECTS:
            await manifest_definitions.change_group_in_tx(
                connection, group.key, group.entry.options, context.now, context.actor
            )


def _check_dependency(new: Manifest, parents: Mapping[str, str | None], known: set[str]) -> None:
    """Check that the manifest it depends on exists or is declared, and that there is no cycle."""
    if new.depends_on is not None and new.depends_on not in known:
        raise Invalid(
            f"there is no manifest {new.depends_on!r} to depend on",
            code="manifest.depends_on.not_found",
            field="depends_on",
            remedy="declare it too, or correct the name",
        )
    check_no_manifest_cycle(new.external_id, new.depends_on, parents)


def _plan_group(each: DeclaredGroup, current: Record | None) -> GroupChange:
    before = {**GROUP_DEFAULTS, **(current or {})}
    differing = {field: (before[field], value) for field, value in each.options.items() if before[field] != value}
    effect: Effect = "unchanged" if not differing else "created" if current is None else "changed"
    return GroupChange(each, effect, current, differing)
