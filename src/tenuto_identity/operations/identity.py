"""Operations ``app.extensions.identity``: systems, runs and their results, pending exports, holds, tasks.

Queries return typed records of the store. Changes are recorded in the audit log. Work that takes long is a task, whose
id is returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.extension import ExtensionServices
from tenuto.operations.operation import OperationGroup
from tenuto.postgres.database import Connection
from tenuto.store import tasks
from tenuto_identity.model.definition_reader import suggestion
from tenuto_identity.model.explanation import IdentityExplanation, ObjectExplanation
from tenuto_identity.model.pending import export_depth, retry
from tenuto_identity.runs.explanations import load_explanation
from tenuto_identity.runs.task_enqueuing import build_task
from tenuto_identity.store import definitions, exports, items, objects, runs, session
from tenuto_identity.store.definitions import DefinitionKind, DefinitionVersion, SystemRecord, SystemRow
from tenuto_identity.store.exports import ExportRecord
from tenuto_identity.store.items import Item
from tenuto_identity.store.runs import RunRecord

RETRY_PAGE = 1_000


class IdentityOperations(OperationGroup):
    """Operations on connected systems and what happens in them."""

    def __init__(self, services: ExtensionServices) -> None:
        super().__init__(services.open_database, services.caller)
        self._services = services

    # --- queries ----------------------------------------------------------------------------------------------------

    async def systems(self, *, after: str = "", limit: int = 100) -> Sequence[SystemRecord]:
        """List connected systems by name; page with ``after``."""
        return await definitions.list_systems(await self._open(), after, limit)

    async def runs(
        self, *, system: str | None = None, before: UUID | None = None, limit: int = 100
    ) -> Sequence[RunRecord]:
        """List runs, the newest first; page with ``before``."""
        return await runs.list_runs(await self._open(), system, before, limit)

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
        self, run_id: UUID, *, errors_only: bool = False, after: int = 0, limit: int = 100
    ) -> Sequence[Item]:
        """List the results of a run by number; page with ``after``."""
        return await items.list_items(await self._open(), run_id, after, limit, errors_only=errors_only)

    async def pending_exports(
        self, *, system: str | None = None, state: str | None = None, after: int = 0, limit: int = 100
    ) -> Sequence[ExportRecord]:
        """List pending exports by object; page with ``after``."""
        return await exports.list_exports(await self._open(), system, state, after, limit)

    async def explain(
        self, system: str, anchor: str, *, reveals: bool = False
    ) -> IdentityExplanation | ObjectExplanation:
        """Explain the identity of an object, or why the object is not joined. ``reveals`` shows sensitive values."""
        database = await self._open()
        return await session.read_with(database, load_explanation, system, anchor, database.clock.now(), reveals)

    async def versions(self, kind: DefinitionKind, name: str, *, limit: int = 100) -> Sequence[DefinitionVersion]:
        """List the versions of a definition, the newest first."""
        return await definitions.list_versions(await self._open(), kind, name, limit)

    # --- runs and tasks ---------------------------------------------------------------------------------------------

    async def run(self, system: str, profile: str, *, request_id: UUID | None = None) -> UUID:
        """Enqueue a run of a run profile; return the task. Calls with the same ``request_id`` enqueue one."""
        database = await self._open()
        stored = await session.read_with(database, definitions.load_definitions)
        row = next((each for each in stored.of_kind(DefinitionKind.SYSTEM) if each.name == system), None)
        if row is None:
            raise _no_system(system, [each.name for each in stored.of_kind(DefinitionKind.SYSTEM)])
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

    async def clear(self, system: str, *, reason: str | None = None) -> UUID:
        """Delete all objects of a system from the connector space, as a task; the metaverse is not touched."""
        await self._check_no_open_run(system)
        return await self._enqueue(
            "identity.system.clear", system, "identity.clear", {"system": system}, reason=reason, is_unique=True
        )

    async def delete_system(self, system: str, *, reason: str | None = None) -> UUID:
        """Delete a system with its objects and rules, as a task; refused while a run is open."""
        await self._check_no_open_run(system)
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
            raise _no_system(system, list(known))
        open_run = await session.read_with(database, definitions.find_open_run, known[system].number)
        if open_run is not None:
            raise Conflict(
                f"the run {open_run} of the system {system!r} is open",
                code="identity.system.run_open",
                remedy="wait for its end, or cancel its task",
            )

    async def _enqueue(
        self,
        action: str,
        system: str,
        kind: str,
        arguments: Mapping[str, Any],
        *,
        reason: str | None = None,
        is_unique: bool = False,
        id: UUID | None = None,
    ) -> UUID:
        operation = await self._begin(action, target=system, reason=reason)
        task = build_task(
            self._services,
            operation.database,
            kind,
            arguments,
            operation.actor,
            unique_key=f"{kind}:{system}" if is_unique else None,
            id=id,
        )
        operation.entry.after = {"task_id": str(task.id), **arguments}
        return await tasks.enqueue_or_find(operation.database, task, may_exist=id is not None)

    # --- changes ----------------------------------------------------------------------------------------------------

    async def set_enabled(self, system: str, *, enabled: bool, reason: str | None = None) -> bool:
        """Enable or disable a system; return False if that changes nothing. Runs of a disabled one are refused."""
        operation = await self._begin("identity.system.enable" if enabled else "identity.system.disable", target=system)
        wanted = "active" if enabled else "disabled"

        async def act(connection: Connection) -> bool:
            row = await _lock(connection, system)
            if row.state == wanted:
                operation.entry.mark_unchanged()
                return False
            if row.state == "deleting":
                raise Conflict(f"the system {system!r} is being deleted", code="identity.system.not_active")
            operation.entry.before, operation.entry.after = {"state": row.state}, {"state": wanted}
            await definitions.set_system_state(connection, system, wanted)
            return True

        return await operation.database.transaction(act)

    async def approve(self, system: str, *, reason: str) -> UUID | None:
        """Approve exactly what a guard holds, minus what has come back; return the task that applies it, if any."""
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
            row = await _lock(connection, system)
            if row.held is None:
                raise Conflict(
                    f"the system {system!r} is not on hold",
                    code="identity.hold.missing",
                    remedy="nothing has to be approved",
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
        return await tasks.enqueue_or_find(database, task)

    async def retry(self, system: str, *, object_id: int | None = None, reason: str | None = None) -> int:
        """Send failed and refused exports of a system again from the first attempt; return their number."""
        operation = await self._begin("identity.exports.retry", target=system, reason=reason)
        count = 0
        after = 0 if object_id is None else object_id - 1

        async def act(connection: Connection) -> tuple[int, int | None]:
            row = await _lock(connection, system)
            names = {row.number: row.name}
            found = await exports.lock_exports_to_retry(
                connection, row.number, after, 1 if object_id is not None else RETRY_PAGE, names
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


async def _lock(connection: Connection, system: str) -> SystemRow:
    """Lock a system in a transaction of an operation."""
    await session.prepare(connection)
    row = await definitions.lock_system(connection, system)
    if row is None:
        raise _no_system(system, [])
    return row


def _no_system(system: str, known: Sequence[str]) -> NotFound:
    return NotFound(
        f"there is no connected system {system!r}",
        code="identity.system.not_found",
        remedy=suggestion(system, known) or "list them with `tenuto identity systems`",
    )
