"""Changes of manifests and manifest groups: the rules that hold for manifests besides those of `versioned_definitions`.

Manifests may depend on each other, but not in cycles, and keep their external id. They have no occurrence ledger: runs
that were due while a manifest was disabled leave no row and are not made up for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any, Literal

from tenuto.definitions.versioned_definitions import ChangeContext, VersionedDefinitions
from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.model.definitions.blocking_reasons import DefinitionKind
from tenuto.model.definitions.manifests import MAX_ACTIVE, Manifest, check_manifest_name, max_active_error
from tenuto.model.work.rate_limits import parse_rate_limit
from tenuto.model.work.tasks import MAX_PRIORITY, priority_error
from tenuto.postgres.database import Connection, Database
from tenuto.store.definitions import manifests, schedules
from tenuto.store.definitions.manifests import ALL_MANIFESTS, GroupSettings, StoredManifest

_TIMING_FIELDS = ("trigger", "schedule_type", "depends_on")


class _ManifestDefinitions(VersionedDefinitions[Manifest, StoredManifest]):
    kind: DefinitionKind = "manifest"
    rows = manifests.TABLE

    def not_found(self, key: str) -> NotFound:
        return NotFound(
            f"there is no manifest {key!r}",
            code="manifest.not_found",
            remedy="list them with `tenuto manifest list`",
        )

    def already_exists(self, key: str, remedy: str) -> Conflict:
        return Conflict(
            f"manifest {key!r} exists already", code="manifest.already_exists", field="external_id", remedy=remedy
        )

    def missing_reference(self, new: Manifest, key: str, remedy: str) -> Invalid:
        return Invalid(
            f"there is no manifest {key!r} to depend on",
            code="manifest.depends_on.not_found",
            field="depends_on",
            remedy=remedy,
        )

    async def lock_all_references(self, connection: Connection) -> None:
        await manifests.lock_dependency_changes(connection)

    async def load_references(self, connection: Connection) -> dict[str, Collection[str]]:
        dependencies = await manifests.load_dependencies(connection)
        return {external_id: [parent] for external_id, parent in dependencies.items() if parent is not None}

    async def find_referenced(self, connection: Connection, keys: Collection[str]) -> set[str]:
        return {key for key in keys if await manifests.prevent_deletion_by_external_id(connection, key)}

    def check_names(self, new: Manifest, before: Manifest | None = None) -> None:
        check_manifest_name(new, before)

    async def check_key_change(self, connection: Connection, current: StoredManifest, new: Manifest) -> None:
        raise Invalid(
            f"the external id of manifest {current.external_id!r} cannot be changed",
            code="manifest.external_id.immutable",
            field="external_id",
            remedy="create another manifest",
        )

    def timing_changed(self, current: StoredManifest, new: Manifest) -> bool:
        before, after = current.fields, new.to_fields()
        return any(before.get(reason) != after.get(reason) for reason in _TIMING_FIELDS)

    async def resolve_pending_runs(
        self,
        connection: Connection,
        current: StoredManifest,
        context: ChangeContext,
        *,
        timing_changed: bool,
        enabled_after: bool,
    ) -> None:
        """Do nothing: active runs continue, and due runs are not made up for."""

    async def prepare_deletion(self, connection: Connection, current: StoredManifest, context: ChangeContext) -> None:
        if await manifests.has_open_tasks(connection, current.id):
            raise Conflict(
                f"manifest {current.external_id!r} has active runs",
                code="manifest.running",
                remedy="wait for them, or cancel them",
            )
        if children := await manifests.list_dependents(connection, current.external_id):
            raise Conflict(
                f"manifest {children[0]!r} depends on {current.external_id!r}",
                code="manifest.in_use",
                remedy=f"change {children[0]!r} first",
            )
        if users := await schedules.list_schedules_running_manifest(connection, current.external_id):
            raise Conflict(
                f"manifest {current.external_id!r} is a step of the schedule {users[0]!r}",
                code="manifest.in_use",
                remedy=f"change the schedule {users[0]!r} first",
            )


MANIFESTS: VersionedDefinitions[Manifest, StoredManifest] = _ManifestDefinitions()
create = MANIFESTS.create
edit = MANIFESTS.edit
set_enabled = MANIFESTS.set_enabled
delete = MANIFESTS.delete
delete_in_tx = MANIFESTS.delete_in_tx
declare = MANIFESTS.declare
declare_in_tx = MANIFESTS.declare_in_tx
get = MANIFESTS.get
not_found = MANIFESTS.not_found
timing_changed = MANIFESTS.timing_changed


# --- groups ---------------------------------------------------------------------------------------------------------


async def change_group(
    database: Database,
    name: str,
    context: ChangeContext,
    *,
    max_active: int | Literal["keep"] | None = "keep",
    priority: int | None = None,
    enabled: bool | None = None,
    rate_limit: str | None = "keep",
) -> None:
    """Set the cap on active runs, the rate limit, the priority and whether runs may start.

    ``*`` is the group of all manifests.
    """
    if isinstance(max_active, int) and not 1 <= max_active <= MAX_ACTIVE:
        raise max_active_error(max_active)
    if priority is not None and not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise priority_error(priority)
    if name == ALL_MANIFESTS and priority is not None:
        raise Invalid(
            f"the group {name} of all manifests has no priority",
            code="manifest_group.priority.not_applicable",
            field="priority",
        )

    options: dict[str, Any] = {"max_active": max_active, "priority": priority, "enabled": enabled}
    options["rate_limit"] = rate_limit if rate_limit in (None, "keep") else str(parse_rate_limit(rate_limit))
    unchanged = {"max_active": "keep", "priority": None, "enabled": None, "rate_limit": "keep"}
    options = {field: value for field, value in options.items() if value != unchanged[field]}
    await database.transaction(lambda connection: change_group_in_tx(connection, name, options, context))


async def change_group_in_tx(
    connection: Connection, name: str, options: Mapping[str, Any], context: ChangeContext
) -> None:
    """Like `change_group`, within a transaction; options that are not given remain."""
    before = await manifests.load_group(connection, name) or GroupSettings()
    after = replace(before, **options)
    context.add_change(name, asdict(before), asdict(after))
    await manifests.save_group(connection, name, after, context.now, context.actor.name)
