"""Operations that schedules and manifests share: declare, plan, change and inspect versioned definitions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar
from uuid import UUID

from tenuto.definitions.definition_plan import DeclaredEntry, DefinitionPlan, plan_definitions
from tenuto.definitions.versioned_definitions import (
    CHANGING_EFFECTS,
    Effect,
    VersionedDefinitions,
)
from tenuto.errors import Invalid, UserError
from tenuto.jobs.registry import JobRegistry
from tenuto.logs import Log
from tenuto.model.access.operation_context import OperationCaller
from tenuto.model.definitions.blocking_reasons import Obstacle
from tenuto.model.definitions.dependency_order import sort_definitions
from tenuto.operations.argument_checks import check_limit
from tenuto.operations.bound_operation import OpenDatabase, OperationGroup, change_context
from tenuto.postgres.database import Database
from tenuto.store.definitions.definition_rows import Definition, StoredDefinition, Version
from tenuto.store.reports import blocking_reasons
from tenuto.store.service_notifications import notify_services

log = Log("tenuto.definitions")

F = TypeVar("F", bound=DeclaredEntry)
D = TypeVar("D", bound=Definition)
S = TypeVar("S", bound=StoredDefinition[Any])


class DefinitionOperations(OperationGroup, ABC, Generic[F, D, S]):
    """Operations on one kind of definition. The key is the name of a schedule or the external id of a manifest."""

    _definitions: VersionedDefinitions[D, S]
    _key_field: ClassVar[str]
    _notified_services: ClassVar[Sequence[str]]

    def __init__(self, open: OpenDatabase, caller: OperationCaller, jobs: JobRegistry) -> None:
        super().__init__(open, caller)
        self._jobs = jobs
        self.declared: dict[str, D] = {}
        """Definitions declared by this program, by key."""

    # --- rules of each kind -----------------------------------------------------------------------------------------

    @abstractmethod
    def _already_declared(self, key: str) -> Invalid: ...

    @abstractmethod
    def _read_declaration(self, entry: F) -> D:
        """Return the checked and completed definition of a file."""

    @abstractmethod
    async def _check(self, database: Database, new: D) -> D:
        """Return a definition with its jobs and their input checked and completed."""

    @abstractmethod
    def _must_be_checked(self, new: D, present: D) -> bool:
        """Return whether checked parts have changed. Unchanged parts need no check, so their jobs may be unknown."""

    # --- declare ----------------------------------------------------------------------------------------------------

    def declare(self, new: D) -> D:
        """Declare a definition in code; it is deployed when a service starts, or with `deploy`."""
        if new.key in self.declared:
            raise self._already_declared(new.key)
        self.declared[new.key] = new
        return new

    async def deploy(self, database: Database | None = None) -> dict[str, Effect]:
        """Apply the definitions declared by this program; unchanged ones stay as they are.

        A definition that needs a broken extension is left out, so that a service runs everything else.
        """
        usable = []
        for each in self.declared.values():
            try:
                await self._check(database or await self._open(), each)
                usable.append(each)
            except Invalid as error:
                if error.code != "step.kind.not_available":
                    raise
                log.error("definition not deployed", kind=self._definitions.kind, name=each.key, error=error.message)
        return await self.apply(usable, origin="code", reason="declared in code", database=database) if usable else {}

    async def report_undeclared(self, database: Database, *, prune: bool = False) -> list[str]:
        """Log definitions from code that neither this program nor another running app declares any more, and return
        their keys. With ``prune``, delete those without open runs."""
        kind = self._definitions.kind
        keys = await blocking_reasons.list_undeclared(database, kind, list(self.declared))
        if keys and not prune:
            remedy = f"delete them with `tenuto {kind} delete`, or start a service with --prune"
            log.warning("definitions not declared by any running app", kind=kind, names=keys[:20], remedy=remedy)
        for key in keys if prune else ():
            try:
                await self.delete(key, reason="no running app declares it", database=database)
                log.warning("definition deleted", kind=kind, name=key, reason="no running app declares it")
            except UserError as error:
                log.warning("definition not deleted", kind=kind, name=key, error=str(error))
        return keys

    async def apply(
        self,
        definitions: Iterable[D],
        *,
        origin: str = "file",
        reason: str | None = None,
        database: Database | None = None,
    ) -> dict[str, Effect]:
        """Create or change definitions, prerequisites first, and return the effect on each."""
        queried = database or await self._open()
        effects: dict[str, Effect] = {}
        for new in sort_definitions([await self._check(queried, definition) for definition in definitions]):
            operation = await self._begin(
                f"{self._definitions.kind}.apply", target=new.key, reason=reason, database=database
            )
            effects[new.key] = await self._definitions.declare(
                operation.database, new, change_context(operation, origin)
            )
        if any(effect in CHANGING_EFFECTS for effect in effects.values()):
            await self._wake_services(queried)
        return effects

    async def plan(self, declared: Sequence[F], *, prune: bool = False) -> DefinitionPlan[F, D, S]:
        """Return the changes that applying the definitions of files would make, without making them.

        With ``prune``, definitions that were declared in a file and are no longer declared are deleted.
        """
        for each in declared:
            if each.name in self.declared:
                raise each.locate_error(
                    Invalid(
                        f"the {self._definitions.kind} {each.name!r} is also declared in code",
                        code="plan.declared_in_code",
                        field=self._key_field,
                        remedy="declare it in one place only",
                    )
                )
        database = await self._open()
        now = database.clock.now()
        return await plan_definitions(self._definitions, database, declared, self._read_declaration, now, prune=prune)

    # --- change -----------------------------------------------------------------------------------------------------

    async def create(
        self, new: D, *, enabled: bool = True, reason: str | None = None, request_id: UUID | None = None
    ) -> S:
        """Create a definition. Calls with the same ``request_id`` create one."""
        operation = await self._begin(f"{self._definitions.kind}.create", target=new.key, reason=reason)
        new = await self._check(operation.database, new)
        created = await self._definitions.create(
            operation.database, new, change_context(operation), enabled=enabled, id=request_id
        )
        await self._wake_services(operation.database)
        return created

    async def edit(self, key: str, new: D, *, reason: str | None = None, version: int | None = None) -> S:
        """Change a definition; with ``version``, only if that is its current version."""
        operation = await self._begin(f"{self._definitions.kind}.change", target=key, reason=reason)
        database = operation.database
        present = await self._definitions.get(database, key)
        if self._must_be_checked(new, present.definition):
            new = await self._check(database, new)
        changed = await self._definitions.edit(database, key, new, change_context(operation), version=version)
        await self._wake_services(database)
        return changed

    async def enable(self, key: str, *, reason: str | None = None) -> bool:
        """Enable triggered runs from now on; return False if it was enabled."""
        return await self._set_enabled(key, reason, enabled=True)

    async def disable(self, key: str, *, reason: str | None = None) -> bool:
        """Disable triggered runs, but not manual ones; return False if it was disabled."""
        return await self._set_enabled(key, reason, enabled=False)

    async def _set_enabled(self, key: str, reason: str | None, *, enabled: bool) -> bool:
        action = f"{self._definitions.kind}.{'enable' if enabled else 'disable'}"
        operation = await self._begin(action, target=key, reason=reason)
        switched = await self._definitions.set_enabled(
            operation.database, key, change_context(operation), enabled=enabled
        )
        await self._wake_services(operation.database)
        return switched

    async def delete(
        self, key: str, *, reason: str | None = None, version: int | None = None, database: Database | None = None
    ) -> None:
        """Delete a definition without open runs; its records remain. With ``version``, only if that is current."""
        operation = await self._begin(f"{self._definitions.kind}.delete", target=key, reason=reason, database=database)
        await self._definitions.delete(operation.database, key, change_context(operation), version=version)

    # --- inspect ----------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> S:
        """Return the definition with this key."""
        return await self._definitions.get(await self._open(), key)

    async def obstacles(self, key: str) -> Sequence[Obstacle]:
        """Return why a definition does not run on its own although it is enabled; nothing if it does."""
        return (await blocking_reasons.find_obstacles(await self._open(), self._definitions.kind, [key])).get(key, [])

    async def dependents(self, key: str) -> Sequence[str]:
        """Return the keys of the definitions that run after this one, if there are such."""
        return []

    async def versions(
        self, key: str | UUID, *, before: tuple[datetime, int] | None = None, limit: int = 50
    ) -> Sequence[Version]:
        """List the versions of all definitions that have had this key, or of the one with this id, newest first.

        Deleted definitions are included. The next page is ``before`` the last (at, version).
        """
        found = await self._definitions.rows.list_versions(await self._open(), key, check_limit(limit), before)
        if not found and before is None:
            raise self._definitions.not_found(str(key))
        return found

    async def _wake_services(self, database: Database) -> None:
        await notify_services(database, self._notified_services)
