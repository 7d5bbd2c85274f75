"""Waiting for executions to end: told by the database, with a look now and then as the net.

One connection listens for everybody of an app who waits. It is made when somebody first does.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from tenuto.postgres.database import Database
from tenuto.postgres.listener import RECONNECTED, Listener

CHANNEL = "tenuto_ended"
_FIRST_LOOK = 0.002
_LONGEST_LOOK = 0.5


class Endings:
    """Who waits for which execution."""

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._waiting: defaultdict[str, set[Ending]] = defaultdict(set)

    @contextmanager
    def of(self, database: Database, id: UUID) -> Iterator[Ending]:
        """Whatever is heard of an execution while the block lasts."""
        if database.is_elsewhere() or database.behind_pooler:
            yield Ending(None)
            return
        if self._listener is None:
            self._listener = Listener(database, self._hear, CHANNEL)
            self._listener.start()
        ending, key = Ending(self._listener), str(id)
        self._waiting[key].add(ending)
        try:
            yield ending
        finally:
            self._waiting[key].discard(ending)
            if not self._waiting[key]:
                del self._waiting[key]

    async def close(self) -> None:
        """Nobody listens any more; who still waits goes on by looking."""
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.stop()

    def _hear(self, word: str) -> None:
        if word == RECONNECTED:  # who knows what was said meanwhile
            for waiting in self._waiting.values():
                for ending in waiting:
                    ending.look_again(told=False)
        for ending in self._waiting.get(word, ()):
            ending.look_again(told=True)


class Ending:
    """The end of one execution, awaited."""

    def __init__(self, listener: Listener | None) -> None:
        self._news = asyncio.Event()
        self._told = False
        self._listener = listener
        self._pause = _FIRST_LOOK

    def look_again(self, *, told: bool) -> None:
        """It is worth looking; ``told`` that it has come to its end."""
        self._told = self._told or told
        self._news.set()

    async def pause(self, most: float | None = None) -> bool:
        """Until it is worth looking again, and no longer than ``most``; whether it was told to have ended. Without
        anybody to tell, never much longer than it has lasted so far."""
        listening = self._listener is not None and self._listener.connected
        self._pause = min(self._pause * 1.2, _LONGEST_LOOK)
        pause = _LONGEST_LOOK if listening else self._pause
        try:
            async with asyncio.timeout(pause if most is None else min(pause, most)):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return self._told
