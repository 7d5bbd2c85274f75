"""Connections: a pool, transactions, retries of what may be tried again, and the driver's errors in our words.

Every write in this house may be repeated without harm (ids are made by the caller, ends are fenced), so a statement
whose reply was lost is simply sent again. No transaction stays open while user code runs.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol, TypeAlias, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from tenuto.clock import DatabaseClock, steady
from tenuto.errors import Invalid, StoreError, Unavailable, Unsupported
from tenuto.postgres.pool import Pool

OLDEST_SERVER = 150000
UNIQUE_VIOLATION = "23505"

Connection: TypeAlias = asyncpg.Connection | PoolConnectionProxy
Row = asyncpg.Record
T = TypeVar("T")

_OCCUPIED = "55P03"
# Worth another try: serialisation, deadlock, lock timeout, shutdown and start-up of the server, a database that takes
# no connections for a while, too many connections, a connection that broke.
_PASSING_STATES = frozenset({"40001", "40P01", "55000", "55P03", "57P01", "57P02", "57P03", "53300", "53400", "25006"})
_PASSING_CLASSES = ("08",)
_TOO_SLOW = "57014"
_SHORT_OF = {
    "53100": "make room on its disk",
    "53200": "give it more memory, or fewer connections",
    "58030": "look at its disk: it cannot be read or written",
}
# What the driver raises; an internal error of its client is what a backend's last words to an idle connection lead to.
DRIVER_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, TimeoutError)


class _PlainConnection(asyncpg.Connection):
    """A pooled connection without the round trip that resets it: nobody here leaves session state behind."""

    def get_reset_query(self) -> str:
        return ""


class ChangeRecorder(Protocol):
    """Writes the audit entry of a change in the transaction that makes the change."""

    def to_be_written(self) -> Any | None:
        """Return the pending audit entry, if the current operation has one."""

    def changes_something(self, statement: str) -> bool:
        """Return whether a statement writes."""

    async def write_down(self, connection: Any, deed: Any) -> bool:
        """Write the entry on an open transaction; return False if the operation changed nothing."""


class Database:
    """The one way to the database."""

    def __init__(self, url: str, pool: asyncpg.Pool, clock: DatabaseClock, *, pooled: bool) -> None:
        self.url = url
        self.revive: Callable[[], Awaitable[None]] | None = None
        """How to start the server again, if it is ours to start: asked when it cannot be reached."""
        self.recorder: ChangeRecorder | None = None
        """Audit recorder of the application; without one, changes leave no audit entry."""
        self.clock = clock
        self.behind_pooler = pooled
        self._pool = Pool(pool)
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        max_connections: int = 10,
        generic_plans: bool = False,
        behind_pooler: bool = False,
        wait: float = 10.0,
        patience: float = 60.0,
    ) -> Database:
        """Connect, or say plainly why not.

        ``generic_plans`` keeps the plans of a worker's few statements: with a LIMIT in a parameter the planner would
        plan anew at each call. They all go from a short list of ids to rows by index; plans that look cheap while a
        queue is empty, and are kept until it is full, are ruled out. Behind a transaction pooler nothing may be kept
        on a connection, so there it is off. ``patience`` is how long a statement may go unanswered before its
        connection is given up for dead.
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
                    command_timeout=patience,
                    max_inactive_connection_lifetime=300,
                    connection_class=_PlainConnection,
                    statement_cache_size=0 if behind_pooler else 200,
                    server_settings=None if behind_pooler else settings,
                )
                break
            except (*DRIVER_ERRORS, ValueError) as error:
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
        asked_at = steady()
        row = await self.one(
            "SELECT current_setting('server_version_num')::integer AS version, pg_is_in_recovery() AS standby,"
            " clock_timestamp() AS now"
        )
        assert row is not None
        if row["version"] < OLDEST_SERVER:
            raise Unsupported(f"PostgreSQL {row['version'] // 10_000} is too old", remedy="use PostgreSQL 15 or newer")
        if row["standby"]:
            raise Unsupported("the server is a read-only standby", remedy="point TENUTO_DATABASE at the primary server")
        self.clock.heard(row["now"], asked_at)

    async def close(self) -> None:
        """Let every connection go; what hangs is cut off."""
        if self.is_elsewhere():
            if self._loop.is_running():
                await across(self._loop, self.close())
            return
        try:
            await asyncio.wait_for(self._pool.close(), timeout=5)
        except TimeoutError:
            self._pool.terminate()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """One connection for a while; from another loop than the pool's, one of the caller's own."""
        if self.is_elsewhere():
            own = await asyncpg.connect(
                self.url,
                timeout=10,
                statement_cache_size=0 if self.behind_pooler else 100,
                server_settings=None if self.behind_pooler else {"application_name": "tenuto job"},
            )
            try:
                yield own
            finally:
                await own.close(timeout=5)
            return
        async with self._pool.lend() as connection:
            yield connection

    def is_elsewhere(self) -> bool:
        """Whether the caller runs on another loop (as jobs do): a pool serves only the loop it was made on."""
        return asyncio.get_running_loop() is not self._loop

    async def all(self, statement: str, *values: Any) -> list[Row]:
        """The rows a statement answers with; sent again if the reply was lost."""

        return await self._send(statement, values, tries=6)

    async def once(self, statement: str, *values: Any) -> list[Row]:
        """As `all`, but sent once: for what the caller would rather ask anew."""

        return await self._send(statement, values, tries=1)

    async def _send(self, statement: str, values: Sequence[Any], tries: int) -> list[Row]:
        async def ask(connection: Connection) -> list[Row]:
            return await connection.fetch(statement, *values)

        recorder = self.recorder
        if recorder is not None and recorder.to_be_written() is not None and recorder.changes_something(statement):
            return await self.transaction(ask, tries)
        return await self._persist(ask, tries)

    async def one(self, statement: str, *values: Any) -> Row | None:
        """The first row a statement answers with."""
        rows = await self.all(statement, *values)
        return rows[0] if rows else None

    async def value(self, statement: str, *values: Any) -> Any:
        """The first value of the first row."""
        row = await self.one(statement, *values)
        return None if row is None else row[0]

    async def transaction(self, work: Callable[[Connection], Awaitable[T]], tries: int = 6) -> T:
        """Do the work in one transaction; the whole of it again if the database asks for that.

        If it is done for somebody whose deeds go on record, and changes anything, the entry is part of it.
        """
        recorder = self.recorder
        deed = None if recorder is None else recorder.to_be_written()
        on_record = False

        async def whole(connection: Connection) -> T:
            nonlocal on_record
            if deed is not None:
                deed.begin()
            async with connection.transaction():
                done = await work(connection)
                on_record = recorder is not None and deed is not None and await recorder.write_down(connection, deed)
                return done

        done = await self._persist(whole, tries)
        if deed is not None and on_record:
            deed.written = True
        return done

    async def copy(self, load: Callable[[Connection], Awaitable[None]]) -> None:
        """Load with one COPY, all or none, once: if the reply is lost, the caller must look what is there."""
        if self.recorder is not None and self.recorder.to_be_written() is not None:
            await self.transaction(load, tries=1)
        else:
            await self._persist(load, tries=1)

    async def _persist(self, work: Callable[[Connection], Awaitable[T]], tries: int = 6) -> T:
        if self.is_elsewhere():
            return await across(self._loop, self._persist(work, tries))
        for attempt in range(tries):
            try:
                return await self._try(work)
            except DRIVER_ERRORS as error:
                problem = translate(error)
                if not isinstance(problem, Unavailable) or isinstance(problem, TooSlow) or attempt == tries - 1:
                    raise problem from error
                if isinstance(error, OSError) and self.revive is not None:
                    await self.revive()
            await asyncio.sleep(min(0.05 * 2**attempt, 2.0) * random.uniform(0.5, 1.0))
        raise AssertionError("unreachable")

    async def _try(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        # Spelled out: of a short statement a manager around it would be a good part.
        connection = self._pool.at_hand() or await self._pool.take()
        try:
            done = await work(connection)
        except BaseException as error:
            if isinstance(error, (asyncpg.InternalClientError, TimeoutError)):
                with suppress(asyncpg.InterfaceError):  # the driver may have seen to it
                    connection.terminate()  # it answers nobody any more, and must not be given to the next one
            await self._pool.release(connection)
            raise
        if not self._pool.keep(connection):
            await self._pool.release(connection)
        return done


async def across(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Have something done on another loop and wait for it here."""
    if not loop.is_running():
        work.close()
        raise Unavailable(
            "the event loop this database was opened on is gone", remedy="close the app, and open it anew"
        )
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


_REFUSED = ("the database refuses the login: ", "check TENUTO_DATABASE")
_ADDRESS = {
    "28000": _REFUSED,
    "28P01": _REFUSED,
    "3D000": ("", "create the database, or correct TENUTO_DATABASE"),
}


def translate(error: BaseException) -> StoreError | Invalid:
    """A driver's error in the words of this house."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        if state in _PASSING_STATES or state.startswith(_PASSING_CLASSES):
            passing = Occupied if state == _OCCUPIED else Unavailable
            return passing(f"the database asks to try again: {error}")
        if state == _TOO_SLOW:
            return TooSlow(f"the database took too long: {error}", remedy="see what keeps it busy")
        if state in _SHORT_OF:
            return Unavailable(f"the database cannot go on: {error}", remedy=_SHORT_OF[state])
        if state in ("22021", "22P05"):
            return Invalid(f"the database cannot store this text: {error}")
        if isinstance(error, asyncpg.DataError) and "query argument" in str(error):  # refused by the driver already
            return Invalid("a value is beyond what can be stored", remedy="look at instants and numbers")
        if state in _ADDRESS:
            what, remedy = _ADDRESS[state]
            return StoreError(f"{what}{error}", remedy=remedy)
        return DatabaseError(f"{type(error).__name__}: {error}", state=state)
    if isinstance(error, asyncpg.InternalClientError):
        return Unavailable(f"the connection to the database broke: {error}")
    if isinstance(error, asyncpg.InterfaceError):
        if any(word in str(error) for word in ("closed", "closing", "another operation", "released back to the pool")):
            return Unavailable(f"the connection to the database broke: {error}")
        return StoreError(f"{error}", remedy="check TENUTO_DATABASE")
    if isinstance(error, ValueError):
        return StoreError(f"the database address is not valid: {error}", remedy="check TENUTO_DATABASE")
    return Unavailable(
        f"the database cannot be reached: {_why(error)}",
        remedy="check that it runs, and TENUTO_DATABASE",
    )


def _why(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError) and (place := re.search(r"\('([^']+)', (\d+)", str(error))):
        return f"nothing answers at {place[1]} port {place[2]}"
    if isinstance(error, socket.gaierror):
        return "its host name is not known"
    return str(error) or type(error).__name__


class Occupied(Unavailable):
    """A lock was not to be had in time: the database is there, but somebody is at what was asked for."""


class TooSlow(Unavailable):
    """The database broke a statement off because it took too long; as it is, it would again, so it is not repeated."""


class DatabaseError(StoreError):
    """The database refused a statement; ``state`` is its SQLSTATE."""

    def __init__(self, message: str, *, state: str) -> None:
        super().__init__(message)
        self.state = state
