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

from tenuto.logs import Log
from tenuto.postgres.database import DRIVER_ERRORS, Database, translate

RECONNECTED = "reconnected"
_QUIET_CHECK_SECONDS = 20.0

Hear = Callable[[str], None]

log = Log("tenuto.listener")


class Listener:
    """Calls back with each word that is notified on a channel; what services tell each other is on ``tenuto``."""

    def __init__(self, database: Database, hear: Hear, channel: str = "tenuto") -> None:
        self._database = database
        self._hear = hear
        self._channel = channel
        self._task: asyncio.Task[None] | None = None
        self._away = False
        self.connected = False

    def start(self) -> None:
        """Begin to listen. Behind a transaction pooler there is nothing to hear: there, polling does it all."""
        if not self._database.behind_pooler:
            self._task = asyncio.create_task(self._stay_connected(), name="tenuto-listener")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))  # rather than the task itself: whoever cancels us does not mean it
            if not self._task.cancelled():
                self._task.result()

    async def _stay_connected(self) -> None:
        wait = 0.2
        while True:
            try:
                await self._listen()
                wait, reason = 0.2, "the connection was closed"
            except DRIVER_ERRORS as error:
                reason = str(translate(error))
            self.connected = False
            if not self._away:  # once, however long it takes
                self._away = True
                log.warning("notifications are not heard; polling goes on", channel=self._channel, error=reason)
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
            if self._away:
                self._away = False
                log.info("notifications are heard again", channel=self._channel)
            self._hear(RECONNECTED)
            while not broken.is_set():
                with contextlib.suppress(TimeoutError):
                    # Not wait_for: until Python 3.12 that loses a cancellation which comes with the end of the line.
                    async with asyncio.timeout(_QUIET_CHECK_SECONDS):
                        await broken.wait()
                        return
                # A line that was cut without a word looks just like a quiet one: ask.
                await connection.execute("SELECT 1", timeout=5)
        finally:
            connection.terminate()
