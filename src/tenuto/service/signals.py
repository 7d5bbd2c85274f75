"""What SIGTERM and SIGINT mean to a service: the first asks it to leave, the next one to leave now.

Before the service is ready, one just ends the start. Who has not left some seconds after the grace, because the
database does not answer, goes as if killed: that is safe at any moment, and better than to stay.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from tenuto.logs import Log

EXIT_LOST_CONTROL = 75

_HEARD = (signal.SIGTERM, signal.SIGINT)
_LEAVING_SECONDS = 6.0
"""How long leaving may take after the grace; a little longer than code that must be stopped."""

log = Log("tenuto.service")
T = TypeVar("T")


class Signals:
    """The signals of this process, for as long as the block lasts."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._loop = asyncio.get_running_loop()
        self._told = 0
        self._timers: list[asyncio.TimerHandle] = []
        self._starting: asyncio.Task[Any] | None = None
        self._ways: tuple[Callable[[], None], Callable[[], None]] | None = None

    def __enter__(self) -> None:
        for number in _HEARD:
            self._loop.add_signal_handler(number, self.stop)

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for number in _HEARD:
            self._loop.remove_signal_handler(number)
        for timer in self._timers:
            timer.cancel()

    async def unless_told(self, start: Coroutine[Any, Any, T]) -> T | None:
        """What is started; None if we are told to stop before it is."""
        starting: asyncio.Task[T] = self._loop.create_task(start)
        self._starting = starting
        try:
            return await starting
        except asyncio.CancelledError:
            if not self._told:
                raise
            return None
        finally:
            self._starting = None

    def lead_to(self, first: Callable[[], None], second: Callable[[], None]) -> None:
        """The service is ready: this is how it is told. What came before is told now."""
        self._ways = (first, second)
        if self._told:
            first()

    def stop(self) -> None:
        """As if a signal had come."""
        self._told += 1
        ready = self._ways is not None
        grace = self._grace if ready and self._told == 1 else 0.0
        self._timers.append(self._loop.call_later(grace + _LEAVING_SECONDS, _leave_as_if_killed))
        log.info("told to stop", how=("drain" if self._told == 1 else "now") if ready else "before the start")
        if self._ways is not None:
            self._ways[0 if self._told == 1 else 1]()
        elif self._starting is not None:
            self._starting.cancel()


def _leave_as_if_killed() -> None:
    log.critical("leaving without having cleared up: it took too long")
    os._exit(EXIT_LOST_CONTROL)
