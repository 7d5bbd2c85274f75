"""Ends of attempts, brought from whichever thread the code ended on to the worker's own loop, many at once.

Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence

from tenuto.jobs.runner import End


class Deliveries:
    """Called with ends; has them collected."""

    def __init__(self, loop: asyncio.AbstractEventLoop, collect: Callable[[Sequence[End]], None]) -> None:
        self._loop = loop
        self._collect = collect
        self._ends: deque[End] = deque()
        self._under_way = False

    def __call__(self, ends: Sequence[End]) -> None:
        """From any thread."""
        self._ends.extend(ends)
        # Added first, asked then; who collects lowers the flag first and looks then. So nothing is left lying,
        # however many threads come at once.
        if not self._under_way:
            self._under_way = True
            with contextlib.suppress(RuntimeError):  # the loop is gone: so is everything else
                self._loop.call_soon_threadsafe(self._bring)

    def _bring(self) -> None:
        self._under_way = False
        ends = []
        while self._ends:
            ends.append(self._ends.popleft())
        self._collect(ends)
