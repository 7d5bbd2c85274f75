"""A database query whose result is cached for a while and shared by concurrent callers.

The query takes a bounded share of the time: if it is slow, it runs less often. A failed query never returns an old
result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tenuto.clock import monotonic_seconds
from tenuto.errors import TenutoError
from tenuto.logs import Log
from tenuto.postgres.database import Database

T = TypeVar("T")

_TIMEOUT_SECONDS = 5.0
_MIN_INTERVAL_FACTOR = 100
"""The interval is at least this many times the duration of the query, unless the query says otherwise."""

log = Log("tenuto.metrics")


@dataclass(frozen=True, slots=True)
class QueryResult(Generic[T]):
    """Value of the query, or the error that prevented it."""

    value: T | None
    error: TenutoError | TimeoutError | None
    finished_at: float
    seconds: float


class CachedQuery(Generic[T]):
    """One query that runs at most once per interval."""

    def __init__(
        self,
        open: Callable[[], Awaitable[Database]],
        query: Callable[[Database], Awaitable[T]],
        interval_seconds: float,
        *,
        min_interval_factor: int | None = None,
    ) -> None:
        """The interval is at least ``min_interval_factor`` times the duration of the query."""
        self._open = open
        self._query = query
        self._interval_seconds = interval_seconds
        self._min_interval_factor = min_interval_factor
        self._running: asyncio.Task[QueryResult[T]] | None = None
        self._last: QueryResult[T] | None = None

    async def latest(self) -> QueryResult[T]:
        """Return the cached result, or run the query if the result is too old."""
        last = self._last
        if last is not None and monotonic_seconds() < last.finished_at + self._pause_seconds(last):
            return last
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run_query(), name="tenuto-cached-query")
        # The first caller may be cancelled while others still wait for the result.
        return await asyncio.shield(self._running)

    def _pause_seconds(self, last: QueryResult[T]) -> float:
        factor = _MIN_INTERVAL_FACTOR if self._min_interval_factor is None else self._min_interval_factor
        return max(self._interval_seconds, last.seconds * factor)

    async def _run_query(self) -> QueryResult[T]:
        started_at = monotonic_seconds()
        value: T | None = None
        problem: TenutoError | TimeoutError | None = None
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                value = await self._query(await self._open())
        except (TenutoError, TimeoutError) as error:
            problem = error
            log.debug("metrics query failed", error=str(error) or "timeout")
        # A failed query says nothing about the duration of a successful one.
        seconds = monotonic_seconds() - started_at if value is not None else 0.0
        self._last = QueryResult(value, problem, monotonic_seconds(), seconds)
        return self._last
