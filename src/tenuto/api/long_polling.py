"""Long polling: a GET with ``?wait=30`` is answered when the object has ended, or after the time given.

A waiting request occupies no database connection; it ends at once when the client disconnects or the service stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request

from tenuto.api.problems import Refused
from tenuto.errors import Conflict

MAX_WAIT_SECONDS = 60.0
MAX_WAITING_REQUESTS = 500
"""Per process: each polls the database up to twice a second."""

Wait = Annotated[
    float,
    Query(
        ge=0,
        le=MAX_WAIT_SECONDS,
        description="Wait up to this many seconds for the end. Check `is_ended` or `ended_at`, and ask again.",
        examples=[30],
    ),
]


class WaitingRequests:
    """The requests of this process that wait for the end of an object."""

    def __init__(self) -> None:
        self._count = 0
        self._closed = asyncio.Event()

    @property
    def count(self) -> int:
        return self._count

    def close(self) -> None:
        """Answer all waiting requests now; called when the service stops."""
        self._closed.set()

    async def wait(self, request: Request, seconds: float, wait_for_end: Callable[[float], Awaitable[Any]]) -> None:
        """Wait until ``wait_for_end`` returns or times out, the client disconnects or the service stops."""
        if seconds <= 0 or self._closed.is_set():
            return
        if self._count >= MAX_WAITING_REQUESTS:  # guard: long_polling.limit
            raise Refused(
                429,
                f"too many waiting requests: the limit is {MAX_WAITING_REQUESTS}",
                code="request.wait.limit",
                remedy="ask without wait, or subscribe to the events",
                headers={"Retry-After": "5"},
            )
        self._count += 1
        waits = [
            asyncio.ensure_future(_wait_for_end(wait_for_end, seconds)),
            asyncio.ensure_future(_wait_for_disconnect(request)),
            asyncio.ensure_future(self._closed.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if waits[0].done():
                waits[0].result()  # raises its error
        finally:
            self._count -= 1
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


async def _wait_for_end(wait_for_end: Callable[[float], Awaitable[Any]], seconds: float) -> bool:
    try:
        await wait_for_end(seconds)
    except Conflict as error:
        if not error.code.endswith(".wait.timeout"):
            raise
        return False
    return True


async def _wait_for_disconnect(request: Request) -> bool:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    return True


def waiting_requests(api: FastAPI) -> WaitingRequests:
    """Return the waiting requests of this process."""
    if getattr(api.state, "waiting_requests", None) is None:
        api.state.waiting_requests = WaitingRequests()
    found: WaitingRequests = api.state.waiting_requests
    return found
