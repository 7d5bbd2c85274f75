"""Connections: a pool, transactions, retries of what may be tried again, and the driver's errors in our words.

Every write in this house may be repeated without harm (ids are made by the caller, ends are fenced), so a statement
whose reply was lost is simply sent again. No transaction stays open while user code runs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from tenuto.clock import DatabaseClock, steady
from tenuto.errors import Invalid, StoreError, Unavailable, Unsupported

OLDEST_SERVER = 150000
UNIQUE_VIOLATION = "23505"

Connection: TypeAlias = asyncpg.Connection | PoolConnectionProxy
Row = asyncpg.Record
T = TypeVar("T")

# Worth another try: serialisation, deadlock, lock timeout, shutdown and start-up of the server, too many connections,
# a connection that broke.
_PASSING_STATES = frozenset({"40001", "40P01", "55P03", "57P01", "57P02", "57P03", "53300", "53400", "25006"})
_PASSING_CLASSES = ("08",)
_FULL_STATES = frozenset({"53100", "53200", "58030"})


class _PlainConnection(asyncpg.Connection):
    """A pooled connection without the round trip that resets it: nobody here leaves session state behind."""

    def get_reset_query(self) -> str:
        return ""


class Database:
    """The one way to the database."""

    def __init__(self, url: str, pool: asyncpg.Pool, clock: DatabaseClock, *, pooled: bool) -> None:
        self.url = url
        self.clock = clock
        self.behind_pooler = pooled
        self._pool = pool

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        max_connections: int = 10,
        generic_plans: bool = False,
        behind_pooler: bool = False,
        wait: float = 10.0,
    ) -> Database:
        """Connect, or say plainly why not.

        ``generic_plans`` keeps the plans of a worker's few statements: with a LIMIT in a parameter the planner would
        plan anew at each call. They all go from a short list of ids to rows by index; plans that look cheap while a
        queue is empty, and are kept until it is full, are ruled out. Behind a transaction pooler nothing may be kept
        on a connection, so there it is off.
        """
        clock = DatabaseClock()
        settings = {
            "application_name": "tenuto",
            "statement_timeout": "30000",
            "lock_timeout": "10000",
            "idle_in_transaction_session_timeout": "30000",
            "timezone": "UTC",
        }
        if generic_plans:
            settings["plan_cache_mode"] = "force_generic_plan"
            settings |= {"enable_seqscan": "off", "enable_nestloop": "off", "enable_mergejoin": "off", "jit": "off"}
        deadline = steady() + wait
        while True:
            try:
                pool = await asyncpg.create_pool(
                    url,
                    min_size=1,
                    max_size=max_connections,
                    timeout=10,
                    command_timeout=60,
                    max_inactive_connection_lifetime=300,
                    connection_class=_PlainConnection,
                    statement_cache_size=0 if behind_pooler else 200,
                    server_settings=None if behind_pooler else settings,
                )
                break
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError, ValueError) as error:
                problem = translate(error)
                if not isinstance(problem, Unavailable) or steady() > deadline:
                    raise problem from error
                await asyncio.sleep(0.2)
        database = cls(url, pool, clock, pooled=behind_pooler)
        try:
            await database._check_server()
        except BaseException:
            await database.close()
            raise
        return database

    async def _check_server(self) -> None:
        row = await self.one(
            "SELECT current_setting('server_version_num')::integer AS version, pg_is_in_recovery() AS standby,"
            " clock_timestamp() AS now"
        )
        assert row is not None
        if row["version"] < OLDEST_SERVER:
            raise Unsupported(f"PostgreSQL {row['version'] // 10_000} is too old", remedy="use PostgreSQL 15 or newer")
        if row["standby"]:
            raise Unsupported("the server is a read-only standby", remedy="point TENUTO_DATABASE at the primary server")
        self.clock.heard(row["now"])

    async def close(self) -> None:
        """Let every connection go; what hangs is cut off."""
        try:
            await asyncio.wait_for(self._pool.close(), timeout=5)
        except TimeoutError:
            self._pool.terminate()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """One connection for a while."""
        async with self._pool.acquire(timeout=30) as connection:
            yield connection

    async def all(self, statement: str, *values: Any) -> list[Row]:
        """The rows a statement answers with; sent again if the reply was lost."""

        async def ask(connection: Connection) -> list[Row]:
            return await connection.fetch(statement, *values)

        return await self._persist(ask)

    async def one(self, statement: str, *values: Any) -> Row | None:
        """The first row a statement answers with."""
        rows = await self.all(statement, *values)
        return rows[0] if rows else None

    async def value(self, statement: str, *values: Any) -> Any:
        """The first value of the first row."""
        row = await self.one(statement, *values)
        return None if row is None else row[0]

    async def transaction(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do the work in one transaction; the whole of it again if the database asks for that."""

        async def whole(connection: Connection) -> T:
            async with connection.transaction():
                return await work(connection)

        return await self._persist(whole)

    async def copy(self, table: str, columns: Sequence[str], records: Sequence[Sequence[Any]]) -> None:
        """Load records with COPY, all or none.

        If the reply is lost they are sent again; a clash of keys then means that the first time had got through.
        """
        tried_before = False

        async def load(connection: Connection) -> None:
            nonlocal tried_before
            again, tried_before = tried_before, True
            try:
                await connection.copy_records_to_table(
                    table, schema_name="tenuto", columns=list(columns), records=records
                )
            except asyncpg.UniqueViolationError:
                if not again:
                    raise

        await self._persist(load)

    async def _persist(self, work: Callable[[Connection], Awaitable[T]], tries: int = 6) -> T:
        for attempt in range(tries):
            try:
                async with self._pool.acquire(timeout=30) as connection:
                    return await work(connection)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as error:
                problem = translate(error)
                if not isinstance(problem, Unavailable) or attempt == tries - 1:
                    raise problem from error
            await asyncio.sleep(min(0.05 * 2**attempt, 2.0) * random.uniform(0.5, 1.0))
        raise AssertionError("unreachable")


def translate(error: BaseException) -> StoreError | Invalid:
    """A driver's error in the words of this house."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        if state in _PASSING_STATES or state.startswith(_PASSING_CLASSES):
            return Unavailable(f"the database asks to try again: {error}")
        if state in _FULL_STATES:
            return Unavailable(f"the database cannot store more: {error}", remedy="make room on its disk")
        if state in ("22021", "22P05"):
            return Invalid(f"the database cannot store this text: {error}")
        if state in ("28000", "28P01"):
            return StoreError(f"the database refuses the login: {error}", remedy="check TENUTO_DATABASE")
        if state == "3D000":
            return StoreError(f"{error}", remedy="create the database, or correct TENUTO_DATABASE")
        return DatabaseError(f"{type(error).__name__}: {error}", state=state)
    if isinstance(error, asyncpg.InterfaceError | asyncpg.InternalClientError):
        if "closed" in str(error) or "closing" in str(error) or "another operation" in str(error):
            return Unavailable(f"the connection to the database broke: {error}")
        return StoreError(f"{error}", remedy="check TENUTO_DATABASE")
    if isinstance(error, ValueError):
        return StoreError(f"the database address is not valid: {error}", remedy="check TENUTO_DATABASE")
    return Unavailable(
        f"the database cannot be reached: {str(error) or type(error).__name__}",
        remedy="check that it runs, and TENUTO_DATABASE",
    )


class DatabaseError(StoreError):
    """The database refused a statement; ``state`` is its SQLSTATE."""

    def __init__(self, message: str, *, state: str) -> None:
        super().__init__(message)
        self.state = state
