"""Operations ``app.extensions.identity``: systems, runs and their results, pending exports, holds, tasks.

Queries return typed records of the store. Changes are recorded in the audit log. Work that takes long is a task, whose
id is returned.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.jobs.context import PermanentFailure
from tenuto.postgres.database import Connection
from tenuto.store.work import task_creation
from tenuto_identity.model.definitions.definition_reader import suggestion
from tenuto_identity.model.rules.attribute_flow import AttributeFlow, RuleDescription, describe_flows, describe_rules
from tenuto_identity.model.rules.sync_rules import RuleSet
from tenuto_identity.model.sync.explanation import HIDDEN, DeletedExplanation, IdentityExplanation, ObjectExplanation
from tenuto_identity.model.sync.pending_exports import export_depth, retry
from tenuto_identity.operations.joins import JoinOperations
from tenuto_identity.operations.operation_group import hidden_attributes, hide, hide_change, lock_system, no_system
from tenuto_identity.operations.previews import PreviewOperations
from tenuto_identity.runs.definition_snapshot import load_configuration
from tenuto_identity.runs.explanation_loader import (
    hidden_in_history,
    load_explanation,
    load_identity_explanation,
    no_identity,
)
from tenuto_identity.store import definitions, exports, list_queries, objects, run_items, runs, transaction_settings
from tenuto_identity.store.definitions import DefinitionKind, DefinitionVersion, SystemRecord, WatermarkRecord
from tenuto_identity.store.exports import ExportRecord
from tenuto_identity.store.list_queries import HeldObject, HistoryEntry, IdentityRecord, ObjectRecord
from tenuto_identity.store.run_items import Item
from tenuto_identity.store.runs import RunRecord
from tenuto_identity.tasks.task_creation import build_task

RETRY_PAGE_SIZE = 1_000


@dataclass(frozen=True, slots=True)
class SystemDetails:
    """A connected system with its definition."""

    system: SystemRecord
    definition: Mapping[str, Any]
    run_profiles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DefinitionRecord:
    """A sync rule, metaverse type or template as interfaces show it."""

    name: str
    version: int
    origin: str
    definition: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Hold:
    """What a guard holds in a system until a user approves."""

    system: str
    message: str
    run_id: UUID
    is_approved: bool
    """A user has approved it, and the task that applies it has not ended."""
    guards: Sequence[Mapping[str, Any]]
    objects: Sequence[HeldObject]
    """The first objects that would be deleted."""


class IdentityOperations(PreviewOperations, JoinOperations):
    """Operations on connected systems and what happens in them."""

    # --- queries ----------------------------------------------------------------------------------------------------

    async def systems(self, *, after: str = "", limit: int = 100) -> Sequence[SystemRecord]:
        """List connected systems by name; page with ``after``."""
        return await definitions.list_systems(await self._open(), after, limit)

    async def system(self, name: str) -> SystemDetails:
        """Return one connected system with its definition."""
        database = await self._open()
        stored = await transaction_settings.read_with(database, definitions.load_definitions)
        rows = {row.name: row for row in stored.of_kind(DefinitionKind.SYSTEM)}
        record = await definitions.load_system(database, name)
        if name not in rows or record is None:
            raise no_system(name, list(rows))
        definition = rows[name].definition
        return SystemDetails(record, definition, tuple(each["name"] for each in definition.get("run_profiles", ())))

    async def hold(self, system: str, *, after: int = 0, limit: int = 20) -> Hold:
        """Return what a guard holds in a system, with the first objects concerned; page them with ``after``."""
        found = (await self.system(system)).system
        held = found.held
        if held is None:
            raise NotFound(
                f"the system {system!r} is not on hold",
                code="identity.hold.missing",
                remedy="nothing has to be approved",
            )
        run_id, database = UUID(held["run"]), await self._open()
        if held.get("deletes_only"):
            sample = await transaction_settings.read_with(
                database, list_queries.list_held_deletes, found.number, after, limit
            )
        else:
            sample = await transaction_settings.read_with(
                database, list_queries.list_held_objects, run_id, after, limit
            )
        return Hold(system, held.get("message", ""), run_id, bool(held.get("approved")), held.get("guards", ()), sample)

    async def objects(
        self,
        *,
        system: str | None = None,
        type: str | None = None,
        state: str | None = None,
        joined: bool | None = None,
        text: str | None = None,
        identity: int | None = None,
        after: int = 0,
        limit: int = 100,
        reveals: bool = False,
    ) -> Sequence[ObjectRecord]:
        """List connector space objects by id; page with ``after``. ``text`` is the beginning of anchor or address.
        ``reveals`` shows the values of sensitive attributes."""

        async def read(connection: Connection) -> Sequence[ObjectRecord]:
            hidden = await hidden_attributes(connection, reveals)
            found = await list_queries.list_objects(
                connection,
                system=system,
                type=type,
                state=state,
                joined=joined,
                text=text,
                metaverse_id=identity,
                after=after,
                limit=limit,
            )
            return [
                replace(
                    each,
                    attributes=hide(each.attributes, hidden),
                    reference_values=hide(each.reference_values, hidden),
                )
                for each in found
            ]

        return await transaction_settings.read_with(await self._open(), read)

    async def object(self, system: str, anchor: str, *, reveals: bool = False) -> ObjectRecord:
        """Return one connector space object."""
        await self.system(system)

        async def read(connection: Connection) -> ObjectRecord | None:
            hidden = await hidden_attributes(connection, reveals)
            found = await list_queries.load_object(connection, system, anchor)
            return found and replace(
                found,
                attributes=hide(found.attributes, hidden),
                reference_values=hide(found.reference_values, hidden),
            )

        found = await transaction_settings.read_with(await self._open(), read)
        if found is None:
            raise NotFound(
                f"the system {system!r} has no object with the anchor {anchor!r}",
                code="identity.object.not_found",
                field="anchor",
                remedy="list them with `tenuto identity objects`",
            )
        return found

    async def identities(
        self,
        *,
        type: str | None = None,
        text: str | None = None,
        deletion_scheduled: bool | None = None,
        ids: Sequence[int] | None = None,
        after: int = 0,
        limit: int = 100,
        reveals: bool = False,
    ) -> Sequence[IdentityRecord]:
        """List metaverse objects by id; page with ``after``. ``text`` is a part of the display name."""
        return await self._identities(type, text, deletion_scheduled, ids, after, limit, reveals)

    async def identity(self, id: int, *, reveals: bool = False) -> IdentityRecord:
        """Return one metaverse object."""
        found = await self._identities(None, None, None, [id], 0, 1, reveals)
        if not found:
            raise no_identity(id)
        return found[0]

    async def _identities(
        self,
        type: str | None,
        text: str | None,
        deletion_scheduled: bool | None,
        ids: Sequence[int] | None,
        after: int,
        limit: int,
        reveals: bool,
    ) -> Sequence[IdentityRecord]:
        async def read(connection: Connection) -> Sequence[IdentityRecord]:
            hidden = await hidden_attributes(connection, reveals)
            found = await list_queries.list_identities(
                connection,
                type=type,
                text=text,
                deletion_scheduled=deletion_scheduled,
                ids=ids,
                after=after,
                limit=limit,
            )
            return [
                replace(each, attributes=hide(each.attributes, hidden), reference_ids=hide(each.reference_ids, hidden))
                for each in found
            ]

        return await transaction_settings.read_with(await self._open(), read)

    async def history(
        self, id: int, *, before: tuple[UUID, int, str] | None = None, limit: int = 100, reveals: bool = False
    ) -> Sequence[HistoryEntry]:
        """List the changes of an identity and of the objects joined to it, the newest first; page with ``before``:
        run, item and subject of the last entry. A deleted identity has its history until it is past the retention."""

        async def read(connection: Connection) -> Sequence[HistoryEntry]:
            configuration = await load_configuration(connection)
            found = await list_queries.list_changes(connection, id, before, limit)
            return [
                replace(each, diff=hide(each.diff, hidden_in_history(configuration, each, reveals))) for each in found
            ]

        found = await transaction_settings.read_with(await self._open(), read)
        if not found:
            await self.identity(id)  # raises an error if there never was one
        return found

    async def runs(
        self, *, system: str | None = None, state: str | None = None, before: UUID | None = None, limit: int = 100
    ) -> Sequence[RunRecord]:
        """List runs, the newest first; page with ``before``."""
        return await runs.list_runs(await self._open(), system, state, before, limit)

    async def run_record(self, run_id: UUID) -> RunRecord:
        """Return one run."""
        found = await runs.load_run(await self._open(), run_id)
        if found is None:
            raise NotFound(
                f"there is no run {run_id}",
                code="identity.run.not_found",
                remedy="list them with `tenuto identity runs`",
            )
        return found

    async def items(
        self,
        run_id: UUID,
        *,
        errors_only: bool = False,
        change: str | None = None,
        error: str | None = None,
        after: int = 0,
        limit: int = 100,
        reveals: bool = False,
    ) -> Sequence[Item]:
        """List the results of a run by number; page with ``after``. ``change`` and ``error`` select items.

        Messages and details can quote values. They are hidden if any attribute is sensitive, unless ``reveals``."""
        database = await self._open()
        found = await run_items.list_items(
            database, run_id, after, limit, errors_only=errors_only, change=change, error=error
        )
        if not await transaction_settings.read_with(database, hidden_attributes, reveals):
            return found
        return [replace(each, message=each.message and HIDDEN, detail=None) for each in found]

    async def item_changes(
        self, run_id: UUID, numbers: Sequence[int], *, reveals: bool = False
    ) -> Sequence[HistoryEntry]:
        """List the values before and after of items of a run, by number."""

        async def read(connection: Connection) -> Sequence[HistoryEntry]:
            configuration = await load_configuration(connection)
            found = await list_queries.list_item_changes(connection, run_id, numbers)
            return [
                replace(each, diff=hide(each.diff, hidden_in_history(configuration, each, reveals))) for each in found
            ]

        return await transaction_settings.read_with(await self._open(), read)

    async def pending_exports(
        self,
        *,
        system: str | None = None,
        state: str | None = None,
        errors_only: bool = False,
        after: int = 0,
        limit: int = 100,
        reveals: bool = False,
    ) -> Sequence[ExportRecord]:
        """List pending exports by object; page with ``after``.

        Errors can quote values. They are hidden if any attribute is sensitive, unless ``reveals``."""
        database = await self._open()
        found = await exports.list_exports(database, system, state, after, limit, errors_only=errors_only)
        hidden = await transaction_settings.read_with(database, hidden_attributes, reveals)
        if not hidden:
            return found
        return [
            replace(
                each,
                changes=[hide_change(change, hidden) for change in each.changes],
                error=each.error and HIDDEN,
            )
            for each in found
        ]

    async def explain(
        self, system: str, anchor: str, *, reveals: bool = False
    ) -> IdentityExplanation | ObjectExplanation | DeletedExplanation:
        """Explain the identity of an object, or why the object is not joined. A deleted one is explained from its
        history. ``reveals`` shows sensitive values."""
        database = await self._open()
        return await transaction_settings.read_with(
            database, load_explanation, system, anchor, database.clock.now(), reveals
        )

    async def explain_identity(self, id: int, *, reveals: bool = False) -> IdentityExplanation | DeletedExplanation:
        """Explain a metaverse object; a deleted one from its history."""
        database = await self._open()
        return await transaction_settings.read_with(
            database, load_identity_explanation, id, database.clock.now(), reveals
        )

    async def versions(self, kind: DefinitionKind, name: str, *, limit: int = 100) -> Sequence[DefinitionVersion]:
        """List the versions of a definition, the newest first."""
        return await definitions.list_versions(await self._open(), kind, name, limit)

    async def definitions(self, kind: DefinitionKind, *, after: str = "", limit: int = 100) -> list[DefinitionRecord]:
        """List the definitions of a kind by name; page with ``after``."""
        stored = await transaction_settings.read_with(await self._open(), definitions.load_definitions)
        rows = sorted((row for row in stored.of_kind(kind) if row.name > after), key=lambda row: row.name)
        return [DefinitionRecord(row.name, row.version, row.origin, row.definition) for row in rows[:limit]]

    async def attribute_flows(self, *, type: str | None = None, system: str | None = None) -> Sequence[AttributeFlow]:
        """List the attributes of metaverse types with the rules that set them, in the order in which they win, and
        those that send them. ``system`` keeps the attributes that rules of this system set or send."""
        flows = describe_flows(await self._bound_rules())
        return [
            each
            for each in flows
            if type in (None, each.type)
            and (system is None or any(step.system == system for step in (*each.contributions, *each.targets)))
        ]

    async def rules(self, *, system: str | None = None) -> Sequence[RuleDescription]:
        """Describe the sync rules, in the order in which they are processed."""
        found = await self._bound_rules()
        return describe_rules(each for each in found.rules if system in (None, each.system))

    async def _bound_rules(self) -> RuleSet:
        try:
            return (await transaction_settings.read_with(await self._open(), load_configuration)).rules
        except PermanentFailure as error:  # another version has stored a definition
            raise Conflict(error.message, code=error.code, remedy=error.remedy) from error

    # --- runs and tasks ---------------------------------------------------------------------------------------------

    async def run(self, system: str, profile: str, *, request_id: UUID | None = None) -> UUID:
        """Enqueue a run of a run profile; return the task. Calls with the same ``request_id`` enqueue one."""
        database = await self._open()
        stored = await transaction_settings.read_with(database, definitions.load_definitions)
        row = next((each for each in stored.of_kind(DefinitionKind.SYSTEM) if each.name == system), None)
        if row is None:
            raise no_system(system, [each.name for each in stored.of_kind(DefinitionKind.SYSTEM)])
        profiles = [each["name"] for each in row.definition.get("run_profiles", ())]
        if profile not in profiles:
            raise Invalid(
                f"the system {system!r} has no run profile {profile!r}",
                code="identity.profile.not_found",
                field="profile",
                remedy=suggestion(profile, profiles) or f"its run profiles are: {', '.join(profiles) or 'none'}",
            )
        return await self._enqueue(
            "identity.run.start", system, "run_profile", {"system": system, "profile": profile}, id=request_id
        )

    async def run_template(self, template: str, *, seed: str = "1") -> UUID:
        """Generate example data from a template, as a task."""
        return await self._enqueue(
            "identity.template.run", template, "identity.template", {"template": template, "seed": seed}
        )

    async def check(self, system: str) -> UUID:
        """Check the settings of a system and whether it can be reached, as a task whose output says what it found."""
        await self.system(system)
        return await self._enqueue("identity.system.check", system, "identity.check", {"system": system})

    async def discover(self, system: str) -> UUID:
        """Read the schema of a system and compare it with what is selected, as a task."""
        await self.system(system)
        return await self._enqueue("identity.system.discover", system, "identity.discover", {"system": system})

    async def schema(self, system: str) -> Mapping[str, Any]:
        """Return the schema of a system as it was discovered last."""
        await self.system(system)
        stored = await transaction_settings.read_with(await self._open(), definitions.load_definitions)
        row = next(each for each in stored.systems if each.name == system)
        if row.discovered is None:
            raise NotFound(
                f"the schema of {system!r} was not discovered yet",
                code="identity.schema.missing",
                remedy=f"discover it with `tenuto identity discover {shlex.quote(system)}`",
            )
        return row.discovered

    async def watermarks(self, system: str) -> Sequence[WatermarkRecord]:
        """List the watermarks of a system."""
        await self.system(system)
        return await definitions.list_watermarks(await self._open(), system)

    async def sync_one(self, system: str, anchor: str, *, export: bool = False, request_id: UUID | None = None) -> UUID:
        """Import and sync one object now, as a task; with ``export``, send and confirm what follows."""
        await self.system(system)
        return await self._enqueue(
            "identity.object.sync",
            f"{system}/{anchor}",
            "identity.sync_one",
            {"system": system, "anchor": anchor, "export": export},
            id=request_id,
        )

    async def clear(self, system: str, *, reason: str | None = None) -> UUID:
        """Delete all objects of a system from the connector space, as a task; the metaverse is not touched."""
        await self._check_no_open_run(system)
        return await self._enqueue(
            "identity.system.clear", system, "identity.clear", {"system": system}, reason=reason, is_unique=True
        )

    async def delete_system(self, system: str, *, reason: str | None = None, version: int | None = None) -> UUID:
        """Delete a system with its objects and rules, as a task; refused while a run is open, and if its definition has
        another version than the caller has read."""
        await self._check_no_open_run(system)
        found = (await self.system(system)).system
        if version is not None and found.version != version:  # guard: identity.delete_version
            raise Conflict(
                f"{system!r} has version {found.version}, not {version}",
                code="definition.version_conflict",
                remedy="read it again before deleting it",
            )
        return await self._enqueue(
            "identity.system.delete",
            system,
            "identity.delete",
            {"system": system, "reason": reason},
            reason=reason,
            is_unique=True,
        )

    async def _check_no_open_run(self, system: str) -> None:
        database = await self._open()
        known = {each.name: each for each in await definitions.list_systems(database, "", 10_000)}
        if system not in known:
            raise no_system(system, list(known))
        open_run = await transaction_settings.read_with(database, definitions.find_open_run, known[system].number)
        abandoned = await transaction_settings.read_with(
            database, runs.find_abandoned_runs
        )  # the run of the task ends them
        if open_run is not None and open_run not in {each.id for each in abandoned}:
            raise Conflict(
                f"the run {open_run} of the system {system!r} is open",
                code="identity.system.run_open",
                remedy="wait for its end, or cancel its task",
            )

    # --- changes ----------------------------------------------------------------------------------------------------

    async def set_enabled(self, system: str, *, enabled: bool, reason: str | None = None) -> bool:
        """Enable or disable a system; return False if that changes nothing. Runs of a disabled one are refused."""
        operation = await self._begin("identity.system.enable" if enabled else "identity.system.disable", target=system)
        wanted = "active" if enabled else "disabled"

        async def act(connection: Connection) -> bool:
            row = await lock_system(connection, system)
            if row.state == wanted:
                operation.entry.mark_unchanged()
                return False
            if row.state == "deleting":
                raise Conflict(f"the system {system!r} is being deleted", code="identity.system.not_active")
            operation.entry.before, operation.entry.after = {"state": row.state}, {"state": wanted}
            await definitions.set_system_state(connection, system, wanted)
            return True

        return await operation.database.transaction(act)

    async def approve(self, system: str, *, reason: str, run_id: UUID | None = None) -> UUID | None:
        """Approve exactly what a guard holds, minus what has come back; return the task that applies it, if any.

        ``run_id`` is the run of the hold that the caller has examined. If another run holds the system by now, the
        approval is refused."""
        if not reason.strip():
            raise Invalid(
                "an approval needs a reason",
                code="identity.hold.reason_missing",
                field="reason",
                remedy="say why the deletions are right",
            )
        operation = await self._begin("identity.hold.approve", target=system, reason=reason)
        database = operation.database

        async def act(connection: Connection) -> UUID | None:
            row = await lock_system(connection, system)
            if row.held is None:
                raise Conflict(
                    f"the system {system!r} is not on hold",
                    code="identity.hold.missing",
                    remedy="nothing has to be approved",
                )
            if run_id is not None and row.held["run"] != str(run_id).lower():
                raise Conflict(
                    f"the system {system!r} is held by the run {row.held['run']} now, not by {run_id}",
                    code="identity.hold.changed",
                    remedy=f"examine what is held now with `tenuto identity show {shlex.quote(system)}`",
                )
            operation.entry.before = row.held
            if row.held.get("deletes_only"):
                count = await exports.approve_deletes(connection, row.number)
                await runs.clear_hold(connection, row.number)
                operation.entry.after = {"approved_deletes": count}
                return None
            held_run = UUID(row.held["run"])
            deletions = sum(each.object_count for each in await runs.count_pending_deletions(connection, held_run))
            operation.entry.after = {"approved_deletions": deletions}
            if not deletions:
                await runs.clear_hold(connection, row.number)
                await runs.drop_pending_clearings(connection, row.number)
                return None
            await runs.hold_system(connection, row.number, {**row.held, "approved": True})
            return held_run

        held_run = await database.transaction(act)
        if held_run is None:
            return None
        task = build_task(
            self._services,
            database,
            "identity.approve",
            {"system": system, "run": str(held_run)},
            operation.actor,
            unique_key=f"identity.approve:{held_run}",
        )
        return await task_creation.enqueue_or_find(database, task)

    async def retry(self, system: str, *, object_id: int | None = None, reason: str | None = None) -> int:
        """Send failed and refused exports of a system again from the first attempt; return their number."""
        operation = await self._begin("identity.exports.retry", target=system, reason=reason)
        count = 0
        after = 0 if object_id is None else object_id - 1

        async def act(connection: Connection) -> tuple[int, int | None]:
            row = await lock_system(connection, system)
            names = {row.number: row.name}
            found = await exports.lock_exports_to_retry(
                connection, row.number, after, 1 if object_id is not None else RETRY_PAGE_SIZE, names
            )
            if object_id is not None:
                found = [each for each in found if each.object_id == object_id]
            stored = await objects.load_objects(connection, [each.object_id for each in found])
            addresses = {each.id: each.address or "" for each in stored}
            depths = {each.object_id: export_depth(each.kind, addresses.get(each.object_id, "")) for each in found}
            await exports.write_exports(
                connection, [retry(each) for each in found], {row.name: row.number}, depths, operation.now
            )
            operation.entry.after = {"retried": count + len(found)}
            if not found and not count:
                operation.entry.mark_unchanged()
            return len(found), found[-1].object_id if found and object_id is None else None

        while True:
            done, last = await operation.database.transaction(act)
            count += done
            if last is None:
                return count
            after = last
