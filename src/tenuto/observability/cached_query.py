"""Figures of the whole installation, asked of the database at most so often, however often somebody wants them.

Everybody who asks while they are being gathered gets the same answer. Asking takes no more than a hundredth of the
time: should it ever take long, it is done less often. What cannot be gathered is not made up from what was before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tenuto.clock import steady
from tenuto.errors import TenutoError
from tenuto.logs import Log
from tenuto.postgres.database import Database

T = TypeVar("T")

_PATIENCE = 5.0
_SHARE = 100
"""At most one part in so many of the time is spent on gathering."""

log = Log("tenuto.metrics")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What the database said; no value if it could not be asked, but why."""

    value: T | None
    problem: TenutoError | TimeoutError | None
    at: float
    seconds: float


class Gathering(Generic[T]):
    """One question, asked at most every so many seconds."""

    def __init__(
        self,
        open: Callable[[], Awaitable[Database]],
        ask: Callable[[Database], Awaitable[T]],
        every: float,
    ) -> None:
        self._open = open
        self._ask = ask
        self._every = every
        self._under_way: asyncio.Task[Answer[T]] | None = None
        self._last: Answer[T] | None = None

    async def latest(self) -> Answer[T]:
        """The latest answer: a new one if the last is old enough."""
        last = self._last
        if last is not None and steady() < last.at + max(self._every, last.seconds * _SHARE):
            return last
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._gather(), name="tenuto-gathering")
        # Whoever asked first may go away meanwhile; the others still want the answer.
        return await asyncio.shield(self._under_way)

    async def _gather(self) -> Answer[T]:
        began = steady()
        value: T | None = None
        problem: TenutoError | TimeoutError | None = None
        try:
            async with asyncio.timeout(_PATIENCE):
                value = await self._ask(await self._open())
        except (TenutoError, TimeoutError) as error:
            problem = error
            log.debug("figures could not be gathered", error=str(error) or "it took too long")
        # Not having got an answer says nothing of what one costs.
        seconds = steady() - began if value is not None else 0.0
        self._last = Answer(value, problem, steady(), seconds)
        return self._last
