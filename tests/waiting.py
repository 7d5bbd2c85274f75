"""Waiting for something to become true, with a deadline: what tests do instead of sleeping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(predicate: Callable[[], T | Awaitable[T]], timeout: float = 10.0) -> T:
    """The first true answer of the predicate, plain or awaitable; a failure if none came in time."""
    deadline = time.monotonic() + timeout
    while True:
        answer = predicate()
        value: T = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        assert time.monotonic() < deadline, f"not so after {timeout:g} s; the last answer was {value!r}"
        await asyncio.sleep(0.01)


def eventually_here(predicate: Callable[[], T], timeout: float = 10.0) -> T:
    """As `eventually`, for code without a loop."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        assert time.monotonic() < deadline, f"not so after {timeout:g} s; the last answer was {value!r}"
        time.sleep(0.01)
