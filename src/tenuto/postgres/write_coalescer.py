"""Coalesce concurrent writes into one statement, so that they share a commit.

A request that finds no write in flight is written at once, by its caller. Requests that arrive during a write are
collected and written together afterwards. If a combined write fails, its halves are written separately, so that in the
end each request gets its own result, unless the database is unavailable: then all of them get that error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Request = TypeVar("Request")
Result = TypeVar("Result")

MAX_REQUESTS_PER_WRITE = 250
MAX_CHARACTERS_PER_WRITE = 4 * 1024 * 1024
"""The request that exceeds it is the last of its write."""


@dataclass(frozen=True, slots=True, eq=False)
class _WaitingRequest(Generic[Request, Result]):
    request: Request
    character_count: int
    result: asyncio.Future[Result]


class WriteCoalescer(Generic[Request, Result]):
    """Collects the requests of callers on one event loop."""

    def __init__(
        self,
        write: Callable[[Sequence[Request]], Awaitable[Sequence[Result | Exception]]],
        concerns_all_requests: Callable[[Exception], bool],
    ) -> None:
        """``write`` writes several requests and returns a result or an error for each. ``concerns_all_requests`` says
        whether an error that it raises is the error of each request."""
        self._write = write
        self._concerns_all_requests = concerns_all_requests
        self._waiting: deque[_WaitingRequest[Request, Result]] = deque()
        self._is_writing = False
        self._writer_task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is being written or waits to be written."""
        return not self._is_writing

    async def __call__(self, request: Request, character_count: int = 0) -> Result:
        """Write a request; ``character_count`` is about the length of its text."""
        if self._is_writing:
            return await self._write_with_others(request, character_count)
        self._is_writing = True
        try:
            (result,) = await self._write([request])
        finally:
            self._is_writing = False
            self._start_writer_task()
        if isinstance(result, Exception):
            raise result
        return result

    async def _write_with_others(self, request: Request, character_count: int) -> Result:
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        waiting = _WaitingRequest(request, character_count, result)
        self._waiting.append(waiting)
        try:
            return await waiting.result
        except asyncio.CancelledError:
            if waiting in self._waiting:  # not sent yet
                self._waiting.remove(waiting)
            raise

    def _start_writer_task(self) -> None:
        if self._waiting:
            self._is_writing = True
            self._writer_task = asyncio.create_task(self._write_all(), name="tenuto-write-coalescer")

    async def _write_all(self) -> None:
        batch: list[_WaitingRequest[Request, Result]] = []
        try:
            while self._waiting:
                batch = self._next_batch()
                await self._write_batch(batch)
        finally:
            self._is_writing = False
            self._writer_task = None
            for waiting in (*batch, *self._waiting):  # without a result only after a cancellation
                waiting.result.cancel()
            self._waiting.clear()

    def _next_batch(self) -> list[_WaitingRequest[Request, Result]]:
        batch: list[_WaitingRequest[Request, Result]] = []
        character_count = 0
        while self._waiting and len(batch) < MAX_REQUESTS_PER_WRITE and character_count < MAX_CHARACTERS_PER_WRITE:
            batch.append(self._waiting.popleft())
            character_count += batch[-1].character_count
        return batch

    async def _write_batch(self, batch: Sequence[_WaitingRequest[Request, Result]]) -> None:
        results: Sequence[Result | Exception]
        try:
            results = await self._write([waiting.request for waiting in batch])
        except Exception as error:  # noqa: BLE001 — passed on to the callers
            if len(batch) > 1 and not self._concerns_all_requests(error):
                half = len(batch) // 2
                await self._write_batch(batch[:half])
                await self._write_batch(batch[half:])
                return
            results = [error] * len(batch)
        for waiting, result in zip(batch, results, strict=True):
            if waiting.result.done():  # its caller was cancelled
                continue
            if isinstance(result, Exception):
                waiting.result.set_exception(result)
            else:
                waiting.result.set_result(result)
