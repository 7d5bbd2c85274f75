"""Operations for tests of functions that take one."""

from __future__ import annotations

from tenuto.model.access.actors import Actor
from tenuto.model.access.operation_context import OperationContext
from tenuto.operations.bound_operation import Operation
from tenuto.postgres.database import Database
from tenuto.store.access.audit_recorder import AuditEntry


def make_unaudited_operation(database: Database, actor: Actor, action: str = "test.act") -> Operation:
    """Return an operation that leaves no audit entry."""
    context = OperationContext(actor, action)
    return Operation(context, database, AuditEntry(context), database.clock.now(), is_audited=False)
