"""What several ask for at the same moment is written in one statement: one commit for all of them.

Whoever comes alone is not kept waiting. While one write is under way the next ones gather, and go together when it is
done. Should a write of several fail, each is written alone, and has its own answer; unless the database is away: that
is one answer for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from tenuto.errors import Unavailable
from tenuto.postgres.database import TooSlow

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

MOST = 100


class Together(Generic[Asked, Answer]):
    """For callers on one event loop."""

    def __init__(self, write: Callable[[Sequence[Asked]], Awaitable[Sequence[Answer]]]) -> None:
        """``write`` takes several, and has an answer for each."""
        self._write = write
        self._waiting: list[tuple[Asked, asyncio.Future[Answer]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def __call__(self, asked: Asked) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, answer))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all(), name="tenuto-together")
        return await answer

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                some, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                await self._answer(some)
        finally:
            self._writing = None
            for _, future in self._waiting:  # only if we are stopped in the middle
                future.cancel()

    async def _answer(self, some: Sequence[tuple[Asked, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._write([asked for asked, _ in some])
        except Exception as error:  # noqa: BLE001 — whatever it is, it is for who asked
            if len(some) > 1 and (not isinstance(error, Unavailable) or isinstance(error, TooSlow)):
                for one in some:
                    await self._answer([one])
                return
            for _, future in some:
                if not future.done():
                    future.set_exception(error)
            return
        except BaseException:
            for _, future in some:
                future.cancel()
            raise
        for (_, future), answer in zip(some, answers, strict=True):
            if not future.done():  # who asked may have gone away
                future.set_result(answer)
