"""Manifests, made and changed as all definitions are (`keeping`), and their groups.

What is said here is what holds for manifests alone: they may run after each other, but not in circles, and keep their
external id for good. What fell due while one was off is not made up for, and leaves no row: they have no ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from tenuto.definitions.versioned import Author, Keeping
from tenuto.errors import Conflict, Invalid
from tenuto.model.actors import Actor
from tenuto.model.manifests import MAX_ACTIVE, Manifest, check_name, refuse_circles
from tenuto.model.tasks import MAX_PRIORITY
from tenuto.postgres.database import Connection, Database
from tenuto.store import manifests
from tenuto.store.access import audit_recorder
from tenuto.store.manifests import ALL, StoredManifest

_REASONS_TO_RUN = ("trigger", "schedule_type", "depends_on")


class _Manifests(Keeping[Manifest, StoredManifest]):
    kind = "manifest"
    key_field = "external_id"
    rows = manifests.ROWS

    async def one_at_a_time(self, connection: Connection, new: Manifest) -> None:
        await one_change_of_order(connection, [new])

    def check_names(self, new: Manifest, before: Manifest | None = None) -> None:
        check_name(new, before)

    async def check_others(self, connection: Connection, new: Manifest, before: Manifest | None = None) -> None:
        if new.depends_on is None or (before is not None and before.depends_on == new.depends_on):
            return
        refuse_circles(new.external_id, new.depends_on, await manifests.parents(connection))
        if not await manifests.keep_named(connection, new.depends_on):
            raise Invalid(f"there is no {self.called(new.depends_on)}", field="depends_on", remedy="make that first")

    async def check_new_key(self, connection: Connection, present: StoredManifest, new: Manifest) -> None:
        raise Invalid("cannot be changed: everything refers to it", field="external_id", remedy="make another manifest")

    def retimed(self, present: StoredManifest, new: Manifest) -> bool:
        before, after = present.fields, new.to_fields()
        return any(before.get(reason) != after.get(reason) for reason in _REASONS_TO_RUN)

    async def settle(
        self, connection: Connection, present: StoredManifest, author: Author, *, retimed: bool, is_on: bool
    ) -> None:
        """Nothing: what is open runs on, and what was due is not made up for."""

    async def let_go(self, connection: Connection, present: StoredManifest, author: Author) -> None:
        if await manifests.has_open_tasks(connection, present.id):
            raise Conflict(f"{present.external_id!r} has open tasks", remedy="wait for them, or cancel them")
        if children := await manifests.dependents(connection, present.external_id):
            raise Conflict(f"{children[0]!r} runs after {present.external_id!r}", remedy="change that one first")


_KEPT = _Manifests()
create = _KEPT.create
edit = _KEPT.edit
switch = _KEPT.switch
delete = _KEPT.delete
delete_within = _KEPT.delete_within
declare = _KEPT.declare
declare_within = _KEPT.declare_within
get = _KEPT.get
unknown = _KEPT.unknown
retimed = _KEPT.retimed


async def one_change_of_order(connection: Connection, wanted: Iterable[Manifest]) -> None:
    """Who runs after whom is changed by one at a time. To be asked for before any manifest is held."""
    if any(manifest.depends_on is not None for manifest in wanted):
        await manifests.one_change_of_order(connection)


# --- groups ---------------------------------------------------------------------------------------------------------


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

    audit_recorder.tell(target=name)
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
    audit_recorder.tell_part(name, {field: before[field] for field in kept}, {field: after[field] for field in kept})
    await manifests.set_group(connection, name, after["max_active"], after["priority"], after["enabled"], now, by.name)
