"""Write audit entries in the transactions of the audited changes.

An operation of a person or an API key runs inside `audited`. `Database` then writes the entry in the first
transaction that changes anything: an operation without changes leaves no entry, and no change is committed without
its entry. The entry is linked into the audit chain shortly afterwards (`audit_log`), because a chain in the
transaction would serialise all writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from uuid import UUID

from tenuto.errors import Conflict
from tenuto.ids import new_id
from tenuto.model.actors import Actor
from tenuto.model.secrets import redact_sensitive_fields
from tenuto.postgres.sql_loader import load_statements

SQL = load_statements(__file__)

_MAX_NAMED_TARGETS = 5
_MAX_TARGET_LENGTH = 500
"""In characters: targets are indexed, and index entries are limited in size."""
_WRITE_PATTERN = re.compile(r"\b(INSERT INTO|DELETE FROM)\b|\bUPDATE tenuto\.", re.IGNORECASE)


@dataclass(slots=True)
class AuditContext:
    """One audited operation: actor, action and the details of its entry."""

    actor: Actor
    action: str
    source: str
    """Origin: an IP address, ``cli`` or ``code``."""
    target: str | None = None
    reason: str | None = None
    request_id: str | None = None
    before: Any = None
    after: Any = None
    idempotency_key: IdempotencyKey | None = None
    id: UUID = field(default_factory=new_id)
    """Id of the entry, so that a repeated transaction writes it once."""
    written: bool = False
    is_unchanged: bool = False
    """Set by the operation if nothing had to be changed; locked rows are no change."""
    changes: list[tuple[str, Any, Any]] = field(default_factory=list)
    """Changes of an operation on several objects: target, before, after."""

    def start_next_entry(self) -> None:
        """Reset the details for the next object of the same operation, which gets its own entry."""
        self.id, self.written, self.idempotency_key = new_id(), False, None
        self.target = self.before = self.after = None

    def begin_transaction(self) -> None:
        """Discard the changes of an earlier attempt at the transaction."""
        self.is_unchanged = False
        self.changes.clear()


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """Idempotency key of a request, stored in the transaction of its change."""

    actor: str
    key: str
    fingerprint: bytes
    subject: UUID


_current_context: ContextVar[AuditContext | None] = ContextVar("tenuto_audit_context", default=None)


@contextmanager
def audited(context: AuditContext) -> Iterator[AuditContext]:
    """Audit the changes inside the block."""
    token = _current_context.set(context)
    try:
        yield context
    finally:
        _current_context.reset(token)


def is_audited() -> bool:
    """Return whether the current operation is audited."""
    return _current_context.get() is not None


def add_audit_details(
    *, target: str | None = None, before: Any = None, after: Any = None, reason: str | None = None
) -> None:
    """Add details to the entry of the current operation before it is committed; without one, do nothing.

    An operation on several targets (``dead-letter retry A B``) has an entry for each.
    """
    context = _current_context.get()
    if context is None:
        return
    if context.written:
        if target is None or target == context.target:
            return
        context.start_next_entry()
    context.target = target or context.target
    context.before = context.before if before is None else before
    context.after = context.after if after is None else after
    context.reason = reason or context.reason


def add_audit_change(target: str, before: Any, after: Any, reason: str | None = None) -> None:
    """Add one changed object, inside the transaction that changes it."""
    if (context := pending_entry()) is not None:
        context.changes.append((target, before, after))
        context.reason = reason or context.reason


@contextmanager
def unaudited() -> Iterator[None]:
    """Do not audit the changes inside the block, such as a migration of the schema."""
    token = _current_context.set(None)
    try:
        yield
    finally:
        _current_context.reset(token)


def mark_unchanged() -> None:
    """Mark the current operation as unchanged, so that it leaves no entry."""
    if (context := pending_entry()) is not None:
        context.is_unchanged = True


def pending_entry() -> AuditContext | None:
    """Return the current audit context if its entry is not written yet."""
    context = _current_context.get()
    return None if context is None or context.written else context


@lru_cache(maxsize=1024)
def is_write(statement: str) -> bool:
    """Return whether a statement writes."""
    return _WRITE_PATTERN.search(statement) is not None


async def write_entry(connection: Any, context: AuditContext) -> bool:
    """Write the entry in the open transaction; return False if nothing was changed in it."""
    if context.is_unchanged:  # guard: audit.no_entry_without_change
        return False
    written = await connection.fetchval(SQL.write_entry, *entry_row(context))
    if written and context.idempotency_key is not None:
        key = context.idempotency_key
        stored = await connection.fetchval(SQL.store_idempotency_key, key.actor, key.key, key.fingerprint, key.subject)
        # guard: idempotency.done_elsewhere
        if stored is None:  # rolls back the transaction
            raise duplicate_request_error()
    return bool(written)


def entry_row(context: AuditContext) -> tuple[Any, ...]:
    """Return an entry as parameters of the statements that write one."""
    target, before, after = _summarise_changes(context)
    context.target = target
    actor = context.actor
    return (
        context.id, actor.type, actor.id, actor.name, context.source, context.request_id, context.action,
        target, context.reason,
        _json(before), _json(after),
    )  # fmt: skip


def duplicate_request_error() -> Conflict:
    """Return the error for a concurrent request with the same idempotency key."""
    return Conflict(
        "another request with this idempotency key has just been completed",
        code="request.idempotency_key.in_use",
        field="Idempotency-Key",
        remedy="send the request again to get its response",
    )


def _summarise_changes(context: AuditContext) -> tuple[str | None, Any, Any]:
    """Return target, before and after of all changes."""
    if not context.changes:
        return context.target, context.before, context.after
    if len(context.changes) == 1:
        return context.changes[0]
    targets = [target for target, _, _ in context.changes]
    more = f" and {len(targets) - _MAX_NAMED_TARGETS} more" if len(targets) > _MAX_NAMED_TARGETS else ""
    before = [{"target": target, "is": was} for target, was, _ in context.changes]
    after = [{"target": target, "is": now} for target, _, now in context.changes]
    return ", ".join(targets[:_MAX_NAMED_TARGETS])[:_MAX_TARGET_LENGTH] + more, before, after


def _json(value: Any) -> str | None:
    # guard: audit.redaction
    return None if value is None else json.dumps(redact_sensitive_fields(value), ensure_ascii=False, default=str)
