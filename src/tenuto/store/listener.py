"""Hearing what changed: LISTEN on a connection of its own that heals.

A notification is only a hint that makes things quick; polling finds whatever was missed. After a break everybody is
woken once, because nobody knows what was said meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

import asyncpg

from tenuto.store.database import DRIVER_ERRORS, Database

RECONNECTED = "reconnected"
_QUIET_CHECK_SECONDS = 20.0

Hear = Callable[[str], None]


class Listener:
    """Calls back with each word that is notified on a channel; what services tell each other is on ``tenuto``."""

    def __init__(self, database: Database, hear: Hear, channel: str = "tenuto") -> None:
        self._database = database
        self._hear = hear
        self._channel = channel
        self._task: asyncio.Task[None] | None = None
        self.connected = False

    def start(self) -> None:
        """Begin to listen. Behind a transaction pooler there is nothing to hear: there, polling does it all."""
        if not self._database.behind_pooler:
            self._task = asyncio.create_task(self._stay_connected(), name="tenuto-listener")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _stay_connected(self) -> None:
        wait = 0.2
        while True:
            try:
                await self._listen()
                wait = 0.2
            except DRIVER_ERRORS:
                pass
            self.connected = False
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(wait * 2, 5.0)

    async def _listen(self) -> None:
        """Listen until the connection breaks."""
        connection = await asyncpg.connect(
            self._database.url, timeout=10, server_settings={"application_name": "tenuto listener"}
        )
        broken = asyncio.Event()
        connection.add_termination_listener(lambda *_: broken.set())
        try:
            await connection.add_listener(self._channel, lambda _c, _pid, _channel, word: self._hear(str(word)))
            self.connected = True
            self._hear(RECONNECTED)
            while not broken.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(broken.wait(), _QUIET_CHECK_SECONDS)
                    return
                # A line that was cut without a word looks just like a quiet one: ask.
                await connection.execute("SELECT 1", timeout=5)
        finally:
            connection.terminate()
