"""Waiting for executions to end: told by the database, with a look now and then as the net.

One connection listens for everybody of an app who waits. It is made when somebody first does.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from tenuto.store.database import Database
from tenuto.store.listener import RECONNECTED, Listener

CHANNEL = "tenuto_ended"
_FIRST_LOOK = 0.002
_LONGEST_LOOK = 0.5


class Endings:
    """Who waits for which execution."""

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    @contextmanager
    def of(self, database: Database, id: UUID) -> Iterator[Ending]:
        """Whatever is heard of an execution while the block lasts."""
        if database.is_elsewhere() or database.behind_pooler:
            yield Ending(asyncio.Event(), None)
            return
        if self._listener is None:
            self._listener = Listener(database, self._hear, CHANNEL)
            self._listener.start()
        news, key = asyncio.Event(), str(id)
        self._waiting[key].add(news)
        try:
            yield Ending(news, self._listener)
        finally:
            self._waiting[key].discard(news)
            if not self._waiting[key]:
                del self._waiting[key]

    async def close(self) -> None:
        """Nobody listens any more; who still waits goes on by looking."""
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.stop()

    def _hear(self, word: str) -> None:
        concerned = self._waiting.values() if word == RECONNECTED else [self._waiting.get(word, set())]
        for waiting in concerned:
            for news in waiting:
                news.set()


class Ending:
    """The end of one execution, awaited."""

    def __init__(self, news: asyncio.Event, listener: Listener | None) -> None:
        self._news = news
        self._listener = listener
        self._pause = _FIRST_LOOK

    async def pause(self, most: float | None = None) -> None:
        """Until it is worth looking again, and no longer than ``most``. Without anybody to tell, never much longer than
        it has lasted so far."""
        told = self._listener is not None and self._listener.connected
        self._pause = min(self._pause * 1.2, _LONGEST_LOOK)
        pause = _LONGEST_LOOK if told else self._pause
        try:
            async with asyncio.timeout(pause if most is None else min(pause, most)):
                await self._news.wait()
        except TimeoutError:
            return
        self._news.clear()
