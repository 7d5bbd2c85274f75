"""Bulk work goes in by parts: the next one is made ready while the database stores the last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any

Store = Callable[[Callable[[], object]], Coroutine[Any, Any, int]]
"""Stores a part and answers how many it created; says when there is only the database to wait for."""


class Storing:
    """One part at a time; at the end of the block all that were taken are in.

    A part is taken when the one before it is in, and stored when told to `begin`. In between no transaction is open:
    that is the time to ask an iterator for more, which may keep the whole loop waiting for as long as it likes. What it
    gave is made ready after `begin`, while the database is busy.
    """

    def __init__(self) -> None:
        self.created = 0
        self._next: Store | None = None
        self._under_way: asyncio.Task[int] | None = None

    async def take(self, store: Store) -> None:
        """Wait for the part before to be in, and keep this one for `begin`."""
        await self.begin()
        await self._settle()
        self._next = store

    async def begin(self) -> None:
        """Have stored what was taken, if anything; back once there is only the database to wait for, so that it has
        something to do meanwhile."""
        if self._next is None:
            return
        store, self._next = self._next, None
        sent = asyncio.Event()
        tell = partial(asyncio.get_running_loop().call_soon_threadsafe, sent.set)  # the database may be on another loop
        self._under_way = asyncio.create_task(store(tell))
        self._under_way.add_done_callback(lambda _: sent.set())  # not every way of storing says so, nor one that fails
        await sent.wait()

    async def _settle(self) -> None:
        if self._under_way is not None:
            storing, self._under_way = self._under_way, None
            self.created += await storing

    async def __aenter__(self) -> Storing:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.begin()
        finally:
            await self._settle()
