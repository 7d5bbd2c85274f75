"""LISTEN on a dedicated connection that reconnects.

A notification only shortens the reaction time; polling finds all changes. After a reconnect the handler is called once
with RECONNECTED, because notifications may have been missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

from tenuto.logs import Log
from tenuto.postgres.database import DRIVER_ERRORS, Database, translate_driver_error
from tenuto.postgres.servers.server_selection import connect

RECONNECTED = "reconnected"
_LIVENESS_CHECK_SECONDS = 20.0

NotificationHandler = Callable[[str], None]

log = Log("tenuto.listener")


class Listener:
    """Passes each notification of a channel to a handler; services notify each other on ``tenuto``."""

    def __init__(self, database: Database, on_notification: NotificationHandler, channel: str = "tenuto") -> None:
        self._database = database
        self._on_notification = on_notification
        self._channel = channel
        self._task: asyncio.Task[None] | None = None
        self._is_disconnected = False
        self.is_connected = False

    def start(self) -> None:
        """Start listening. Behind a transaction pooler, which delivers no notifications, only polling is used."""
        if not self._database.behind_pooler:
            self._task = asyncio.create_task(self._stay_connected(), name="tenuto-listener")

    def cancel(self) -> None:
        """Stop without waiting for the end of the connection."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))  # not `await task`, which would also cancel it
            if not self._task.cancelled():
                self._task.result()

    async def _stay_connected(self) -> None:
        wait = 0.2
        while True:
            try:
                await self._listen()
                wait, reason = 0.2, "the connection was closed"
            except DRIVER_ERRORS as error:
                reason = str(translate_driver_error(error))
            self.is_connected = False
            if not self._is_disconnected:  # log once per interruption
                self._is_disconnected = True
                log.warning(
                    "notification listener disconnected",
                    channel=self._channel,
                    error=reason,
                    consequence="polling instead, so tasks start later",
                )
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(wait * 2, 5.0)

    async def _listen(self) -> None:
        """Listen until the connection breaks."""
        connection = await connect(
            self._database.url,
            timeout=10,
            gate=self._database.gate,
            server_settings={"application_name": "tenuto listener"},
        )
        broken = asyncio.Event()
        connection.add_termination_listener(lambda *_: broken.set())
        try:
            await connection.add_listener(
                self._channel, lambda _c, _pid, _channel, payload: self._on_notification(str(payload))
            )
            self.is_connected = True
            if self._is_disconnected:
                self._is_disconnected = False
                log.info("notification listener reconnected", channel=self._channel)
            self._on_notification(RECONNECTED)
            while not broken.is_set():
                with contextlib.suppress(TimeoutError):
                    # Not wait_for: before Python 3.12 it loses a cancellation that arrives together with the event.
                    async with asyncio.timeout(_LIVENESS_CHECK_SECONDS):
                        await broken.wait()
                        return
                # A silently dropped connection looks like a quiet one, so send a statement.
                await connection.execute("SELECT 1", timeout=5)
        finally:
            connection.terminate()
