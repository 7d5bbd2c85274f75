"""A read replica: a streaming standby from which pages and lists are read while it is recent enough.

Every second, and when a reader needs a more recent state, the position of the primary is compared with what the standby
has replayed. All commits that were acknowledged before the last position that the standby has reached are on it. That
instant is measured on the monotonic timer of this process, so no clock is compared with another. The replica is for
what is shown to people: nothing may be decided by it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import asyncpg

from tenuto.clock import monotonic_seconds
from tenuto.errors import Invalid, StoreError, Unavailable
from tenuto.logs import Log
from tenuto.postgres.database import Connection, Database, DatabaseError, Row, StatementTimeout
from tenuto.postgres.servers.server_addresses import describe_address, prefer_target
from tenuto.postgres.servers.server_selection import UnsuitableServer
from tenuto.postgres.sql_loader import load_statements

SQL = load_statements(__file__)

CYCLE_SECONDS = 1.0
_CATCH_UP_SECONDS = 0.2
"""How long a reader waits for the standby to replay what it must see; one nearby needs milliseconds."""
_POLL_SECONDS = 0.01
_ANSWER_SECONDS = 2.0
"""A server that does not answer a measurement in this time counts as away."""
_REPLY_TIMEOUT_SECONDS = 10.0
"""After this time without a reply, a query is repeated on the primary."""
_MAX_CONNECTIONS = 10
_CONNECTION_CLASSES = ("08", "53", "57")
"""SQLSTATE classes of a server that is going away or accepts no more connections."""

T = TypeVar("T")

log = Log("tenuto.replica")


class ReplicaDatabase(Database):
    """The connections to a standby. What fails there is repeated on the primary, and what changes rows goes there."""

    primary: Database
    on_lost: Callable[[str], None]

    async def _check_server(self) -> None:
        """The measurements check the server."""

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Borrow a connection to the primary: what uses one itself cannot be repeated there."""
        async with self.primary.connection() as connection:
            yield connection

    async def find_position(self) -> Row:
        """Return which server this is and how far it is, without falling back to the primary."""

        async def send(connection: Connection) -> Any:
            return await connection.fetchrow(SQL.find_replica_position)

        found: Row = await super()._run_with_retries(send, 1)
        return found

    async def _run_with_retries(
        self, work: Callable[[Connection], Awaitable[T]], tries: int = 6, *, is_write: bool = False
    ) -> T:
        if not is_write:
            try:
                return await super()._run_with_retries(work, 1)
            except StatementTimeout:  # it would be as slow on the primary
                raise
            except (Unavailable, DatabaseError) as error:
                # A query may conflict with the recovery, need an unlogged table, or a migration that is not replayed.
                log.debug("query repeated on the primary", error=str(error))
                if _is_connection_lost(error):
                    self.on_lost(str(error))
        return await self.primary._run_with_retries(work, tries, is_write=is_write)


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The replica as one request reads it."""

    database: Database
    current_at: float
    """Instant on the monotonic timer: all commits that were acknowledged before it are on the replica."""

    @property
    def staleness_seconds(self) -> float:
        """How old the state is at most."""
        return max(monotonic_seconds() - self.current_at, 0.0)


class ReadReplica:
    """Watches a standby, and says whether a reader may use it."""

    def __init__(
        self,
        url: str,
        open_primary: Callable[[], Awaitable[Database]],
        *,
        max_staleness_seconds: float,
        behind_pooler: bool = False,
    ) -> None:
        """Raise `Invalid` if the URL is not valid. Without ``target_session_attrs`` it must lead to a standby."""
        try:
            self._url = prefer_target(url, "standby")
        except ValueError as error:
            raise Invalid(
                f"the setting 'database_readonly' is not valid: {error}",
                code="settings.value.invalid",
                field="database_readonly",
                remedy="see TENUTO_DATABASE_READONLY",
            ) from error
        self.max_staleness_seconds = max_staleness_seconds
        self._open_primary = open_primary
        self._behind_pooler = behind_pooler
        self._database: ReplicaDatabase | None = None
        self._server: str | None = None
        """The server that was measured; the pool must not connect to another one with another state."""
        self._current_at: float | None = None
        self._unreached: deque[tuple[int, float]] = deque(maxlen=600)
        """Positions of the primary that the standby has not reached, with the instants before which they were taken."""
        self._measuring = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        self.problem: str | None = "not connected yet"
        """Why the replica cannot be used now."""

    @property
    def staleness_seconds(self) -> float | None:
        """How old the state of the replica is at most; None if it is not connected."""
        return None if self._current_at is None else max(monotonic_seconds() - self._current_at, 0.0)

    async def run_cycle(self) -> float:
        """Connect if necessary and measure; return the time until the next cycle."""
        try:
            if self._database is None:
                await self._connect()
            await self._measure(monotonic_seconds(), even_if_lagging=True)
        except (StoreError, UnsuitableServer, TimeoutError) as error:
            self._disconnect(str(error) or "no answer in time")
        return CYCLE_SECONDS

    async def choose(self, max_age_seconds: float) -> ReplicaState | None:
        """Return the replica if it has all commits that are older than this; None if the primary must be read.

        A replica that is almost there is waited for.
        """
        needed_at = monotonic_seconds() - min(max_age_seconds, self.max_staleness_seconds)
        if self._database is None:
            return None
        if not self._has_reached(needed_at) and not self._is_lagging():
            try:
                await self._measure(needed_at)
            except (StoreError, TimeoutError) as error:
                self._disconnect(str(error) or "no answer in time")
        database, current_at = self._database, self._current_at
        if database is None or current_at is None or not self._has_reached(needed_at):
            return None
        return ReplicaState(database, current_at)

    async def close(self) -> None:
        """Close the connections to the replica."""
        self.problem = "closed"  # not logged
        self._disconnect(self.problem)
        if self._closing:
            await asyncio.wait(self._closing)

    def _has_reached(self, needed_at: float) -> bool:
        # guard: replica.has_what_the_reader_needs
        return self._current_at is not None and self._current_at >= needed_at

    def _is_lagging(self) -> bool:
        """Whether the standby has recently not arrived in the time that a reader waits."""
        return bool(self._unreached) and monotonic_seconds() - self._unreached[0][1] > _CATCH_UP_SECONDS

    async def _connect(self) -> None:
        primary = await self._open_primary()
        opening = ReplicaDatabase.open(
            self._url,
            max_connections=_MAX_CONNECTIONS,
            behind_pooler=self._behind_pooler,
            connect_timeout_seconds=0.0,
            reply_timeout_seconds=_REPLY_TIMEOUT_SECONDS,
        )
        database = await asyncio.wait_for(opening, _REPLY_TIMEOUT_SECONDS)
        assert isinstance(database, ReplicaDatabase)
        database.primary, database.clock = primary, primary.clock

        def disconnect(problem: str) -> None:
            if self._database is database:
                self._disconnect(problem)

        database.on_lost = disconnect
        database.gate.check = self._check_connection
        self._server, self._database = None, database

    async def _check_connection(self, connection: asyncpg.Connection) -> None:
        """Refuse a connection to another server than the measured one, as an address of several servers may give."""
        if self._server is None or self._behind_pooler:
            return
        found = await connection.fetchrow(SQL.find_replica_position)
        if found is None or found["server"] != self._server:  # guard: replica.measured_server_only
            raise UnsuitableServer("the read replica is another server than before")

    async def _measure(self, needed_at: float, *, even_if_lagging: bool = False) -> None:
        """Find out up to which instant the standby has everything; wait for one that is almost there."""
        async with self._measuring:
            database = self._database
            if database is None or self._has_reached(needed_at):  # another reader has measured meanwhile
                return
            if self._is_lagging() and not even_if_lagging:
                return
            started_at = monotonic_seconds()
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    written = (await database.primary.fetch_once(SQL.find_primary_position))[0]
            except (StoreError, TimeoutError):  # says nothing about the replica, whose state ages
                return
            self._unreached.append((written["position"], started_at))
            async with asyncio.timeout(_ANSWER_SECONDS):
                while True:
                    found = await database.find_position()
                    problem = _find_problem(found, written)
                    if problem is not None:
                        self._disconnect(problem)
                        return
                    self._accept(found)
                    if not self._unreached or monotonic_seconds() - started_at > _CATCH_UP_SECONDS:
                        return
                    await asyncio.sleep(_POLL_SECONDS)

    def _accept(self, found: Row) -> None:
        self._server = found["server"]
        while self._unreached and self._unreached[0][0] <= found["position"]:
            self._current_at = self._unreached.popleft()[1]
        if self.problem is not None and self._current_at is not None:
            self.problem = None
            log.info("read replica used", server=describe_address(self._url))

    def _disconnect(self, problem: str) -> None:
        """Forget the replica until the next cycle connects again."""
        if problem != self.problem:
            self.problem = problem
            log.warning("read replica not used", server=describe_address(self._url), reason=problem)
        self._current_at, self._server = None, None
        self._unreached.clear()
        database, self._database = self._database, None
        if database is not None:
            closing = asyncio.create_task(_close(database), name="tenuto-replica-close")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


def _find_problem(found: Row, primary: Row) -> str | None:
    """Return why a server cannot be the replica of the primary; its positions would mean nothing."""
    # guard: replica.same_history
    if found["system"] != primary["system"]:
        return "it is a server of another database"
    if not found["is_standby"]:
        return "it is not a standby"
    if found["timeline"] != primary["timeline"]:
        return f"it is on timeline {found['timeline']}, and the primary on timeline {primary['timeline']}"
    return None


def _is_connection_lost(error: StoreError) -> bool:
    cause = error.__cause__
    if isinstance(cause, asyncpg.PostgresError):
        return (cause.sqlstate or "").startswith(_CONNECTION_CLASSES)
    return isinstance(error, Unavailable)


async def _close(database: Database) -> None:
    with suppress(StoreError, OSError):
        await database.close()
