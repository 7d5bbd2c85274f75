"""Coalesce concurrent writes into one statement, so that they share a commit.

A single request is written at once. Requests that arrive during a write are collected and written together
afterwards. If a combined write fails, each request is written alone and gets its own result, unless the database is
unavailable: then all of them get that error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from tenuto.errors import Unavailable
from tenuto.postgres.database import StatementTimeout

Request = TypeVar("Request")
Result = TypeVar("Result")

MAX_REQUESTS_PER_WRITE = 100


class WriteCoalescer(Generic[Request, Result]):
    """Collects the requests of callers on one event loop."""

    def __init__(self, write: Callable[[Sequence[Request]], Awaitable[Sequence[Result]]]) -> None:
        """``write`` writes several requests and returns a result for each."""
        self._write = write
        self._waiting: list[tuple[Request, asyncio.Future[Result]]] = []
        self._writer_task: asyncio.Task[None] | None = None

    async def __call__(self, request: Request) -> Result:
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, result))
        if self._writer_task is None:
            self._writer_task = asyncio.create_task(self._write_all(), name="tenuto-write-coalescer")
        return await result

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch = self._waiting[:MAX_REQUESTS_PER_WRITE]
                self._waiting = self._waiting[MAX_REQUESTS_PER_WRITE:]
                await self._write_batch(batch)
        finally:
            self._writer_task = None
            for _, future in self._waiting:  # only after a cancellation
                future.cancel()

    async def _write_batch(self, batch: Sequence[tuple[Request, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._write([request for request, _ in batch])
        except Exception as error:  # noqa: BLE001 — passed on to the callers
            if len(batch) > 1 and (not isinstance(error, Unavailable) or isinstance(error, StatementTimeout)):
                for entry in batch:
                    await self._write_batch([entry])
                return
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():  # its caller may have been cancelled
                future.set_result(result)
