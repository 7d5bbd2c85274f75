"""What the operations of identity synchronisation share: the services, tasks, and the lock of a system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from tenuto.errors import NotFound
from tenuto.extension import ExtensionServices
from tenuto.operations.bound_operation import OperationGroup
from tenuto.postgres.database import Connection
from tenuto.store.work import task_creation
from tenuto_identity.model.definitions.definition_reader import suggestion
from tenuto_identity.model.sync.explanation import HIDDEN, sensitive_attributes
from tenuto_identity.runs.definition_snapshot import load_configuration
from tenuto_identity.store import definitions, transaction_settings
from tenuto_identity.store.definitions import SystemRow
from tenuto_identity.tasks.task_creation import build_task


class IdentityGroup(OperationGroup):
    """Operations on behalf of one caller."""

    def __init__(self, services: ExtensionServices) -> None:
        super().__init__(services.open_database, services.caller)
        self._services = services

    async def _enqueue(
        self,
        action: str,
        target: str,
        kind: str,
        arguments: Mapping[str, Any],
        *,
        reason: str | None = None,
        is_unique: bool = False,
        id: UUID | None = None,
    ) -> UUID:
        operation = await self._begin(action, target=target, reason=reason)
        task = build_task(
            self._services,
            operation.database,
            kind,
            arguments,
            operation.actor,
            unique_key=f"{kind}:{target}" if is_unique else None,
            id=id,
        )
        operation.entry.after = {"task_id": str(task.id), **arguments}
        return await task_creation.enqueue_or_find(operation.database, task, may_exist=id is not None)


async def lock_system(connection: Connection, system: str) -> SystemRow:
    """Lock a system in a transaction of an operation."""
    await transaction_settings.prepare(connection)
    row = await definitions.lock_system(connection, system)
    if row is None:
        raise no_system(system, [])
    return row


def no_system(system: str, known: Sequence[str]) -> NotFound:
    return NotFound(
        f"there is no connected system {system!r}",
        code="identity.system.not_found",
        remedy=suggestion(system, known) or "list them with `tenuto identity systems`",
    )


async def hidden_attributes(connection: Connection, reveals: bool) -> frozenset[str]:
    """Return the attributes whose values the caller may not see."""
    return frozenset() if reveals else sensitive_attributes((await load_configuration(connection)).rules)


def hide(values: Mapping[str, Any], hidden: frozenset[str]) -> dict[str, Any]:
    """Return values by attribute with those of sensitive attributes replaced."""
    return {name: [HIDDEN] if name in hidden else found for name, found in values.items()}


def hide_change(change: Mapping[str, Any], hidden: frozenset[str]) -> dict[str, Any]:
    if change["attribute"] not in hidden:
        return dict(change)
    return {name: [HIDDEN] if name in ("values", "references", "observed") else value for name, value in change.items()}
