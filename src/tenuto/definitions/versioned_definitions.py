"""Versioned definitions: create, edit, enable, disable, declare and delete schedules and manifests.

Each change is one transaction, one version and one audit entry. `schedule_definitions` and `manifest_definitions`
supply the checks and consequences of their kind. A stored definition has the current fields and the fields that code or
a file declared last. A declaration takes effect only if it differs from the previous one, so that changes by operators
remain. Only operators enable or disable an existing definition. Nothing is deleted because a declaration is missing.

Transactions are retried when the commit acknowledgement is lost. Each operation therefore records its result outside
the transaction function, so that a retry recognises its own earlier commit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar
from uuid import UUID

from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.ids import new_id
from tenuto.model import validation
from tenuto.model.access.actors import Actor
from tenuto.model.definitions.blocking_reasons import DefinitionKind
from tenuto.model.definitions.dependency_order import check_no_cycle
from tenuto.model.triggers import check_has_run_after
from tenuto.postgres.database import UNIQUE_VIOLATION, Connection, Database, DatabaseError
from tenuto.store.access.audit_recorder import AuditEntry
from tenuto.store.definitions.definition_rows import Definition, DefinitionTable, StoredDefinition, Version

Effect = Literal["created", "changed", "unchanged", "kept"]
"""``kept``: an operator changed the definition, and the declaration is the same as before."""
CHANGING_EFFECTS: tuple[Effect, ...] = ("created", "changed")


def declaration_effect(current: StoredDefinition[Any] | None, declared: Mapping[str, Any]) -> Effect:
    """Return what a declaration would change."""
    if current is None:
        return "created"
    if current.fields == declared:
        return "unchanged"
    return "kept" if current.declared == declared else "changed"


@dataclass(frozen=True, slots=True)
class ChangeContext:
    """The actor, time, reason and origin of a change, and the audit entry that describes it."""

    actor: Actor
    now: datetime
    reason: str | None = None
    origin: str = "hand"
    entry: AuditEntry | None = None

    def __post_init__(self) -> None:
        if self.reason is not None:
            validation.check_text(self.reason, field="reason", limit=1000)

    def add_change(self, key: str, before: Any, after: Any) -> None:
        """Add a changed object to the audit entry."""
        if self.entry is not None:
            self.entry.add_change(key, before, after)

    def mark_unchanged(self) -> None:
        """Leave no audit entry, because nothing had to be changed."""
        if self.entry is not None:
            self.entry.mark_unchanged()

    def mark_unchanged_if_nothing_changed(self) -> None:
        """Leave no audit entry, unless a change was added."""
        if self.entry is not None and not self.entry.changes:
            self.entry.mark_unchanged()


D = TypeVar("D", bound=Definition)
S = TypeVar("S", bound=StoredDefinition[Any])


class VersionedDefinitions(ABC, Generic[D, S]):
    """The operations on one kind of definition."""

    kind: DefinitionKind
    rows: DefinitionTable[D, S]

    # --- rules of each kind -----------------------------------------------------------------------------------------

    @abstractmethod
    def not_found(self, key: str) -> NotFound: ...

    @abstractmethod
    def already_exists(self, key: str, remedy: str) -> Conflict: ...

    @abstractmethod
    def missing_reference(self, new: D, key: str, remedy: str) -> Invalid:
        """Return the error for a definition that refers to one that does not exist."""

    @abstractmethod
    async def lock_all_references(self, connection: Connection) -> None: ...

    @abstractmethod
    async def load_references(self, connection: Connection) -> dict[str, Collection[str]]:
        """Return what each stored definition refers to, by key; those without references may be left out."""

    @abstractmethod
    async def find_referenced(self, connection: Connection, keys: Collection[str]) -> set[str]:
        """Return which of these definitions exist."""

    @abstractmethod
    def check_names(self, new: D, before: D | None = None) -> None:
        """Raise `Invalid` for names with invisible characters, except names of ``before``."""

    @abstractmethod
    async def check_key_change(self, connection: Connection, current: S, new: D) -> None:
        """Raise if the key cannot be changed."""

    @abstractmethod
    def timing_changed(self, current: S, new: D) -> bool:
        """Return whether the times or the reason to run change."""

    @abstractmethod
    async def resolve_pending_runs(
        self, connection: Connection, current: S, context: ChangeContext, *, timing_changed: bool, enabled_after: bool
    ) -> None:
        """Decide due and queued runs before the definition is enabled, disabled or gets other timing."""

    @abstractmethod
    async def prepare_deletion(self, connection: Connection, current: S, context: ChangeContext) -> None:
        """Raise `Conflict` if the definition is in use; otherwise decide its due and queued runs."""

    # --- references -------------------------------------------------------------------------------------------------

    async def lock_reference_changes(self, connection: Connection, definitions: Iterable[D]) -> None:
        """Lock changes of references if a definition refers to others: two concurrent changes could form a cycle that
        neither detects. Called before any row is locked; a plan takes the lock before."""
        if any(new.references for new in definitions):
            await self.lock_all_references(connection)

    async def check_references(self, connection: Connection, new: D, before: D | None = None) -> None:
        """Check that referenced definitions exist and form no cycle; skipped if unchanged since ``before``."""
        wanted = new.references
        if not wanted or (before is not None and (before.key, before.references) == (new.key, wanted)):
            return
        check_no_cycle(new, await self.load_references(connection))
        if missing := sorted(set(wanted) - await self.find_referenced(connection, wanted)):
            raise self.missing_reference(new, missing[0], "create it first")

    # --- operations -------------------------------------------------------------------------------------------------

    async def get(self, database: Database, key: str) -> S:
        stored = await self.rows.load(database, key)
        if stored is None:
            raise self.not_found(key)
        return stored

    async def create(
        self, database: Database, new: D, context: ChangeContext, *, enabled: bool = True, id: UUID | None = None
    ) -> S:
        """Create a definition. Raise `Conflict` if its key exists. A repeated call with the same id creates one."""
        id = id or new_id()

        async def create_definition(connection: Connection) -> None:
            await self.lock_reference_changes(connection, [new])
            await self._check_new_definition(connection, new, context.now)
            if not await self._insert(connection, id, new, context, enabled=enabled, declared=None):
                existing = await self.rows.lock(connection, new.key)
                if existing is None or existing.id != id:
                    raise self.already_exists(new.key, "edit the existing one")
                context.mark_unchanged()

        try:
            await database.transaction(create_definition)
        except DatabaseError as error:
            if error.sqlstate == UNIQUE_VIOLATION:  # its first version exists: the id was used before
                raise Conflict(
                    f"the {self.kind} that this request created has been deleted since",
                    code="definition.request.already_used",
                    field="request_id",
                    remedy="create it again with another request id",
                ) from error
            raise
        return await self.get(database, new.key)

    async def edit(
        self, database: Database, key: str, new: D, context: ChangeContext, *, version: int | None = None
    ) -> S:
        """Replace a definition. With ``version``, raise `Conflict` if it has another version."""
        edited = False

        async def edit_definition(connection: Connection) -> None:
            nonlocal edited
            await self.lock_reference_changes(connection, [new])
            if edited and (stored := await self.rows.lock(connection, new.key)) and stored.definition == new:
                return  # our own commit, whose reply was lost
            current = await self._lock_existing(connection, key)
            if new.key != key:
                await self.check_key_change(connection, current, new)
            _check_version(current, version)
            edited = await self._change(connection, current, new, context)

        try:
            await database.transaction(edit_definition)
        except DatabaseError as error:
            if error.sqlstate == UNIQUE_VIOLATION:
                raise self.already_exists(new.key, "choose another key") from error
            raise
        return await self.get(database, new.key)

    async def set_enabled(self, database: Database, key: str, context: ChangeContext, *, enabled: bool) -> bool:
        """Enable or disable; return False if that changes nothing. Runs due while disabled are not made up for."""
        changed = False

        async def change_enabled(connection: Connection) -> bool:
            nonlocal changed
            current = await self._lock_existing(connection, key)
            if current.enabled != enabled:
                changed = await self._change(connection, current, current.definition, context, enabled=enabled)
            elif not changed:
                context.mark_unchanged()
            return changed

        return await database.transaction(change_enabled)

    async def delete(self, database: Database, key: str, context: ChangeContext, *, version: int | None = None) -> None:
        """Delete a definition that is not in use; its history remains. With ``version``, raise `Conflict` if it has
        another version."""
        deleted_id: UUID | None = None

        async def delete_definition(connection: Connection) -> None:
            nonlocal deleted_id
            current = await self.rows.lock(connection, key)
            if deleted_id is not None and (current is None or current.id != deleted_id):
                return  # our own commit, whose reply was lost
            if current is None:
                raise self.not_found(key)
            _check_version(current, version)
            await self._delete(connection, current, context)
            deleted_id = current.id

        await database.transaction(delete_definition)

    async def delete_in_tx(self, connection: Connection, key: str, context: ChangeContext) -> None:
        """Like `delete`, within a transaction."""
        await self._delete(connection, await self._lock_existing(connection, key), context)

    async def declare(self, database: Database, new: D, context: ChangeContext) -> Effect:
        """Apply a declaration of code or a file if it differs from the previous one."""
        id = new_id()
        reported: Effect | None = None

        async def declare_definition(connection: Connection) -> Effect:
            nonlocal reported
            effect = await self.declare_in_tx(connection, new, context, id)
            if reported is None or effect != "unchanged":
                reported = effect
            context.mark_unchanged_if_nothing_changed()
            return reported

        return await database.transaction(declare_definition)

    async def declare_in_tx(self, connection: Connection, new: D, context: ChangeContext, id: UUID) -> Effect:
        """Like `declare`, within a transaction; ``id`` is used if the definition is created."""
        fields = new.to_fields()
        await self.lock_reference_changes(connection, [new])
        current = await self.rows.lock(connection, new.key)
        if current is None:
            # Only new definitions are checked: a service must start although the trigger of an existing one has ended.
            await self._check_new_definition(connection, new, context.now)
            if await self._insert(connection, id, new, context, enabled=True, declared=fields):
                return "created"
            current = await self._lock_existing(connection, new.key)
        effect = declaration_effect(current, fields)
        if effect == "changed":
            await self._change(connection, current, new, context, declared=fields)
        elif effect == "unchanged" and current.declared != fields:  # from now on, the declaration owns it
            await self.rows.store_declaration(connection, current.id, fields, context.origin)
            context.add_change(new.key, {"origin": current.origin}, {"origin": context.origin})
        return effect

    # --- implementation ---------------------------------------------------------------------------------------------

    async def _check_new_definition(self, connection: Connection, new: D, now: datetime) -> None:
        """Check a new definition against the current time and the other definitions."""
        self.check_names(new)
        check_has_run_after(new.trigger, now)
        await self.check_references(connection, new)

    async def _lock_existing(self, connection: Connection, key: str) -> S:
        current = await self.rows.lock(connection, key)
        if current is None:
            raise self.not_found(key)
        return current

    async def _insert(
        self,
        connection: Connection,
        id: UUID,
        new: D,
        context: ChangeContext,
        *,
        enabled: bool,
        declared: dict[str, Any] | None,
    ) -> bool:
        next_run = new.trigger.next_after(context.now, str(id)) if enabled else None
        created = await self.rows.insert(
            connection, id, new, enabled=enabled, origin=context.origin, declared=declared, now=context.now,
            next_run=next_run,
        )  # fmt: skip
        if created:
            after = {**new.to_fields(), "enabled": enabled}
            await self._record(connection, id, 1, new.key, "created", context, None, after)
        return created

    async def _change(
        self,
        connection: Connection,
        current: S,
        new: D,
        context: ChangeContext,
        *,
        enabled: bool | None = None,
        declared: dict[str, Any] | None = None,
    ) -> bool:
        """Write one change; return False if nothing changes. The next run is computed again only if the timing or the
        enabled state changes."""
        enabled_after = current.enabled if enabled is None else enabled
        enabled_changed = enabled_after != current.enabled
        before, after = _audit_state(current), {**new.to_fields(), "enabled": enabled_after}
        if before == after and declared is None:
            context.mark_unchanged()
            return False
        self.check_names(new, current.definition)
        timing_changed = self.timing_changed(current, new)
        if timing_changed or (enabled_changed and enabled_after):  # an ended trigger can still be edited and disabled
            check_has_run_after(new.trigger, context.now)
        await self.check_references(connection, new, current.definition)
        next_run = current.next_run_at
        if timing_changed or enabled_changed:
            await self.resolve_pending_runs(
                connection, current, context, timing_changed=timing_changed, enabled_after=enabled_after
            )
            next_run = new.trigger.next_after(context.now, str(current.id)) if enabled_after else None
        version = await self.rows.update(
            connection,
            current.id,
            new,
            enabled=enabled_after,
            origin=current.origin if declared is None else context.origin,
            declared=declared,
            now=context.now,
            next_run=next_run,
        )
        change = ("enabled" if enabled_after else "disabled") if enabled_changed else "edited"
        await self._record(connection, current.id, version, new.key, change, context, before, after)
        return True

    async def _delete(self, connection: Connection, current: S, context: ChangeContext) -> None:
        await self.prepare_deletion(connection, current, context)
        await self.rows.delete(connection, current.id)
        next_version, before = current.version + 1, _audit_state(current)
        await self._record(connection, current.id, next_version, current.key, "deleted", context, before, None)

    async def _record(
        self,
        connection: Connection,
        id: UUID,
        version: int,
        key: str,
        change: str,
        context: ChangeContext,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
    ) -> None:
        context.add_change(key, before, after)
        await self.rows.record_version(
            connection, Version(id, version, key, change, context.now, context.actor, context.reason, before, after)
        )


def _audit_state(current: StoredDefinition[Any]) -> dict[str, Any]:
    return {**current.fields, "enabled": current.enabled}


def _check_version(current: StoredDefinition[Any], expected: int | None) -> None:
    """Raise `Conflict` if the definition does not have the version that the caller has read."""
    if expected is not None and current.version != expected:
        raise Conflict(
            f"{current.key!r} has version {current.version}, not {expected}",
            code="definition.version_conflict",
            remedy="read it again before changing it",
        )
