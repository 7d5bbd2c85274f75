"""Joins that a user decides, and the erasure of the history of an identity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.operations.bound_operation import Operation
from tenuto.postgres.database import Connection
from tenuto_identity.model.json_integers import LongId
from tenuto_identity.model.objects import JoinKind, ObjectState
from tenuto_identity.model.sync.engine import DeleteAfter, DeleteNow, deletion_rule, is_cancelled_by
from tenuto_identity.model.sync.pending_exports import ExportState
from tenuto_identity.operations.operation_group import IdentityGroup, lock_system
from tenuto_identity.runs.definition_snapshot import Configuration, load_configuration
from tenuto_identity.runs.explanation_loader import no_identity
from tenuto_identity.runs.page_context import load_identity_context
from tenuto_identity.store import exports, metaverse, objects, previews, run_items, sync_marks, transaction_settings
from tenuto_identity.store.metaverse import IdentityWrite
from tenuto_identity.store.objects import ObjectRow
from tenuto_identity.store.sync_marks import MarkReason

MIN_DELETION_GRACE = timedelta(days=1)
"""An identity that a manual disconnection orphans is not deleted before: the user may join another object."""


@dataclass(frozen=True, slots=True)
class ManualJoin:
    """An object after a user joined it, disconnected it, or returned it to the rules."""

    object_id: LongId
    system: str
    anchor: str
    metaverse_id: LongId | None
    pinned: bool
    """The rules leave the join as it is."""
    delete_after: datetime | None = None
    """When the identity that lost the object is deleted by its deletion rule."""


@dataclass(frozen=True, slots=True)
class Erasure:
    """What was erased of the history of an identity."""

    change_count: int
    item_count: int


class JoinOperations(IdentityGroup):
    """Operations on single objects and identities."""

    async def join(self, system: str, anchor: str, identity: int, *, reason: str | None = None) -> ManualJoin:
        """Join an object to an identity. The rules leave the join as it is until `unpin`; the next sync applies it."""
        operation = await self._begin("identity.object.join", target=f"{system}/{anchor}", reason=reason)

        async def act(connection: Connection) -> ManualJoin:
            configuration, row = await _lock_object(connection, system, anchor, identity)
            if row.metaverse_id == identity and row.pinned:
                operation.entry.mark_unchanged()
                return ManualJoin(row.id, system, anchor, identity, pinned=True)
            _require_normal(system, row)  # guard: identity.join_normal
            context = await load_identity_context(connection, configuration, system, [identity])
            found = context.identities.get(identity)
            if found is None:
                raise no_identity(identity)
            if row.metaverse_id not in (None, identity):
                raise Conflict(
                    f"the object {anchor!r} of {system} is joined to the identity {row.metaverse_id}",
                    code="identity.object.joined",
                    remedy="disconnect it first with `tenuto identity unjoin`",
                )
            others = [each for each in context.objects.values() if each.system == system and each.id != row.id]
            if others:
                raise Conflict(
                    f"the identity {identity} is joined to the object {others[0].anchor!r} of {system} already",
                    code="identity.identity.joined",
                    remedy="disconnect that object first: an identity has one object in each system",
                )
            _check_rule(configuration, system, row, found.type)
            await objects.set_manual_join(connection, row.id, identity, JoinKind.JOINED, True, operation.now)
            if is_cancelled_by(configuration.rules.metaverse_types[found.type], found, system):
                write = _identity_write(context.identity_rows[identity], None, None, None)
                await metaverse.update_identities(connection, [write], operation.now)
            await sync_marks.set_marks(connection, [(row.id, row.system_number)], MarkReason.MANUAL)
            operation.entry.before = {"identity": row.metaverse_id, "pinned": row.pinned}
            operation.entry.after = {"identity": identity, "pinned": True}
            return ManualJoin(row.id, system, anchor, identity, pinned=True)

        return await operation.database.transaction(act)

    async def unjoin(self, system: str, anchor: str, *, reason: str | None = None) -> ManualJoin:
        """Disconnect an object from its identity. The rules do not join it again until `unpin`.

        What the object contributed is withdrawn by the next sync. If the deletion rule of the identity applies, its
        deletion is scheduled, a day from now at the earliest."""
        operation = await self._begin("identity.object.unjoin", target=f"{system}/{anchor}", reason=reason)

        async def act(connection: Connection) -> ManualJoin:
            configuration, row = await _lock_object(connection, system, anchor, None)
            if row.metaverse_id is None:
                if row.pinned:
                    operation.entry.mark_unchanged()
                else:
                    await objects.set_manual_join(connection, row.id, None, None, True, operation.now)
                    operation.entry.after = {"identity": None, "pinned": True}
                return ManualJoin(row.id, system, anchor, None, pinned=True)
            _require_normal(system, row)
            pending = await exports.lock_exports(connection, [row.id], configuration.system_names)
            if any(each.state is ExportState.EXECUTING for each in pending.values()):
                raise Conflict(
                    f"an export of the object {anchor!r} of {system} is being sent",
                    code="identity.object.exporting",
                    remedy="wait for the end of the run",
                )
            await exports.delete_exports(connection, list(pending))
            delete_after = await self._schedule_orphan(connection, configuration, row, system, operation)
            await objects.set_manual_join(connection, row.id, None, None, True, operation.now)
            await sync_marks.delete_marks_of_objects(connection, [row.id])
            await sync_marks.mark_joined_objects(connection, [row.metaverse_id], MarkReason.MANUAL)
            operation.entry.before = {"identity": row.metaverse_id, "pinned": row.pinned}
            operation.entry.after = {
                "identity": None,
                "pinned": True,
                "delete_after": None if delete_after is None else delete_after.isoformat(),
            }
            return ManualJoin(row.id, system, anchor, None, pinned=True, delete_after=delete_after)

        return await operation.database.transaction(act)

    async def _schedule_orphan(
        self, connection: Connection, configuration: Configuration, row: ObjectRow, system: str, operation: Operation
    ) -> datetime | None:
        """Apply the deletion rule to an identity that loses an object; return when it is deleted."""
        assert row.metaverse_id is not None
        context = await load_identity_context(connection, configuration, system, [row.metaverse_id])
        identity = context.identities[row.metaverse_id]
        metaverse_type = configuration.rules.metaverse_types[identity.type]
        remaining = {each.system for each in context.objects.values() if each.id != row.id}
        decision = deletion_rule(metaverse_type, identity.origin, system, remaining)
        if identity.delete_after is not None or not isinstance(decision, DeleteNow | DeleteAfter):
            return identity.delete_after
        grace = max(decision.grace, MIN_DELETION_GRACE) if isinstance(decision, DeleteAfter) else MIN_DELETION_GRACE
        actor, delete_after = operation.actor, operation.now + grace
        initiator = {"type": actor.type.value, "id": actor.id, "name": actor.name, "system": system}
        write = _identity_write(context.identity_rows[row.metaverse_id], operation.now, delete_after, initiator)
        await metaverse.update_identities(connection, [write], operation.now)
        return delete_after

    async def unpin(self, system: str, anchor: str, *, reason: str | None = None) -> ManualJoin:
        """Return an object to the rules: the next sync may join or disconnect it."""
        operation = await self._begin("identity.object.unpin", target=f"{system}/{anchor}", reason=reason)

        async def act(connection: Connection) -> ManualJoin:
            _, row = await _lock_object(connection, system, anchor, None)
            if not row.pinned:
                operation.entry.mark_unchanged()
            else:
                operation.entry.before, operation.entry.after = {"pinned": True}, {"pinned": False}
                await objects.set_manual_join(connection, row.id, row.metaverse_id, row.join_kind, False, operation.now)
                await sync_marks.set_marks(connection, [(row.id, row.system_number)], MarkReason.MANUAL)
            return ManualJoin(row.id, system, anchor, row.metaverse_id, pinned=False)

        return await operation.database.transaction(act)

    async def forget(self, identity: int, *, reason: str) -> Erasure:
        """Erase the history of an identity, which may be deleted already: changes, and what items say about it.

        Current values stay: they leave with the object in the source. Previews that have begun are deleted."""
        if not reason.strip():
            raise Invalid(
                "an erasure needs a reason",
                code="identity.forget.reason_missing",
                field="reason",
                remedy="say why the history is erased, such as the request of the person",
            )
        operation = await self._begin("identity.identity.forget", target=str(identity), reason=reason)

        async def act(connection: Connection) -> Erasure:
            await transaction_settings.prepare(connection, whole_tables=True)
            is_previewed = await previews.has_item_of(connection, identity)
            # guard: identity.forget_previews
            preview_count = await previews.delete_begun(connection)
            erased = Erasure(*await run_items.erase_history(connection, identity))
            if not erased.change_count and not erased.item_count and not is_previewed:
                if not await metaverse.load_identities(connection, [identity]):
                    raise NotFound(
                        f"there is neither a metaverse object {identity} nor a history of one",
                        code="identity.identity.not_found",
                        remedy="list them with `tenuto identity identities`",
                    )
                if not preview_count:
                    operation.entry.mark_unchanged()
                    return erased
            operation.entry.after = {
                "changes": erased.change_count,
                "items": erased.item_count,
                "previews": preview_count,
            }
            return erased

        return await operation.database.transaction(act)


async def _lock_object(
    connection: Connection, system: str, anchor: str, identity: int | None
) -> tuple[Configuration, ObjectRow]:
    """Lock an object, and before it the identities concerned, in the order of all transactions."""
    row = await lock_system(connection, system)
    configuration = await load_configuration(connection)
    ids = await objects.find_by_anchor(connection, row.number, anchor)
    if len(ids) > 1:
        raise Conflict(
            f"the system {system!r} has objects of several types with the anchor {anchor!r}",
            code="identity.object.ambiguous",
            remedy="give the types different anchors",
        )
    found = await objects.load_objects(connection, ids)
    if not found:
        raise NotFound(
            f"the system {system!r} has no object with the anchor {anchor!r}",
            code="identity.object.not_found",
            field="anchor",
            remedy="list them with `tenuto identity objects`",
        )
    concerned = {each for each in (identity, found[0].metaverse_id) if each is not None}
    await metaverse.lock_identities(connection, sorted(concerned))
    await objects.lock_objects(connection, ids)
    locked = await objects.load_objects(connection, ids)
    if not locked or locked[0].metaverse_id != found[0].metaverse_id:
        raise Conflict(
            f"the object {anchor!r} of {system} has changed meanwhile",
            code="identity.object.changed",
            remedy="try again",
        )
    return configuration, locked[0]


def _require_normal(system: str, row: ObjectRow) -> None:
    """Refuse an object that an export is still creating, or that was deleted in its system."""
    if row.state is not ObjectState.NORMAL:
        raise Conflict(
            f"the object {row.anchor!r} of {system} is {row.state.value}",
            code="identity.object.not_normal",
            remedy="wait for its export and import, or for the sync that removes it",
        )


def _check_rule(configuration: Configuration, system: str, row: ObjectRow, metaverse_type: str) -> None:
    """Refuse a join between types that no rule connects: nothing would flow."""
    type_name = configuration.systems[system].type_names.get(row.type_number)
    connected = sorted(
        {
            rule.metaverse_type
            for rule in configuration.rules.rules
            if rule.system == system and rule.object_type == type_name
        }
    )
    if metaverse_type not in connected:
        raise Invalid(
            f"no sync rule connects the type {type_name!r} of {system} with the metaverse type {metaverse_type!r}",
            code="identity.object.type_mismatch",
            field="identity",
            remedy=f"join it to an identity of the type {' or '.join(connected)}" if connected else "declare a rule",
        )


def _identity_write(
    row: metaverse.IdentityRow,
    scheduled_at: datetime | None,
    delete_after: datetime | None,
    initiator: Mapping[str, Any] | None,
) -> IdentityWrite:
    return IdentityWrite(
        row.id,
        row.type_number,
        row.attributes,
        row.provenance,
        row.display,
        row.origin,
        scheduled_at,
        delete_after,
        initiator,
        row.reevaluate_at,
    )
