"""Connection pool: the driver's pool plus the one or two most recently used connections.

Returning a connection to the driver's pool takes an asyncio task, two timers and three turns of the event loop, about
0.1 ms, as long as a short statement. A connection without an open transaction is therefore reused directly; all
others are returned to the driver's pool.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from asyncpg.pool import PoolConnectionProxy

MAX_IDLE_CONNECTIONS = 2
"""A worker claims and finishes at the same time; more connections go through the driver's pool."""
ACQUIRE_TIMEOUT_SECONDS = 30.0


class Pool:
    """Lends each connection to one borrower at a time."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._idle: list[PoolConnectionProxy] = []
        self._broken: list[PoolConnectionProxy] = []
        self._max_idle = MAX_IDLE_CONNECTIONS
        self._waiter_count = 0

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[PoolConnectionProxy]:
        """Lend a connection for the duration of the block."""
        connection = self.take_idle() or await self.acquire()
        try:
            yield connection
        except BaseException:
            await self.release(connection)
            raise
        if not self.keep_idle(connection):
            await self.release(connection)

    def take_idle(self) -> PoolConnectionProxy | None:
        """Return an idle connection without waiting. The caller returns it by `keep_idle` or, if that is False,
        `release`."""
        while self._idle:
            connection = self._idle.pop()
            if _is_open(connection):
                return connection
            self._broken.append(connection)
        return None

    async def acquire(self) -> PoolConnectionProxy:
        """Return a connection from the driver's pool, waiting for one if necessary."""
        while self._broken:
            await self.release(self._broken.pop())
        self._waiter_count += 1
        try:
            return await self._pool.acquire(timeout=ACQUIRE_TIMEOUT_SECONDS)
        finally:
            self._waiter_count -= 1

    def keep_idle(self, connection: PoolConnectionProxy) -> bool:
        """Keep a connection for reuse if it has no open transaction and no caller waits at the driver's pool."""
        if self._waiter_count or len(self._idle) >= self._max_idle or not _is_clean(connection):
            return False
        self._idle.append(connection)
        return True

    async def release(self, connection: PoolConnectionProxy) -> None:
        """Return a connection to the driver's pool."""
        await self._pool.release(connection)

    async def close(self) -> None:
        """Wait until all connections are returned, and close them."""
        self._max_idle = 0
        for connections in (self._idle, self._broken):
            while connections:
                await self.release(connections.pop())
        await self._pool.close()

    def terminate(self) -> None:
        """Close all connections at once."""
        self._max_idle = 0
        self._pool.terminate()


def _is_open(connection: PoolConnectionProxy) -> bool:
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:  # broken while idle, and already taken back by the driver's pool
        return False


def _is_clean(connection: PoolConnectionProxy) -> bool:
    try:
        return not connection.is_in_transaction()
    except asyncpg.InterfaceError:
        return False
