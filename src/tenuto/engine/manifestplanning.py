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

from tenuto.engine import manifesting
from tenuto.engine.definitions import Author, Effect
from tenuto.engine.manifesting import UNSAID
from tenuto.engine.planning import MAX_OTHERS, RUNS_SHOWN
from tenuto.errors import Conflict, Invalid
from tenuto.model.manifestfiles import DeclaredGroup, DeclaredManifest
from tenuto.model.manifests import Manifest, refuse_circles, those_needed_first
from tenuto.model.schedules import changes
from tenuto.model.triggers import check_runs
from tenuto.store import manifests
from tenuto.store.database import Connection, Database
from tenuto.store.manifests import StoredManifest

Record = dict[str, Any]

_DOES_SOMETHING: tuple[Effect, ...] = ("created", "changed")


@dataclass(frozen=True, slots=True)
class ManifestChange:
    """What would become of one manifest of the files."""

    declared: DeclaredManifest
    manifest: Manifest
    effect: Effect
    present: StoredManifest | None
    differences: Mapping[str, tuple[Any, Any]]
    notes: Sequence[str]
    runs_before: Sequence[datetime]
    runs_after: Sequence[datetime]

    @property
    def name(self) -> str:
        return self.manifest.external_id


@dataclass(frozen=True, slots=True)
class GroupChange:
    """What would become of one group of the files."""

    declared: DeclaredGroup
    effect: Effect
    present: Record | None
    differences: Mapping[str, tuple[Any, Any]]

    @property
    def name(self) -> str:
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
        return bool(self.deleted) or any(effect in _DOES_SOMETHING for effect in effects)


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
    wanted = {each.external_id: _resolved(each, resolve) for each in files}
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
    effects = {id: manifesting.effect_of(present.get(id), new.to_fields()) for id, new in wanted.items()}
    parents |= {id: new.depends_on for id, new in wanted.items() if effects[id] != "kept"}
    known = present.keys() | wanted.keys()
    if prune:
        known -= {each.external_id for each in others}
    for each in files:
        _check(each, wanted[each.external_id], parents, known)
        if effects[each.external_id] in _DOES_SOMETHING:  # what is in force already may well be over by now
            _check_runs(each, wanted[each.external_id], now)
    by_id = {each.external_id: each for each in files}
    found = [
        _change(by_id[new.external_id], new, effects[new.external_id], present.get(new.external_id), now)
        for new in those_needed_first(wanted.values())
    ]
    return PlannedManifests(found, [_group(each, standing[each.name]) for each in groups], others, prune)


async def carry_out_within(
    connection: Connection, planned: PlannedManifests, author: Author, ids: Mapping[str, UUID]
) -> None:
    """Do what was planned; refused if something has changed since. The ids are for manifests that come to be."""
    deleted = planned.deleted
    await manifesting.one_change_of_order(connection, [change.manifest for change in planned.changes])
    present = await manifests.locked_any(connection, [*ids, *(each.external_id for each in deleted)])
    if not _is_done(planned, present):  # else by ourselves, and only the reply was lost
        _refuse_changed_since(planned, present)
        for change in planned.changes:
            await manifesting.declare_within(connection, change.manifest, author, ids[change.name])
        for each in deleted:
            await manifesting.delete_within(connection, each.external_id, author)
    for group in planned.groups:
        if group.effect in _DOES_SOMETHING:
            await manifesting.change_group_within(connection, group.name, group.declared.said, author.now, author.actor)


# --- inside ---------------------------------------------------------------------------------------------------------


def _resolved(each: DeclaredManifest, resolve: Callable[[DeclaredManifest], Manifest]) -> Manifest:
    try:
        return resolve(each)
    except Invalid as error:
        raise each.refused(error) from error


def _check(each: DeclaredManifest, new: Manifest, parents: Mapping[str, str | None], known: set[str]) -> None:
    """That the manifest it runs after is there, or will be, and leads to no circle."""
    try:
        if new.depends_on is not None and new.depends_on not in known:
            raise Invalid(
                f"there is no manifest {new.depends_on!r}",
                field="depends_on",
                remedy="declare it too, or correct the name",
            )
        refuse_circles(new.external_id, new.depends_on, parents)
    except Invalid as error:
        raise each.refused(error) from error


def _check_runs(each: DeclaredManifest, new: Manifest, now: datetime) -> None:
    try:
        check_runs(new.trigger, now)
    except Invalid as error:
        raise each.refused(error) from error


def _change(
    each: DeclaredManifest, new: Manifest, effect: Effect, present: StoredManifest | None, now: datetime
) -> ManifestChange:
    if present is None:
        return ManifestChange(each, new, effect, None, {}, (), (), new.trigger.preview(now, RUNS_SHOWN))
    differing = changes(present.manifest.to_fields(), new.to_fields())
    before = present.manifest.trigger.preview(now, RUNS_SHOWN, str(present.id)) if present.enabled else []
    after = new.trigger.preview(now, RUNS_SHOWN, str(present.id)) if present.enabled else []
    return ManifestChange(
        each, new, effect, present, differing, _notes(effect, present), before, before if effect == "kept" else after
    )


def _notes(effect: Effect, present: StoredManifest) -> list[str]:
    notes = []
    if not present.enabled:
        notes.append("disabled, and stays so")
    if effect == "kept":
        notes.append("changed by an operator, and the file says nothing new: it stays as it is")
    elif effect == "changed" and present.declared not in (None, present.manifest.to_fields()):
        notes.append("changed by an operator since it was declared: the file replaces that")
    if present.origin != "file" and effect != "kept":
        made = "declared in code" if present.origin == "code" else "made by hand"
        notes.append(f"{made}: from now on the file keeps it")
    return notes


def _group(each: DeclaredGroup, present: Record | None) -> GroupChange:
    before = {**UNSAID, **(present or {})}
    differing = {field: (before[field], value) for field, value in each.said.items() if before[field] != value}
    effect: Effect = "unchanged" if not differing else "created" if present is None else "changed"
    return GroupChange(each, effect, present, differing)


def _is_done(planned: PlannedManifests, present: Mapping[str, StoredManifest]) -> bool:
    """Whether everything is as the plan wants it. A plan that changes nothing may still have something to note."""
    if any(each.external_id in present for each in planned.deleted):
        return False
    for change in planned.changes:
        there, fields = present.get(change.name), change.manifest.to_fields()
        if change.effect != "kept" and (there is None or fields != there.declared):
            return False
        if change.effect in _DOES_SOMETHING and (there is None or fields != there.manifest.to_fields()):
            return False
    return True


def _refuse_changed_since(planned: PlannedManifests, present: Mapping[str, StoredManifest]) -> None:
    seen = {change.name: change.present for change in planned.changes}
    seen |= {each.external_id: each for each in planned.deleted}
    for name, before in seen.items():
        there = present.get(name)
        if (there and (there.id, there.version)) != (before and (before.id, before.version)):
            raise Conflict(f"{name!r} was changed while this was planned", remedy="plan again, and look")
