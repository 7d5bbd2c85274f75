"""Manifests and groups of files: what bringing them into force would change, and doing exactly that.

As with schedules, looking changes nothing, and doing is refused if something has changed since. What a file says of a
group holds each time it is applied; what it does not say of it stays. Groups are not deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.definitions import manifest_definitions
from tenuto.definitions.declarations import (
    DOES_SOMETHING,
    MAX_OTHERS,
    Change,
    Effect,
    blaming,
    change_of,
    effect_of,
    is_done,
    refuse_changed_since,
)
from tenuto.definitions.manifest_definitions import UNSAID
from tenuto.definitions.manifest_files import DeclaredGroup, DeclaredManifest
from tenuto.definitions.versioned import Author
from tenuto.errors import Invalid
from tenuto.model.manifests import Manifest, check_name, refuse_circles, those_needed_first
from tenuto.model.triggers import check_runs
from tenuto.postgres.database import Connection, Database
from tenuto.store import manifests
from tenuto.store.manifests import StoredManifest

Record = dict[str, Any]

ManifestChange = Change[DeclaredManifest, Manifest, StoredManifest]
"""What would become of one manifest of the files."""


@dataclass(frozen=True, slots=True)
class GroupChange:
    """What would become of one group of the files."""

    declared: DeclaredGroup
    effect: Effect
    present: Record | None
    differences: Mapping[str, tuple[Any, Any]]

    @property
    def key(self) -> str:
        return self.declared.name


@dataclass(frozen=True, slots=True)
class PlannedManifests:
    """What bringing the manifests and groups of some files into force would do."""

    changes: Sequence[ManifestChange] = ()
    """In the order in which they are made: what others run after first."""
    groups: Sequence[GroupChange] = ()
    others: Sequence[StoredManifest] = ()
    """Declared by a file once, and not by these."""
    prune: bool = False

    @property
    def deleted(self) -> Sequence[StoredManifest]:
        """The others, if they are to go: those that run after others first."""
        if not self.prune:
            return ()
        by_id = {each.external_id: each for each in self.others}
        ordered = those_needed_first(each.manifest for each in self.others)
        return [by_id[each.external_id] for each in reversed(ordered)]

    @property
    def changes_something(self) -> bool:
        effects = [*(each.effect for each in self.changes), *(each.effect for each in self.groups)]
        return bool(self.deleted) or any(effect in DOES_SOMETHING for effect in effects)


async def plan(
    database: Database,
    files: Sequence[DeclaredManifest],
    groups: Sequence[DeclaredGroup],
    resolve: Callable[[DeclaredManifest], Manifest],
    now: datetime,
    *,
    prune: bool = False,
) -> PlannedManifests:
    """Check every definition and find out what it would change. Nothing is changed."""
    wanted = {}
    for each in files:
        with blaming(each):
            wanted[each.external_id] = resolve(each)
    parents_wanted = {new.depends_on for new in wanted.values() if new.depends_on is not None}

    async def look(
        connection: Connection,
    ) -> tuple[dict[str, StoredManifest], list[StoredManifest], dict[str, str | None], dict[str, Record | None]]:
        return (
            await manifests.named_any(connection, {*wanted, *parents_wanted}),
            await manifests.other_from_files(connection, wanted, MAX_OTHERS),
            await manifests.parents(connection),
            {each.name: await manifests.group(connection, each.name) for each in groups},
        )

    present, others, parents, standing = await database.transaction(look)
    effects = {id: effect_of(present.get(id), new.to_fields()) for id, new in wanted.items()}
    parents |= {id: new.depends_on for id, new in wanted.items() if effects[id] != "kept"}
    known = present.keys() | wanted.keys()
    if prune:
        known -= {each.external_id for each in others}
    for each in files:
        before, after = present.get(each.external_id), wanted[each.external_id]
        with blaming(each):
            _check_what_it_runs_after(after, parents, known)
            if effects[each.external_id] in DOES_SOMETHING:
                check_name(after, before.manifest if before else None)
            if before is None or (
                effects[each.external_id] in DOES_SOMETHING and manifest_definitions.retimed(before, after)
            ):
                check_runs(after.trigger, now)  # what is in force already may well be over by now, and be edited
    by_id = {each.external_id: each for each in files}
    found = []
    for new in those_needed_first(wanted.values()):
        there, effect = present.get(new.external_id), effects[new.external_id]
        found.append(change_of(by_id[new.external_id], new, effect, there, now))
    return PlannedManifests(found, [_group(each, standing[each.name]) for each in groups], others, prune)


async def carry_out_within(
    connection: Connection, planned: PlannedManifests, author: Author, ids: Mapping[str, UUID]
) -> None:
    """Do what was planned; refused if something has changed since. The ids are for manifests that come to be."""
    deleted = planned.deleted
    await manifest_definitions.one_change_of_order(connection, [change.definition for change in planned.changes])
    present = await manifests.locked_any(connection, [*ids, *(each.external_id for each in deleted)])
    gone = {each.external_id: each for each in deleted}
    if not is_done(planned.changes, gone, present):  # else by ourselves, and only the reply was lost
        refuse_changed_since(planned.changes, gone, present)
        for change in planned.changes:
            await manifest_definitions.declare_within(connection, change.definition, author, ids[change.key])
        for each in deleted:
            await manifest_definitions.delete_within(connection, each.external_id, author)
    for group in planned.groups:
        if group.effect in DOES_SOMETHING:
            await manifest_definitions.change_group_within(
                connection, group.key, group.declared.said, author.now, author.actor
            )


# --- inside ---------------------------------------------------------------------------------------------------------


def _check_what_it_runs_after(new: Manifest, parents: Mapping[str, str | None], known: set[str]) -> None:
    """That the manifest it runs after is there, or will be, and leads to no circle."""
    if new.depends_on is not None and new.depends_on not in known:
        raise Invalid(
            f"there is no manifest {new.depends_on!r}",
            field="depends_on",
            remedy="declare it too, or correct the name",
        )
    refuse_circles(new.external_id, new.depends_on, parents)


def _group(each: DeclaredGroup, present: Record | None) -> GroupChange:
    before = {**UNSAID, **(present or {})}
    differing = {field: (before[field], value) for field, value in each.said.items() if before[field] != value}
    effect: Effect = "unchanged" if not differing else "created" if present is None else "changed"
    return GroupChange(each, effect, present, differing)
