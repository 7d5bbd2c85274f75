"""Notices an `async def` job that blocks its loop: others on that loop stand still, and time limits cannot reach it.

Leases are safe meanwhile (the watchdog has a thread of its own), but somebody should know which line is to blame.
"""

from __future__ import annotations

import asyncio
import sys
import traceback

from tenuto.clock import steady
from tenuto.logs import Log

TOLERATED = 2.0

log = Log("tenuto.stalls")


class StallDetector:
    """Pings a loop and asks where its thread stands when no answer comes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked_at: float | None = None
        self._reported = False
        self.found = 0

    def look(self, thread: int | None) -> None:
        """Call now and then, from another thread than the loop's."""
        if self._asked_at is None:
            self._asked_at = steady()
            self._reported = False
            self._loop.call_soon_threadsafe(self._answer)
        elif not self._reported and steady() - self._asked_at > TOLERATED:
            self._reported = True
            self.found += 1
            log.warning(
                "a job blocks the event loop",
                seconds=round(steady() - self._asked_at, 1),
                where=_innermost_line(thread),
                remedy="make it a plain def (it then runs in a thread), or isolated=True",
            )

    def _answer(self) -> None:
        self._asked_at = None


def _innermost_line(thread: int | None) -> str:
    frame = sys._current_frames().get(thread) if thread is not None else None
    if frame is None:
        return "unknown"
    last = traceback.extract_stack(frame)[-1]
    return f"{last.filename}:{last.lineno} in {last.name}"
