"""Database access: pooled connections, transactions with retries, and translation of driver errors.

Every write in Tenuto is idempotent (callers create the ids, outcomes are fenced), so a statement whose reply was lost
is sent again. No transaction stays open while user code runs.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from tenuto.clock import DatabaseClock, monotonic_seconds
from tenuto.errors import Invalid, StoreError, Unavailable, Unsupported
from tenuto.postgres.pool import Pool
from tenuto.postgres.servers.server_addresses import describe_address
from tenuto.postgres.servers.server_selection import (
    ConnectionGate,
    NoSuitableServer,
    ReadOnlyServer,
    ServerConnection,
    UnsuitableServer,
    connect,
)
from tenuto.postgres.write_coalescer import WriteCoalescer

OLDEST_SERVER_VERSION = 150000
UNIQUE_VIOLATION = "23505"

Connection: TypeAlias = asyncpg.Connection | PoolConnectionProxy
Row = asyncpg.Record
T = TypeVar("T")
Request = TypeVar("Request")
Result = TypeVar("Result")
CombinedWrite: TypeAlias = "Callable[[Database, Sequence[Request]], Awaitable[Sequence[Result | Exception]]]"
"""Writes several requests and returns a result or an error for each."""

_LOCK_NOT_AVAILABLE = "55P03"
# Transient: serialisation failure, deadlock, lock timeout, shutdown and start-up of the server, a database that accepts
# no connections, too many connections, a broken connection.
_TRANSIENT_STATES = frozenset(
    {"40001", "40P01", "55000", "55P03", "57P01", "57P02", "57P03", "53300", "53400", "25006"}
)
_TRANSIENT_CLASSES = ("08",)
_ROLLED_BACK_STATES = frozenset({"40001", "40P01", "55P03", "25006"})
"""Transient, and certainly without a commit."""
_CONFIRM_COMMITS = "SELECT pg_logical_emit_message(true, 'tenuto', '')"
"""Writes a record whose commit waits for the synchronous standbys, and thereby for all commits before it."""
_PARAMETER = re.compile(r"\$(\d+)")
_QUERY_CANCELED = "57014"
_INSUFFICIENT_PRIVILEGE = "42501"
ROLES_PAGE = "docs/how-to/database-roles.md"
_REJECTED_ID = re.compile(
    r"query argument \$\d+: (.*) \((?:invalid UUID |'\w+' object has no attribute 'bytes')", re.DOTALL
)
"""How the driver rejects a value that is not an id."""
_RESOURCE_REMEDIES = {
    "53100": "free disk space on the database server",
    "53200": "give the database server more memory, or use fewer connections",
    "58030": "check the disk of the database server",
}
# InternalClientError: raised when the server terminates an idle connection.
# guard: database.driver_errors
DRIVER_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, TimeoutError)


class _UnresetConnection(ServerConnection):
    """A pooled connection without the reset round trip: no code leaves session state behind."""

    def get_reset_query(self) -> str:
        return ""


class Database:
    """A database with its connection pool and clock; all statements go through it."""

    def __init__(
        self,
        url: str,
        pool: asyncpg.Pool,
        clock: DatabaseClock,
        *,
        behind_pooler: bool,
        gate: ConnectionGate | None = None,
    ) -> None:
        self.url = url
        self.gate = gate or ConnectionGate()
        self.write_count = 0
        """Writes since the database was opened, for services that record how far they got."""
        self.restart_server: Callable[[], Awaitable[None]] | None = None
        """Restarts the embedded server; called when the database cannot be reached."""
        self.clock = clock
        self.behind_pooler = behind_pooler
        self._pool = Pool(pool)
        self._loop = asyncio.get_running_loop()
        self._coalescers: dict[Any, WriteCoalescer[Any, Any]] = {}
        self._lost_reply_count = 0
        self._confirmed_reply_count = 0
        self._background_writes: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        max_connections: int = 10,
        generic_plans: bool = False,
        behind_pooler: bool = False,
        connect_timeout_seconds: float = 10.0,
        reply_timeout_seconds: float = 60.0,
        gate: ConnectionGate | None = None,
    ) -> Database:
        """Connect, retrying for ``connect_timeout_seconds``, and check the server.

        ``generic_plans`` caches the plans of a worker's statements: with a LIMIT in a parameter the planner would plan
        every call. All of them go from a short list of ids to rows by index; the settings exclude plans that are cheap
        only while a queue is empty. It has no effect behind a transaction pooler, which does not keep session state.
        A connection is closed if a statement is not answered within ``reply_timeout_seconds``. The ``gate`` checks new
        connections.
        """
        gate = gate or ConnectionGate()
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
        deadline = monotonic_seconds() + connect_timeout_seconds
        while True:
            try:
                pool = await asyncpg.create_pool(
                    url,
                    min_size=1,
                    max_size=max_connections,
                    timeout=10,
                    connect=cast(Any, partial(connect, gate=gate)),  # has fewer parameters than that of the driver
                    command_timeout=reply_timeout_seconds,
                    max_inactive_connection_lifetime=300,
                    connection_class=_UnresetConnection,
                    statement_cache_size=0 if behind_pooler else 200,
                    # By default, the driver has statements of more than 15 kB, such as claim_limited_tasks, planned at
                    # every use, and all others again every five minutes.
                    max_cacheable_statement_size=0,
                    max_cached_statement_lifetime=0,
                    server_settings=None if behind_pooler else settings,
                )
                break
            except (*DRIVER_ERRORS, ValueError) as error:
                problem = _name_address(translate_driver_error(error), error, url)
                if not isinstance(problem, Unavailable) or monotonic_seconds() >= deadline:
                    raise problem from error
                await asyncio.sleep(0.2)
        database = cls(url, pool, clock, behind_pooler=behind_pooler, gate=gate)
        try:
            await database._check_server()
        except BaseException:
            await database.close()
            raise
        return database

    async def _check_server(self) -> None:
        sent_at = monotonic_seconds()
        row = await self.fetch_one(
            "SELECT current_setting('server_version_num')::integer AS version, pg_is_in_recovery() AS standby,"
            " clock_timestamp() AS now"
        )
        assert row is not None
        if row["version"] < OLDEST_SERVER_VERSION:
            raise Unsupported(
                f"PostgreSQL {row['version'] // 10_000} is not supported",
                code="database.version.not_supported",
                remedy="use PostgreSQL 15 or newer",
            )
        if row["standby"]:
            raise Unsupported(
                "the database server is a read-only standby",
                code="database.server.read_only",
                remedy="set TENUTO_DATABASE to the primary server",
            )
        self.clock.synchronize(row["now"], sent_at)

    async def close(self) -> None:
        """Close all connections; terminate those that do not close in time."""
        if self.is_on_other_loop():
            if self._loop.is_running():
                await run_on_loop(self._loop, self.close())
            return
        if self._background_writes:  # guard: enqueue.notification_before_close
            await asyncio.wait(self._background_writes, timeout=5)
        try:
            await asyncio.wait_for(self._pool.close(), timeout=5)
        except TimeoutError:
            self._pool.terminate()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Borrow a connection; on another event loop than the pool's, open a new one."""
        if self.is_on_other_loop():
            new_connection = await connect(
                self.url,
                timeout=10,
                gate=self.gate,
                statement_cache_size=0 if self.behind_pooler else 100,
                server_settings=None if self.behind_pooler else {"application_name": "tenuto job"},
            )
            try:
                yield new_connection
            finally:
                await new_connection.close(timeout=5)
            return
        async with self._pool.borrow() as connection:
            yield connection

    async def plan_statements(self, statements: Sequence[str], connection_count: int) -> None:
        """Have several connections plan statements before they are needed.

        Each statement is executed with NULL for every parameter, with which it must not change anything, in a
        transaction that is rolled back. Without effect behind a transaction pooler, where no plan is kept.
        """
        if self.behind_pooler:
            return
        try:
            async with AsyncExitStack() as borrowed:
                for connection in [
                    await borrowed.enter_async_context(self.connection()) for _ in range(connection_count)
                ]:
                    transaction = connection.transaction()
                    await transaction.start()
                    try:
                        for statement in statements:
                            count = max((int(number) for number in _PARAMETER.findall(statement)), default=0)
                            await connection.fetch(statement, *[None] * count)
                    finally:
                        await transaction.rollback()
        except DRIVER_ERRORS as error:
            raise translate_driver_error(error) from error

    def is_on_other_loop(self) -> bool:
        """Return whether the caller runs on another event loop (as jobs do); a pool serves only its own loop."""
        return asyncio.get_running_loop() is not self._loop

    # Queries and changes are separate methods: `store.access.audit_recorder` refuses changes by the former and records
    # those by the latter.

    async def fetch_all(self, statement: str, *values: Any) -> list[Row]:
        """Return all rows of a query; send it again if the reply is lost."""
        return await self._read(statement, values, tries=6)

    async def fetch_once(self, statement: str, *values: Any) -> list[Row]:
        """Like `fetch_all`, without retries."""
        return await self._read(statement, values, tries=1)

    async def fetch_one(self, statement: str, *values: Any) -> Row | None:
        """Return the first row of a query."""
        rows = await self.fetch_all(statement, *values)
        return rows[0] if rows else None

    async def fetch_value(self, statement: str, *values: Any) -> Any:
        """Return the first value of the first row of a query."""
        row = await self.fetch_one(statement, *values)
        return None if row is None else row[0]

    async def write_all(self, statement: str, *values: Any) -> list[Row]:
        """Run one statement that changes rows, and return what it returns; send it again if the reply is lost."""
        return await self._write(statement, values, tries=6)

    async def write_once(self, statement: str, *values: Any) -> list[Row]:
        """Like `write_all`, without retries."""
        return await self._write(statement, values, tries=1)

    async def write_one(self, statement: str, *values: Any) -> Row | None:
        """Like `write_all`; return the first row."""
        rows = await self.write_all(statement, *values)
        return rows[0] if rows else None

    async def write_value(self, statement: str, *values: Any) -> Any:
        """Like `write_all`; return the first value of the first row."""
        row = await self.write_one(statement, *values)
        return None if row is None else row[0]

    async def _read(self, statement: str, values: Sequence[Any], tries: int) -> list[Row]:
        async def send(connection: Connection) -> list[Row]:
            return await connection.fetch(statement, *values)

        return await self._run_with_retries(send, tries)

    async def _write(self, statement: str, values: Sequence[Any], tries: int) -> list[Row]:
        async def send(connection: Connection) -> list[Row]:
            return await connection.fetch(statement, *values)

        return await self._run_with_retries(send, tries, is_write=True)

    async def write_coalesced(
        self,
        write: CombinedWrite[Request, Result],
        request: Request,
        character_count: int = 0,
        subject: Hashable = None,
    ) -> Result:
        """Write a request, together with those that arrive while another write of the same function and subject is in
        flight.

        ``character_count`` is about the length of its text; it bounds a combined write. Requests about different
        ``subject``s are written apart, because one may have to wait for a lock on its subject.
        """
        if self.is_on_other_loop():
            return await run_on_loop(self._loop, self.write_coalesced(write, request, character_count, subject))
        coalescer = self._coalescers.get((write, subject))
        if coalescer is None:
            coalescer = WriteCoalescer(partial(write, self), _concerns_all_requests)
            self._coalescers[write, subject] = coalescer
        try:
            result: Result = await coalescer(request, character_count)
        finally:
            # there may be very many subjects
            if subject is not None and coalescer.is_idle and self._coalescers.get((write, subject)) is coalescer:
                del self._coalescers[write, subject]
        return result

    def write_in_background(self, write: CombinedWrite[Request, Result], request: Request) -> None:
        """Like `write_coalesced`, for a request whose caller does not wait; `close` does. Errors are ignored."""
        if self.is_on_other_loop():
            self._loop.call_soon_threadsafe(self.write_in_background, write, request)
            return
        task = asyncio.create_task(self.write_coalesced(write, request), name="tenuto-background-write")
        self._background_writes.add(task)
        task.add_done_callback(self._end_background_write)

    def _end_background_write(self, task: asyncio.Task[Any]) -> None:
        self._background_writes.discard(task)
        if not task.cancelled():
            task.exception()  # read, so that asyncio does not log it

    async def transaction(self, work: Callable[[Connection], Awaitable[T]], tries: int = 6) -> T:
        """Run ``work`` in one transaction; run it again after a transient error."""

        async def run(connection: Connection) -> T:
            async with connection.transaction():
                return await work(connection)

        return await self._run_with_retries(run, tries, is_write=True)

    async def copy(self, load: Callable[[Connection], Awaitable[None]]) -> None:
        """Run one COPY without retries: if the reply is lost, the caller must check what was stored."""
        await self._run_with_retries(load, tries=1)  # guard: enqueue.no_blind_copy_retry

    async def _run_with_retries(
        self, work: Callable[[Connection], Awaitable[T]], tries: int = 6, *, is_write: bool = False
    ) -> T:
        if self.is_on_other_loop():
            return await run_on_loop(self._loop, self._run_with_retries(work, tries, is_write=is_write))
        self.write_count += is_write
        for attempt in range(tries):
            try:
                result = await self._run_once(work)
                if is_write and self._lost_reply_count > self._confirmed_reply_count:
                    await self._confirm_commits()
                return result
            except DRIVER_ERRORS as error:
                problem = _name_address(translate_driver_error(error), error, self.url)
                if _may_have_committed(problem, error):
                    self._lost_reply_count += 1
                if (
                    not isinstance(problem, Unavailable)
                    or isinstance(problem, StatementTimeout)
                    or attempt == tries - 1
                ):
                    raise problem from error
                if isinstance(error, OSError) and self.restart_server is not None:
                    await self.restart_server()
            await asyncio.sleep(min(0.05 * 2**attempt, 2.0) * random.uniform(0.5, 1.0))
        raise AssertionError("unreachable")

    async def _confirm_commits(self) -> None:
        """Wait until the commits that this process can see have reached the synchronous standbys.

        A commit whose reply was lost is visible on the primary although no standby may have it yet: the primary has
        restarted, or the wait was cancelled. A repeated write that finds its own rows would be accepted too early.
        """
        count = self._lost_reply_count

        async def emit(connection: Connection) -> None:
            await connection.fetch(_CONFIRM_COMMITS)

        await self._run_once(emit)  # guard: failover.repeated_write_waits_for_standby
        self._confirmed_reply_count = max(self._confirmed_reply_count, count)

    async def _run_once(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        # Not a context manager: it would be a measurable part of a short statement.
        connection = self._pool.take_idle() or await self._pool.acquire()
        try:
            result = await work(connection)
        except BaseException as error:
            # guard: failover.read_only_connection
            if isinstance(error, (asyncpg.InternalClientError, asyncpg.ReadOnlySQLTransactionError, TimeoutError)):
                with suppress(asyncpg.InterfaceError):  # the driver may have closed the connection
                    connection.terminate()  # neither a broken connection nor a standby must be borrowed again
            await self._pool.release(connection)
            raise
        if not self._pool.keep_idle(connection):
            await self._pool.release(connection)
        return result


def _may_have_committed(problem: Exception, error: BaseException) -> bool:
    """Return whether a transaction with this error may be committed nevertheless, because only its reply was lost."""
    return (
        isinstance(problem, Unavailable)
        and not isinstance(problem, StatementTimeout)
        and getattr(error, "sqlstate", None) not in _ROLLED_BACK_STATES
    )


def _concerns_all_requests(error: Exception) -> bool:
    """Return whether each request of a combined write would fail like the whole. A smaller statement may be in time."""
    return isinstance(error, Unavailable) and not isinstance(error, StatementTimeout)


async def run_on_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on another event loop and wait for it here."""
    if not loop.is_running():
        work.close()
        raise Unavailable(
            "the event loop that opened the database is not running",
            code="database.loop.closed",
            remedy="close the app and open it again",
        )
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


_LOGIN_REJECTED = (
    "database.login.rejected",
    "the database rejects the login: ",
    "check the user and password in TENUTO_DATABASE, and that the server lets them in (pg_hba.conf)",
)
_ADDRESS_ERRORS = {
    "28000": _LOGIN_REJECTED,
    "28P01": _LOGIN_REJECTED,
    "3D000": ("database.not_found", "", "create the database, or correct TENUTO_DATABASE"),
}


def translate_driver_error(error: BaseException) -> StoreError | Invalid:
    """Return the Tenuto error for an error of the driver."""
    if isinstance(error, asyncpg.PostgresError):
        return _translate_server_error(error)
    if isinstance(error, asyncpg.InternalClientError):
        return _connection_lost(error)
    if isinstance(error, asyncpg.InterfaceError):
        if any(part in str(error) for part in ("closed", "closing", "another operation", "released back to the pool")):
            return _connection_lost(error)
        return StoreError(f"{error}", code="database.driver_error", remedy="check TENUTO_DATABASE")
    if isinstance(error, ValueError):
        return StoreError(
            f"the database URL is not valid: {error}", code="database.url.not_valid", remedy="check TENUTO_DATABASE"
        )
    if isinstance(error, ReadOnlyServer):
        return Unavailable(
            f"cannot use the database: {error}",
            code="database.server.read_only",
            remedy="wait until it is promoted, or name all servers in TENUTO_DATABASE",
        )
    if isinstance(error, UnsuitableServer):
        return Unavailable(
            f"cannot use the database: {error}",
            code="database.server.former_primary",
            remedy="stop that server, or make it a standby of the promoted one",
        )
    return Unavailable(
        f"cannot connect to the database: {_connection_failure_reason(error)}",
        code="database.unreachable",
        remedy="check that the server is running, and TENUTO_DATABASE",
    )


def _translate_server_error(error: asyncpg.PostgresError) -> StoreError | Invalid:
    state = error.sqlstate or ""
    if state == _LOCK_NOT_AVAILABLE:
        return LockTimeout(f"the database could not lock in time: {error}", code="database.lock_timeout")
    if state in _TRANSIENT_STATES or state.startswith(_TRANSIENT_CLASSES):
        return Unavailable(f"transient database error: {error}", code="database.transient_error")
    if state == _INSUFFICIENT_PRIVILEGE:
        return PermissionDenied(
            f"the role of the database lacks a right: {error}",
            sqlstate=state,
            code="database.permission_denied",
            remedy=f"{_missing_grant(str(error))}; {ROLES_PAGE} lists the rights of each role",
        )
    if state == _QUERY_CANCELED:
        return StatementTimeout(
            f"the database cancelled a slow statement: {error}",
            code="database.statement_timeout",
            remedy="check the load of the database server",
        )
    if state in _RESOURCE_REMEDIES:
        return Unavailable(
            f"the database server is out of resources: {_without_hint(error)}",
            code="database.out_of_resources",
            remedy=_RESOURCE_REMEDIES[state],
        )
    if state in ("22021", "22P05"):
        return Invalid(f"the database cannot store this text: {error}", code="database.text.not_storable")
    if isinstance(error, asyncpg.DataError) and "query argument" in str(error):  # rejected by the driver
        if found := _REJECTED_ID.search(str(error)):
            given = found[1]
            return Invalid(
                f"{given[:60]} is not an id",
                code="id.invalid",
                field="id",
                remedy="did you forget await?" if "<coroutine " in given else "give a UUID",
            )
        return Invalid(
            "a value is out of the range that can be stored",
            code="database.value.out_of_range",
            remedy="check instants and numbers",
        )
    if state in _ADDRESS_ERRORS:
        code, prefix, remedy = _ADDRESS_ERRORS[state]
        return StoreError(f"{prefix}{error}", code=code, remedy=remedy)
    return DatabaseError(f"{type(error).__name__}: {error}", sqlstate=state)


def _without_hint(error: asyncpg.PostgresError) -> str:
    """Return the message of the server without its detail and hint, which the driver puts on lines of their own."""
    return str(error).partition("\n")[0]


def _connection_lost(error: BaseException) -> Unavailable:
    return Unavailable(f"lost the connection to the database: {error}", code="database.connection_lost")


def _name_address(problem: StoreError | Invalid, error: BaseException, url: str) -> StoreError | Invalid:
    """Add the address to the error of a connection; not every event loop names it."""
    if isinstance(error, NoSuitableServer):  # names each server
        return problem
    address = describe_address(url)
    if problem.code == "database.unreachable" and "no server listens" not in problem.message:
        refused = isinstance(error, ConnectionRefusedError)
        reason = (
            f": no server listens on {address}" if refused else f" at {address}: {_connection_failure_reason(error)}"
        )
        problem.message = f"cannot connect to the database{reason}"
    if problem.code == "database.login.rejected":
        problem.message = problem.message.replace("the database rejects", f"the database at {address} rejects", 1)
    return problem


def _connection_failure_reason(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError) and (address := re.search(r"\('([^']+)', (\d+)", str(error))):
        return f"no server listens on {address[1]} port {address[2]}"
    if isinstance(error, socket.gaierror):
        return "unknown host name"
    return str(error) or type(error).__name__


class LockTimeout(Unavailable):
    """A lock was not available in time; the database itself is reachable."""


class StatementTimeout(Unavailable):
    """The database cancelled a slow statement. It is not retried, because it would be slow again."""


class DatabaseError(StoreError):
    """The database rejected a statement; ``sqlstate`` is its SQLSTATE."""

    def __init__(
        self, message: str, *, sqlstate: str, code: str = "database.statement_rejected", remedy: str | None = None
    ) -> None:
        super().__init__(message, code=code, remedy=remedy)
        self.sqlstate = sqlstate


class PermissionDenied(DatabaseError):
    """The role of the database lacks a right."""


def _missing_grant(reason: str) -> str:
    """Return the statement that grants what an error of the server misses, as far as it names it."""
    found = re.search(r"permission denied for (schema|table|view|sequence|function) (\S+)", reason)
    if found is None:
        return "run it as the owner of the schema tenuto"
    kind, name = found.groups()
    rights = {
        "schema": f"USAGE ON SCHEMA {name}",
        "sequence": f"USAGE ON SEQUENCE tenuto.{name}",
        "function": f"EXECUTE ON FUNCTION tenuto.{name}",
    }
    return f"GRANT {rights.get(kind, f'SELECT (for changes also INSERT, UPDATE, DELETE) ON tenuto.{name}')} TO the role"
