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
        self._kept = KEPT
        self._waiting = 0

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[PoolConnectionProxy]:
        """A connection for as long as the block lasts."""
        connection = await self._take()
        clean = False
        try:
            yield connection
            clean = _lives(connection) and not connection.is_in_transaction()
        finally:
            # Whoever waits for one waits at the driver's pool.
            if clean and not self._waiting and len(self._at_hand) < self._kept:
                self._at_hand.append(connection)
            else:
                await self._pool.release(connection)

    async def close(self) -> None:
        """Wait until all are back, and close them."""
        self._kept = 0
        while self._at_hand:
            await self._pool.release(self._at_hand.pop())
        await self._pool.close()

    def terminate(self) -> None:
        """Cut them all off."""
        self._kept = 0
        self._pool.terminate()

    async def _take(self) -> PoolConnectionProxy:
        while self._at_hand:
            connection = self._at_hand.pop()
            if _lives(connection):
                return connection
            await self._pool.release(connection)
        self._waiting += 1
        try:
            return await self._pool.acquire(timeout=LONGEST_WAIT)
        finally:
            self._waiting -= 1


def _lives(connection: PoolConnectionProxy) -> bool:
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:  # it broke at rest, and the driver's pool has taken it back
        return False
