"""Operations bound to a caller: each begins with a context, and every change is recorded for its caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from tenuto.definitions.versioned_definitions import ChangeContext
from tenuto.model.access.actors import Actor
from tenuto.model.access.operation_context import OperationCaller, OperationContext
from tenuto.postgres.database import Database
from tenuto.store.access.audit_recorder import AuditedDatabase, AuditEntry

OpenDatabase = Callable[[], Awaitable[Database]]

G = TypeVar("G", bound="OperationGroup")


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that may change rows."""

    context: OperationContext
    database: Database
    """Writes the audit entry with the first change, if the operation is audited."""
    entry: AuditEntry
    """What the audit trail will say; ignored if the operation is not audited."""
    now: datetime
    """Instant of the operation by the clock of the database."""
    is_audited: bool

    @property
    def actor(self) -> Actor:
        return self.context.actor


class OperationGroup:
    """Operations on one kind of object, on behalf of one caller."""

    def __init__(self, open: OpenDatabase, caller: OperationCaller) -> None:
        self._open_shared = open
        self._caller = caller
        self._replica: Database | None = None
        """The read replica from which the queries of a request read, see `reading_from`."""

    def for_caller(self: G, caller: OperationCaller) -> G:
        """Return the same operations for another caller; caches and declarations are shared."""
        bound = object.__new__(type(self))
        for name, value in vars(self).items():
            setattr(bound, name, value.for_caller(caller) if isinstance(value, OperationGroup) else value)
        bound._caller = caller
        return bound

    def reading_from(self: G, replica: Database) -> G:
        """Return the same operations, whose queries read from a read replica; changes still go to the primary.

        Only for what is shown: the state of a replica is old, so nothing may be decided by it.
        """
        bound = object.__new__(type(self))
        for name, value in vars(self).items():
            setattr(bound, name, value.reading_from(replica) if isinstance(value, OperationGroup) else value)
        bound._replica = replica
        return bound

    async def _open(self) -> Database:
        """Return the database for queries; for an audited caller, and on a read replica, it refuses changes."""
        if self._replica is not None:
            return AuditedDatabase(self._replica)
        database = await self._open_shared()
        return AuditedDatabase(database) if self._caller.is_audited else database

    async def _begin(
        self,
        action: str,
        *,
        target: str | None = None,
        before: Any = None,
        after: Any = None,
        reason: str | None = None,
        database: Database | None = None,
    ) -> Operation:
        """Begin an operation; ``before`` and ``after`` describe the change in the audit trail."""
        shared = database or await self._open_shared()
        context = self._caller.begin(action, reason)
        entry = AuditEntry(context, target, before, after)
        is_audited = self._caller.is_audited
        return Operation(
            context, AuditedDatabase(shared, entry) if is_audited else shared, entry, shared.clock.now(), is_audited
        )


def change_context(operation: Operation, origin: str = "hand") -> ChangeContext:
    """Return the context of a change of definitions that an operation makes."""
    return ChangeContext(operation.actor, operation.now, operation.context.reason, origin, operation.entry)
