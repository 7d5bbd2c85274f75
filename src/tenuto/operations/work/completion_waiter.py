"""Waiting for the end of tasks, batches and executions: one loop that polls, and is woken early by notifications.

Only executions notify at their end. Tasks do not, because a notification would slow down every finished task.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from tenuto.clock import monotonic_seconds
from tenuto.errors import Conflict
from tenuto.postgres.database import Database
from tenuto.postgres.listener import RECONNECTED, Listener

ENDED_CHANNEL = "tenuto_ended"

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class PollIntervals:
    """Intervals between polls, which grow with the time waited."""

    first_seconds: float
    growth: float
    max_seconds: float = 0.5


class EndSignal:
    """Wake-ups of one waiting call: by time, and by notification if there is a listener."""

    def __init__(self, intervals: PollIntervals, listener: Listener | None = None) -> None:
        self._intervals = intervals
        self._interval_seconds = intervals.first_seconds
        self._listener = listener
        self._notified = asyncio.Event()
        self._has_ended = False

    def notify(self, *, ended: bool) -> None:
        """Wake the waiting call; ``ended`` if the object is known to have ended."""
        self._has_ended = self._has_ended or ended
        self._notified.set()

    async def wait(self, max_seconds: float | None = None) -> bool:
        """Wait for a notification or the next poll, and return whether the object is known to have ended."""
        listening = self._listener is not None and self._listener.is_connected
        pause_seconds = self._intervals.max_seconds if listening else self._interval_seconds
        self._interval_seconds = min(self._interval_seconds * self._intervals.growth, self._intervals.max_seconds)
        try:
            async with asyncio.timeout(pause_seconds if max_seconds is None else min(pause_seconds, max_seconds)):
                await self._notified.wait()
        except TimeoutError:
            return False
        self._notified.clear()
        return self._has_ended


async def wait_until_ended(
    load_if_ended: Callable[[bool], Awaitable[R | None]],
    signal: EndSignal,
    timeout_seconds: float | None,
    timeout_error: Callable[[], Conflict],
) -> R:
    """Return what ``load_if_ended`` returns once it is not None; raise the error after the timeout.

    Its argument says whether a notification has announced the end, which then need not be checked.
    """
    deadline = None if timeout_seconds is None else monotonic_seconds() + timeout_seconds
    known_to_have_ended = False
    while (ended := await load_if_ended(known_to_have_ended)) is None:
        remaining_seconds = None if deadline is None else deadline - monotonic_seconds()
        if remaining_seconds is not None and remaining_seconds <= 0:
            raise timeout_error()
        known_to_have_ended = await signal.wait(remaining_seconds)
    return ended


class EndNotifications:
    """Distributes notifications about ended executions to the calls that wait for them, over one listener per app."""

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._signals: defaultdict[str, set[EndSignal]] = defaultdict(set)

    @contextmanager
    def subscribe(self, database: Database, id: UUID, intervals: PollIntervals) -> Iterator[EndSignal]:
        """Receive notifications about an execution for the duration of the block."""
        if database.is_on_other_loop() or database.behind_pooler:
            yield EndSignal(intervals)
            return
        if self._listener is None:
            self._listener = Listener(database, self._handle_notification, ENDED_CHANNEL)
            self._listener.start()
        signal, key = EndSignal(intervals, self._listener), str(id)
        self._signals[key].add(signal)
        try:
            yield signal
        finally:
            self._signals[key].discard(signal)
            if not self._signals[key]:
                del self._signals[key]

    async def close(self) -> None:
        """Stop listening; waiting calls continue by polling."""
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.stop()

    def _handle_notification(self, payload: str) -> None:
        if payload == RECONNECTED:  # notifications may have been lost
            for signals in self._signals.values():
                for signal in signals:
                    signal.notify(ended=False)
        for signal in self._signals.get(payload, ()):
            signal.notify(ended=True)
