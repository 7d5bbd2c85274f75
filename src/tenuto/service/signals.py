"""Shutdown on SIGTERM and SIGINT: the first signal drains the service, the second stops it at once.

Before the service is ready, a signal aborts the start. A process that has not ended some seconds after the grace
period, because the database does not answer, exits as if killed, which is safe at any time.
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

_SHUTDOWN_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SHUTDOWN_SECONDS = 6.0
"""Time for the shutdown after the grace period; slightly more than stopping job code takes."""

log = Log("tenuto.service")
T = TypeVar("T")


class ShutdownSignals:
    """Context manager that handles the shutdown signals of this process."""

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._loop = asyncio.get_running_loop()
        self._signal_count = 0
        self._exit_timers: list[asyncio.TimerHandle] = []
        self._starting: asyncio.Task[Any] | None = None
        self._handlers: tuple[Callable[[], None], Callable[[], None]] | None = None

    def __enter__(self) -> None:
        for number in _SHUTDOWN_SIGNALS:
            self._loop.add_signal_handler(number, self.stop, number.name)

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for number in _SHUTDOWN_SIGNALS:
            self._loop.remove_signal_handler(number)
        for timer in self._exit_timers:
            timer.cancel()

    async def run_unless_stopped(self, start: Coroutine[Any, Any, T]) -> T | None:
        """Run the start of the service; return None if a signal aborts it."""
        starting: asyncio.Task[T] = self._loop.create_task(start)
        self._starting = starting
        try:
            return await starting
        except asyncio.CancelledError:
            if not self._signal_count:
                raise
            return None
        finally:
            self._starting = None

    def set_handlers(self, drain: Callable[[], None], stop_now: Callable[[], None]) -> None:
        """Set the handlers of the first and of further signals; call ``drain`` if a signal came before."""
        self._handlers = (drain, stop_now)
        if self._signal_count:
            drain()

    def stop(self, signal_name: str | None = None) -> None:
        """Handle a signal, or an error that ends the process."""
        self._signal_count += 1
        ready, first = self._handlers is not None, self._signal_count == 1
        grace_seconds = self._grace_seconds if ready and first else 0.0
        self._exit_timers.append(self._loop.call_later(grace_seconds + _SHUTDOWN_SECONDS, _exit_as_if_killed))
        mode = ("drain" if first else "now") if ready else "while waiting for the database"
        log.info("shutdown requested", signal=signal_name, mode=mode, grace_seconds=grace_seconds)
        if self._handlers is not None:
            self._handlers[0 if first else 1]()
        elif self._starting is not None:
            self._starting.cancel()


def _exit_as_if_killed() -> None:
    log.critical("shutdown timed out; process exits without cleanup")
    os._exit(EXIT_LOST_CONTROL)  # guard: worker.exit_without_database
