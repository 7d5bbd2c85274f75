"""Models of pages that several viewers share: one computation per change or second, for any number of live pages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from tenuto.clock import monotonic_seconds

T = TypeVar("T")

VALID_SECONDS = 1.0
MAX_ENTRIES = 500


class ViewCache:
    """Short-lived results by view and parameters; concurrent requests share one computation.

    Only what every role may see belongs here. A failed computation is not kept.
    """

    def __init__(self, valid_seconds: float = VALID_SECONDS) -> None:
        self._valid_seconds = valid_seconds
        self._entries: dict[Hashable, tuple[float, asyncio.Future[Any]]] = {}

    async def get(
        self,
        key: Hashable,
        compute: Callable[[], Awaitable[T]],
        max_age_seconds: float | None = None,
        *,
        staleness_seconds: float = 0.0,
    ) -> T:
        """Return the model, at most as old as the cache or the caller allows. Its age counts from the beginning of the
        computation: a change after that may be missing. ``staleness_seconds`` is the age of what it is computed from.
        """
        now = monotonic_seconds()
        limit = self._valid_seconds if max_age_seconds is None else min(max_age_seconds, self._valid_seconds)
        entry = self._entries.get(key)
        if entry is None or now - entry[0] >= limit:
            entry = now - staleness_seconds, asyncio.ensure_future(compute())
            self._entries.pop(key, None)
            self._entries[key] = entry
            if len(self._entries) > MAX_ENTRIES:
                del self._entries[next(iter(self._entries))]  # the oldest
        try:
            result: T = await asyncio.shield(entry[1])
        except BaseException:
            if self._entries.get(key) is entry:
                del self._entries[key]
            raise
        return result
