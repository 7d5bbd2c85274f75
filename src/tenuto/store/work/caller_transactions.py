"""Statements in a transaction of the caller, on a connection of the caller's own driver.

Each driver is recognised by its classes, if the program has imported it; Tenuto imports only asyncpg. What is executed
is a generator of statements, so that one definition serves drivers with and without an event loop.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, TypeVar
from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from tenuto.errors import Invalid
from tenuto.model.work.tasks import NewTask
from tenuto.postgres.bulk_copy import array_literal
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.access import audit_recorder
from tenuto.store.access.audit_recorder import AuditEntry
from tenuto.tracing import add_traceparent, record_enqueue_span

SQL = load_statements(__file__)

T = TypeVar("T")
Statement: TypeAlias = tuple[str, Sequence[Any]]
"""SQL with the parameters ``$1, $2, …``, and their values."""
Statements: TypeAlias = Generator[Statement, Any, T]
"""Statements to execute one after the other; each receives the first column of the first row of the one before it."""


class AsyncCallerConnection(Protocol):
    """A connection or session with an event loop: asyncpg, psycopg, SQLAlchemy."""

    def execute(self, *args: Any, **kwargs: Any) -> Awaitable[Any]: ...


@dataclass(frozen=True, slots=True)
class Driver:
    """Execution of statements on the connections of one driver."""

    is_async: bool
    fetch_value: Callable[[Any, str, Sequence[Any]], Any]
    """Executes one statement and returns the value, or an awaitable of it."""


def find_driver(connection: object) -> Driver:
    """Return the driver of a connection, or raise `Invalid` for one that cannot be used."""
    for module, class_name, driver in _DRIVERS:
        found = sys.modules.get(module)
        if found is not None and isinstance(connection, getattr(found, class_name)):
            return driver
    kind = type(connection)
    raise Invalid(
        f"cannot enqueue on a {kind.__module__}.{kind.__qualname__}",
        code="task.connection.unknown",
        field="connection",
        remedy="give a connection of asyncpg, psycopg 3 or Django, or a connection or session of SQLAlchemy; with any "
        "other driver, call the SQL function tenuto.enqueue",
    )


def run(driver: Driver, connection: Any, statements: Statements[T]) -> T:
    """Execute statements on a connection without an event loop."""
    received: Any = None
    while True:
        try:
            sql, values = statements.send(received)
        except StopIteration as end:
            result: T = end.value
            return result
        received = driver.fetch_value(connection, sql, values)


async def run_async(driver: Driver, connection: Any, statements: Statements[T]) -> T:
    """Execute statements on a connection with an event loop."""
    received: Any = None
    while True:
        try:
            sql, values = statements.send(received)
        except StopIteration as end:
            result: T = end.value
            return result
        received = await driver.fetch_value(connection, sql, values)


# --- statements -----------------------------------------------------------------------------------------------------


def enqueue(task: NewTask, now: datetime | None, delay: timedelta | None, entry: AuditEntry | None) -> Statements[UUID]:
    """Create a task and its audit entry; return the id of the task, or of the open task with its unique key.

    Without ``now`` the database reads its clock.
    """
    actor = task.initiator
    values = (
        task.name, task.input, task.queue, task.priority, _text(task.run_at),
        None if delay is None else f"{delay.total_seconds():f} seconds", task.unique_key, task.limit_key,
        task.limit_max, None if task.tags is None else array_literal(task.tags), task.correlation_id,
        add_traceparent(task.policy, record_enqueue_span(task.name)), str(actor.type), actor.id, actor.name,
        None if task.parent_id is None else str(task.parent_id), str(task.id), _text(now),
        task.rate_key, task.stored_rate_limit, _text(task.expires_at),
    )  # fmt: skip
    stored_id = UUID((yield SQL.enqueue, values))
    if entry is not None:
        yield from audit_recorder.entry_statements(entry)
    return stored_id


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()


# --- drivers --------------------------------------------------------------------------------------------------------


async def _fetch_with_asyncpg(connection: asyncpg.Connection, sql: str, values: Sequence[Any]) -> Any:
    return await connection.fetchval(sql, *values)


def _fetch_with_psycopg(connection: Any, sql: str, values: Sequence[Any]) -> Any:
    with connection.cursor(row_factory=sys.modules["psycopg"].rows.tuple_row) as cursor:
        cursor.execute(_with_percent_parameters(sql), _name_values(values))
        return _first_value(cursor.fetchone())


async def _fetch_with_async_psycopg(connection: Any, sql: str, values: Sequence[Any]) -> Any:
    async with connection.cursor(row_factory=sys.modules["psycopg"].rows.tuple_row) as cursor:
        await cursor.execute(_with_percent_parameters(sql), _name_values(values))
        return _first_value(await cursor.fetchone())


def _fetch_with_django(connection: Any, sql: str, values: Sequence[Any]) -> Any:
    _check_dialect(connection.vendor)
    with connection.cursor() as cursor:
        cursor.execute(_with_percent_parameters(sql), _name_values(values))
        return _first_value(cursor.fetchone())


def _fetch_with_sqlalchemy(connection: Any, sql: str, values: Sequence[Any]) -> Any:
    _check_dialect(connection.dialect.name)
    return connection.execute(_as_sqlalchemy_text(sql), _name_values(values)).scalar()


async def _fetch_with_async_sqlalchemy(connection: Any, sql: str, values: Sequence[Any]) -> Any:
    _check_dialect(connection.dialect.name)
    return (await connection.execute(_as_sqlalchemy_text(sql), _name_values(values))).scalar()


def _fetch_with_session(session: Any, sql: str, values: Sequence[Any]) -> Any:
    return _fetch_with_sqlalchemy(session.connection(), sql, values)


async def _fetch_with_async_session(session: Any, sql: str, values: Sequence[Any]) -> Any:
    return await _fetch_with_async_sqlalchemy(await session.connection(), sql, values)


_ASYNCPG = Driver(True, _fetch_with_asyncpg)
_DJANGO = Driver(False, _fetch_with_django)
_SESSION = Driver(False, _fetch_with_session)
_ASYNC_SESSION = Driver(True, _fetch_with_async_session)
_DRIVERS = (
    (asyncpg.connection.__name__, asyncpg.Connection.__name__, _ASYNCPG),
    (asyncpg.pool.__name__, PoolConnectionProxy.__name__, _ASYNCPG),
    ("psycopg", "Connection", Driver(False, _fetch_with_psycopg)),
    ("psycopg", "AsyncConnection", Driver(True, _fetch_with_async_psycopg)),
    ("sqlalchemy.engine", "Connection", Driver(False, _fetch_with_sqlalchemy)),
    ("sqlalchemy.orm", "Session", _SESSION),
    ("sqlalchemy.orm", "scoped_session", _SESSION),
    ("sqlalchemy.ext.asyncio", "AsyncConnection", Driver(True, _fetch_with_async_sqlalchemy)),
    ("sqlalchemy.ext.asyncio", "AsyncSession", _ASYNC_SESSION),
    ("sqlalchemy.ext.asyncio", "async_scoped_session", _ASYNC_SESSION),
    ("django.db.backends.base.base", "BaseDatabaseWrapper", _DJANGO),
    ("django.utils.connection", "ConnectionProxy", _DJANGO),
)
"""Module, class and driver of the accepted connections."""


def _check_dialect(name: str) -> None:
    if name != "postgresql":
        raise Invalid(
            f"cannot enqueue on a connection to {name}",
            code="task.connection.not_postgresql",
            field="connection",
            remedy="give a connection to the PostgreSQL database of Tenuto",
        )


@lru_cache(maxsize=8)
def _with_percent_parameters(sql: str) -> str:
    """Return a statement with the parameters ``%(p1)s, %(p2)s, …``."""
    return re.sub(r"\$(\d+)", r"%(p\1)s", sql.replace("%", "%%"))


@lru_cache(maxsize=8)
def _as_sqlalchemy_text(sql: str) -> Any:
    """Return a statement with the parameters ``:p1, :p2, …``; the colons of casts are escaped."""
    return sys.modules["sqlalchemy"].text(re.sub(r"\$(\d+)", r":p\1", sql.replace(":", r"\:")))


def _name_values(values: Sequence[Any]) -> dict[str, Any]:
    return {f"p{number}": value for number, value in enumerate(values, 1)}


def _first_value(row: Sequence[Any] | None) -> Any:
    return None if row is None else row[0]
