"""Connections to lend: the driver's pool, and the one or two last used kept at hand.

Returning a connection to the driver's pool takes a task of its own, two timers and three turns of the loop, and whoever
has the answer already waits for it: a tenth of a millisecond, as long as a short statement. A connection that was left
clean is lent again as it is; whatever is out of the ordinary goes the driver's way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from asyncpg.pool import PoolConnectionProxy

KEPT = 2
"""A worker claims and finishes at the same time; more than that is the pool's business."""
LONGEST_WAIT = 30.0


class Pool:
    """Lends each connection to one borrower at a time."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._at_hand: list[PoolConnectionProxy] = []
        self._broken: list[PoolConnectionProxy] = []
        self._kept = KEPT
        self._waiting = 0

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[PoolConnectionProxy]:
        """A connection for as long as the block lasts."""
        connection = self.at_hand() or await self.take()
        try:
            yield connection
        except BaseException:
            await self.release(connection)
            raise
        if not self.keep(connection):
            await self.release(connection)

    def at_hand(self) -> PoolConnectionProxy | None:
        """One that can be had without waiting. Whoever takes it gives it back: `keep`, and if that fails, `release`."""
        while self._at_hand:
            connection = self._at_hand.pop()
            if _lives(connection):
                return connection
            self._broken.append(connection)
        return None

    async def take(self) -> PoolConnectionProxy:
        """One from the driver's pool, waiting for it if need be."""
        while self._broken:
            await self.release(self._broken.pop())
        self._waiting += 1
        try:
            return await self._pool.acquire(timeout=LONGEST_WAIT)
        finally:
            self._waiting -= 1

    def keep(self, connection: PoolConnectionProxy) -> bool:
        """Put it down for the next one, if it was left clean and nobody waits: who does, waits at the driver's pool."""
        if self._waiting or len(self._at_hand) >= self._kept or not _is_clean(connection):
            return False
        self._at_hand.append(connection)
        return True

    async def release(self, connection: PoolConnectionProxy) -> None:
        """Give it back to the driver's pool."""
        await self._pool.release(connection)

    async def close(self) -> None:
        """Wait until all are back, and close them."""
        self._kept = 0
        for connections in (self._at_hand, self._broken):
            while connections:
                await self.release(connections.pop())
        await self._pool.close()

    def terminate(self) -> None:
        """Cut them all off."""
        self._kept = 0
        self._pool.terminate()


def _lives(connection: PoolConnectionProxy) -> bool:
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:  # it broke at rest, and the driver's pool has taken it back
        return False


def _is_clean(connection: PoolConnectionProxy) -> bool:
    try:
        return not connection.is_in_transaction()
    except asyncpg.InterfaceError:
        return False
