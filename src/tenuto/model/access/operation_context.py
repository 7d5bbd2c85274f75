"""The context of an operation, recorded with every change that it makes: actor, action, source and reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from tenuto.model.access.actors import Actor


@dataclass(slots=True)
class IdempotencyKey:
    """Idempotency key of a request, stored in the transaction of the first change that the request makes."""

    actor: str
    key: str
    fingerprint: bytes
    subject: UUID
    is_stored: bool = False


@dataclass(frozen=True, slots=True)
class OperationContext:
    """Actor, action and circumstances of one operation."""

    actor: Actor
    action: str
    """Name in the audit trail, such as ``schedule.enable``."""
    source: str = "code"
    """Origin: an IP address, ``cli`` or ``code``."""
    reason: str | None = None
    idempotency_key: IdempotencyKey | None = None
    correlation_id: str | None = None
    """Id of the request that caused the operation."""


@dataclass(frozen=True, slots=True)
class OperationCaller:
    """The caller on whose behalf operations run.

    Operations of a person or an API key are audited. Those of the program itself are not: its tasks carry their
    initiator, its definitions their versions.
    """

    current_actor: Callable[[], Actor]
    is_audited: bool = False
    source: str = "code"
    reason: str | None = None
    idempotency_key: IdempotencyKey | None = None
    correlation_id: str | None = None

    @property
    def actor(self) -> Actor:
        return self.current_actor()

    def begin(self, action: str, reason: str | None = None) -> OperationContext:
        """Return the context of a new operation of this caller."""
        key = self.idempotency_key
        return OperationContext(
            self.actor,
            action,
            self.source,
            reason or self.reason,
            None if key is None or key.is_stored else key,
            self.correlation_id,
        )
