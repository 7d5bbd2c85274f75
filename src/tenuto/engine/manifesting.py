"""Manifests are made, changed, switched and deleted here: each change one transaction, one version, one who and why.

As with schedules, what code or a file declares is kept beside what is in force, and whether a manifest is enabled is
the operator's alone once it exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from tenuto.engine.declaring import Effect, effect_of
from tenuto.engine.definitions import Author, refuse_if_changed
from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.ids import new_id
from tenuto.model.access import Actor
from tenuto.model.manifests import MAX_ACTIVE, Manifest, check_name, refuse_circles
from tenuto.model.tasks import MAX_PRIORITY
from tenuto.model.triggers import check_runs
from tenuto.store import auditing, manifests
from tenuto.store.database import Connection, Database
from tenuto.store.manifests import ALL, ManifestVersion, StoredManifest


async def create(
    database: Database, manifest: Manifest, author: Author, *, enabled: bool = True, id: UUID | None = None
) -> StoredManifest:
    """Make a manifest; refused if there is one of its external id. Asking again with the same id makes one."""
    id = id or new_id()
    auditing.tell(target=manifest.external_id)

    async def act(connection: Connection) -> None:
        await one_change_of_order(connection, [manifest])
        await _check(connection, manifest, author.now)
        if not await _insert(connection, id, manifest, author, enabled=enabled, declared=None):
            existing = await manifests.locked(connection, manifest.external_id)
            if existing is None or existing.id != id:  # else ours: only the reply was lost
                raise Conflict(f"there is a manifest {manifest.external_id!r}", field="external_id")
            auditing.changed_nothing()

    await database.transaction(act)
    return await get(database, manifest.external_id)


async def edit(
    database: Database, external_id: str, manifest: Manifest, author: Author, *, version: int | None = None
) -> StoredManifest:
    """Put a definition in the place of the present one; with ``version``, only if nobody has changed it since."""
    if manifest.external_id != external_id:
        raise Invalid("cannot be changed: everything refers to it", field="external_id", remedy="make another manifest")
    auditing.tell(target=external_id)

    async def act(connection: Connection) -> None:
        await one_change_of_order(connection, [manifest])
        present = await _locked(connection, external_id)
        if present.updated_at == author.now and present.manifest == manifest:
            return  # by ourselves: only the reply was lost
        refuse_if_changed(present.version, version, external_id)
        await _change(connection, present, manifest, author)

    await database.transaction(act)
    return await get(database, external_id)


async def switch(database: Database, external_id: str, author: Author, *, enabled: bool) -> bool:
    """Enable or disable; False if it was so already. What fell due while it was disabled is not made up for."""
    auditing.tell(target=external_id)
    switched = False

    async def act(connection: Connection) -> bool:
        nonlocal switched
        present = await _locked(connection, external_id)
        if present.enabled == enabled:
            auditing.changed_nothing()
            return switched  # or by ourselves: only the reply was lost
        await _change(connection, present, present.manifest, author, enabled=enabled)
        switched = True
        return True

    return await database.transaction(act)


async def delete(database: Database, external_id: str, author: Author, *, version: int | None = None) -> None:
    """Delete a manifest of which nothing is open and that no other waits for. What it did stays on record. With
    ``version``, only if nobody has changed it since."""
    auditing.tell(target=external_id)
    deleted = False

    async def act(connection: Connection) -> None:
        nonlocal deleted
        if deleted and await manifests.locked(connection, external_id) is None:
            return  # by ourselves: only the reply was lost
        if version is not None:
            refuse_if_changed((await _locked(connection, external_id)).version, version, external_id)
        await delete_within(connection, external_id, author)
        deleted = True

    await database.transaction(act)


async def delete_within(connection: Connection, external_id: str, author: Author) -> None:
    """As `delete`, as part of a larger change."""
    present = await _locked(connection, external_id)
    if await manifests.has_open_tasks(connection, present.id):
        raise Conflict(f"{external_id!r} has open tasks", remedy="wait for them, or cancel them")
    if children := await manifests.dependents(connection, external_id):
        raise Conflict(f"{children[0]!r} runs after {external_id!r}", remedy="change that one first")
    await manifests.delete(connection, present.id)
    await _record(connection, present.id, present.version + 1, external_id, "deleted", author, _fields(present), None)


async def declare(database: Database, manifest: Manifest, author: Author) -> Effect:
    """Bring what code or a file declares into force, as far as it says something new."""
    id = new_id()
    auditing.tell(target=manifest.external_id)
    sent: Effect | None = None

    async def act(connection: Connection) -> Effect:
        nonlocal sent
        await one_change_of_order(connection, [manifest])
        effect = await declare_within(connection, manifest, author, id)
        if sent is None or effect != "unchanged":  # else by ourselves: only the reply was lost
            sent = effect
        if effect in ("unchanged", "kept"):
            auditing.changed_nothing()
        return sent

    return await database.transaction(act)


async def declare_within(connection: Connection, manifest: Manifest, author: Author, id: UUID) -> Effect:
    """As `declare`, as part of a larger change; the id is for a manifest that comes to be."""
    fields = manifest.to_fields()
    present = await manifests.locked(connection, manifest.external_id)
    if present is None:
        # Only what is new is checked: a service must be able to start though one of its manifests is over by now.
        await _check(connection, manifest, author.now)
        if await _insert(connection, id, manifest, author, enabled=True, declared=fields):
            return "created"
        present = await _locked(connection, manifest.external_id)
    effect = effect_of(present, fields)
    if effect == "changed":
        await _change(connection, present, manifest, author, declared=fields)
    elif effect == "unchanged" and present.declared != fields:
        await manifests.declare(connection, present.id, fields, author.origin)
    return effect


def retimed(present: StoredManifest, wanted: Manifest) -> bool:
    """Whether it would have a new reason to run."""
    before, after = present.manifest.to_fields(), wanted.to_fields()
    return any(before.get(reason) != after.get(reason) for reason in ("trigger", "schedule_type", "depends_on"))


async def get(database: Database, external_id: str) -> StoredManifest:
    """The manifest of that external id."""
    found = await manifests.named(database, external_id)
    if found is None:
        raise unknown(external_id)
    return found


def unknown(external_id: str) -> NotFound:
    return NotFound(f"there is no manifest {external_id!r}", remedy="see `tenuto manifest list`")


async def change_group(
    database: Database,
    name: str,
    now: datetime,
    by: Actor,
    *,
    max_active: int | Literal["keep"] | None = "keep",
    priority: int | None = None,
    enabled: bool | None = None,
) -> None:
    """Set what holds for a group of manifests, or for all of them (``*``): how many may be active, their priority, and
    whether anything of it may begin."""
    if isinstance(max_active, int) and not 1 <= max_active <= MAX_ACTIVE:
        raise Invalid(f"must be from 1 to {MAX_ACTIVE:,}", field="max_active", remedy="disable the group to stop it")
    if priority is not None and not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise Invalid(f"must be from -{MAX_PRIORITY} to {MAX_PRIORITY}", field="priority")
    if name == ALL and priority is not None:
        raise Invalid("all manifests together have none", field="priority")

    auditing.tell(target=name)
    said: dict[str, Any] = {"max_active": max_active, "priority": priority, "enabled": enabled}
    kept = {"max_active": "keep", "priority": None, "enabled": None}
    said = {field: value for field, value in said.items() if value != kept[field]}
    await database.transaction(lambda connection: change_group_within(connection, name, said, now, by))


UNSAID = {"max_active": None, "priority": 0, "enabled": True}
"""What holds for a group of which nobody has said anything."""


async def change_group_within(
    connection: Connection, name: str, said: Mapping[str, Any], now: datetime, by: Actor
) -> None:
    """As `change_group`, as part of a larger change; what is not said stays."""
    before = {**UNSAID, **(await manifests.group(connection, name) or {})}
    after = {**before, **said}
    kept = tuple(UNSAID)
    auditing.tell_part(name, {field: before[field] for field in kept}, {field: after[field] for field in kept})
    await manifests.set_group(connection, name, after["max_active"], after["priority"], after["enabled"], now, by.name)


# --- inside ---------------------------------------------------------------------------------------------------------


async def one_change_of_order(connection: Connection, wanted: Iterable[Manifest]) -> None:
    """Who runs after whom is changed by one at a time. To be asked for before any manifest is held."""
    if any(manifest.depends_on is not None for manifest in wanted):
        await manifests.one_change_of_order(connection)


async def _check(connection: Connection, manifest: Manifest, now: datetime) -> None:
    """What can only be said against a manifest by looking at the present and at the others."""
    check_name(manifest)
    check_runs(manifest.trigger, now)
    await _check_order(connection, manifest)


async def _check_order(connection: Connection, manifest: Manifest) -> None:
    """That the one it runs after is there, and does not run after it in turn."""
    if manifest.depends_on is not None:
        refuse_circles(manifest.external_id, manifest.depends_on, await manifests.parents(connection))
        if not await manifests.keep_named(connection, manifest.depends_on):
            raise Invalid(f"there is no manifest {manifest.depends_on!r}", field="depends_on", remedy="make that first")


async def _locked(connection: Connection, external_id: str) -> StoredManifest:
    present = await manifests.locked(connection, external_id)
    if present is None:
        raise unknown(external_id)
    return present


async def _insert(
    connection: Connection,
    id: UUID,
    manifest: Manifest,
    author: Author,
    *,
    enabled: bool,
    declared: dict[str, Any] | None,
) -> bool:
    next_run = manifest.trigger.next_after(author.now, str(id)) if enabled else None
    created = await manifests.insert(
        connection, id, manifest, enabled=enabled, origin=author.origin, declared=declared, now=author.now,
        next_run=next_run,
    )  # fmt: skip
    if created:
        after = {**manifest.to_fields(), "enabled": enabled}
        await _record(connection, id, 1, manifest.external_id, "created", author, None, after)
    return created


async def _change(
    connection: Connection,
    present: StoredManifest,
    manifest: Manifest,
    author: Author,
    *,
    enabled: bool | None = None,
    declared: dict[str, Any] | None = None,
) -> None:
    """One change. A new reason to run, and being switched on, work out the next run from now; all else leaves it."""
    switched = enabled is not None and enabled != present.enabled
    is_on = present.enabled if enabled is None else enabled
    before, after = _fields(present), {**manifest.to_fields(), "enabled": is_on}
    if before == after and declared is None:
        auditing.changed_nothing()
        return
    check_name(manifest, present.manifest)
    anew = retimed(present, manifest)
    if anew or (switched and is_on):  # one that has come to its end can still be edited and switched off
        check_runs(manifest.trigger, author.now)
    if manifest.depends_on != present.manifest.depends_on:
        await _check_order(connection, manifest)
    next_run = present.next_run_at
    if switched or anew:
        next_run = manifest.trigger.next_after(author.now, str(present.id)) if is_on else None
    version = await manifests.change(
        connection, present.id, manifest, enabled=is_on, origin=present.origin if declared is None else author.origin,
        declared=declared, now=author.now, next_run=next_run,
    )  # fmt: skip
    change = ("enabled" if is_on else "disabled") if switched else "edited"
    await _record(connection, present.id, version, manifest.external_id, change, author, before, after)


def _fields(present: StoredManifest) -> dict[str, Any]:
    return {**present.manifest.to_fields(), "enabled": present.enabled}


async def _record(
    connection: Connection,
    id: UUID,
    version: int,
    external_id: str,
    change: str,
    author: Author,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
) -> None:
    auditing.tell_part(external_id, before, after, author.reason)
    await manifests.record_version(
        connection,
        ManifestVersion(id, version, external_id, change, author.now, author.actor, author.reason, before, after),
    )
