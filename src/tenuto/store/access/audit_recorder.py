"""Audit entries of operations: every change of an audited operation is committed with its entry.

An audited operation uses an `AuditedDatabase`. Its queries run in read-only transactions, so that the database refuses
a change outside `transaction`. The first transaction that changes anything also writes the entry: an operation without
changes leaves no entry, and no change is committed without its entry. The entry is linked into the audit chain shortly
afterwards (`audit_log`), because a chain in the transaction would serialise all writes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import asyncpg

from tenuto.errors import Conflict, StoreError
from tenuto.ids import new_id
from tenuto.model.access.operation_context import OperationContext
from tenuto.model.access.secrets import redact_sensitive_fields
from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import load_statements

SQL = load_statements(__file__)

_MAX_NAMED_TARGETS = 5
_MAX_TARGET_LENGTH = 500
"""In characters: targets are indexed, and index entries are limited in size."""

T = TypeVar("T")


@dataclass(slots=True)
class AuditEntry:
    """Audit entry of one operation, completed while the operation runs."""

    context: OperationContext
    target: str | None = None
    before: Any = None
    after: Any = None
    reason: str | None = None
    """Overrides the reason of the context."""
    id: UUID = field(default_factory=new_id)
    """Created before the transaction, so that a repeated transaction writes the entry once."""
    is_written: bool = False
    is_unchanged: bool = False
    changes: list[tuple[str, Any, Any]] = field(default_factory=list)
    """Changes of an operation on several objects: target, before, after."""

    def begin_transaction(self) -> None:
        """Discard the changes of an earlier attempt at the transaction."""
        self.is_unchanged = False
        self.changes.clear()

    def add_change(self, target: str, before: Any, after: Any) -> None:
        """Add one changed object, inside the transaction that changes it."""
        self.changes.append((target, before, after))

    def mark_unchanged(self) -> None:
        """Write no audit entry: the operation changed nothing. Locking rows is not a change."""
        self.is_unchanged = True


class AuditedDatabase(Database):
    """The database of one audited operation; without an entry it is read-only."""

    def __init__(self, database: Database, entry: AuditEntry | None = None) -> None:
        vars(self).update(vars(database))  # the same connections, clock and event loop
        self._database = database
        self._entry = entry

    @property
    def shared(self) -> Database:
        """The database without the entry, for statements that write the entry themselves."""
        return self._database

    @property
    def unwritten_entry(self) -> AuditEntry | None:
        """The entry that the next change must write."""
        return None if self._entry is None or self._entry.is_written else self._entry

    async def transaction(self, work: Callable[[Connection], Awaitable[T]], tries: int = 6) -> T:
        """Run ``work`` in one transaction that also writes the entry; run it again after a transient error."""
        entry = self._entry
        if entry is None:
            return await self._run_with_retries(partial(_run_read_only, work), tries)
        if entry.is_written:
            return await self._database.transaction(work, tries)
        is_written = False

        async def run(connection: Connection) -> T:
            nonlocal is_written
            entry.begin_transaction()
            async with connection.transaction():
                result = await work(connection)
                is_written = await write_entry(connection, entry)
                return result

        result = await self._run_with_retries(run, tries, is_write=True)
        entry.is_written = is_written
        if is_written and entry.context.idempotency_key is not None:
            entry.context.idempotency_key.is_stored = True
        return result

    async def copy(self, load: Callable[[Connection], Awaitable[None]]) -> None:
        await self.transaction(load, tries=1)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Borrow a connection with an open read-only transaction."""
        async with self._database.connection() as connection, connection.transaction(readonly=True):
            yield connection

    async def _read(self, statement: str, values: Sequence[Any], tries: int) -> list[Row]:
        async def read(connection: Connection) -> list[Row]:
            return await connection.fetch(statement, *values)

        return await self._run_with_retries(partial(_run_read_only, read), tries)

    async def _write(self, statement: str, values: Sequence[Any], tries: int) -> list[Row]:
        async def write(connection: Connection) -> list[Row]:
            return await connection.fetch(statement, *values)

        return await self.transaction(write, tries)

    async def _run_with_retries(
        self, work: Callable[[Connection], Awaitable[T]], tries: int = 6, *, is_write: bool = False
    ) -> T:
        return await self._database._run_with_retries(work, tries, is_write=is_write)


async def _run_read_only(work: Callable[[Connection], Awaitable[T]], connection: Connection) -> T:
    try:
        async with connection.transaction(readonly=True):  # guard: audit.reads_are_read_only
            return await work(connection)
    except asyncpg.ReadOnlySQLTransactionError as error:
        raise StoreError(
            f"a query of an audited operation cannot change rows: {error}",
            code="audit.change_by_query",
            remedy="begin the operation with an action, and make the change in its transaction",
        ) from error


def entry_statements(entry: AuditEntry) -> Generator[tuple[str, Sequence[Any]], Any, bool]:
    """Yield the statements that write the entry in the open transaction, each with its values.

    The caller executes them one by one and sends back the first value of each result. The result is False if nothing
    was changed in the transaction.
    """
    if entry.is_unchanged:  # guard: audit.no_entry_without_change
        return False
    written = yield SQL.write_entry, entry_row(entry)
    key = entry.context.idempotency_key
    if written and key is not None:
        stored = yield SQL.store_idempotency_key, (key.actor, key.key, key.fingerprint, key.subject)
        # guard: idempotency.done_elsewhere
        if stored is None:  # rolls back the transaction
            raise duplicate_request_error()
    return bool(written)


async def write_entry(connection: Connection, entry: AuditEntry) -> bool:
    """Write the entry in the open transaction; return False if nothing was changed in it."""
    statements, received = entry_statements(entry), None
    while True:
        try:
            sql, values = statements.send(received)
        except StopIteration as end:
            return bool(end.value)
        received = await connection.fetchval(sql, *values)


def entry_row(entry: AuditEntry) -> tuple[Any, ...]:
    """Return an entry as parameters of the statements that write one."""
    context, actor = entry.context, entry.context.actor
    target, before, after = _summarise_changes(entry)
    return (
        entry.id, str(actor.type), actor.id, actor.name, context.source, context.correlation_id, context.action, target,
        entry.reason or context.reason, _json(before), _json(after),
    )  # fmt: skip


def duplicate_request_error() -> Conflict:
    """Return the error for a concurrent request with the same idempotency key."""
    return Conflict(
        "another request with this idempotency key has just been completed",
        code="request.idempotency_key.in_use",
        field="Idempotency-Key",
        remedy="send the request again to get its response",
    )


def _summarise_changes(entry: AuditEntry) -> tuple[str | None, Any, Any]:
    """Return target, before and after of all changes."""
    if not entry.changes:
        return entry.target, entry.before, entry.after
    if len(entry.changes) == 1:
        return entry.changes[0]
    targets = [target for target, _, _ in entry.changes]
    more = f" and {len(targets) - _MAX_NAMED_TARGETS} more" if len(targets) > _MAX_NAMED_TARGETS else ""
    before = [{"target": target, "is": was} for target, was, _ in entry.changes]
    after = [{"target": target, "is": now} for target, _, now in entry.changes]
    return ", ".join(targets[:_MAX_NAMED_TARGETS])[:_MAX_TARGET_LENGTH] + more, before, after


def _json(value: Any) -> str | None:
    # guard: audit.redaction
    return None if value is None else json.dumps(redact_sensitive_fields(value), ensure_ascii=False, default=str)
