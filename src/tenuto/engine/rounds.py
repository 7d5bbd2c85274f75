"""A round, repeated: after as long as it asked for, or as soon as a word is heard that concerns it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from tenuto.engine.loop import poll_until_stopped
from tenuto.store.database import Database
from tenuto.store.listener import RECONNECTED, Listener


class Rounds:
    """Rounds in the background, from start to stop."""

    def __init__(
        self, name: str, database: Database, round: Callable[[], Awaitable[float]], words: Collection[str], log: Any
    ) -> None:
        self._name = name
        self._round = round
        self._words = {*words, RECONNECTED}
        self._log = log
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._listener = Listener(database, self._hear)

    def start(self) -> None:
        self._listener.start()
        self._task = asyncio.create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await self._task
        await self._listener.stop()

    async def _run(self) -> None:
        await poll_until_stopped(self._one, self._wake, lambda: self._stopping, self._log)

    async def _one(self) -> float:
        self._wake.clear()  # before looking: what we are told meanwhile must not be forgotten
        return await self._round()

    def _hear(self, word: str) -> None:
        if word in self._words:
            self._wake.set()
