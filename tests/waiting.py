"""Waiting for something to become true, with a deadline: what tests do instead of sleeping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any


async def eventually(predicate: Callable[[], object], timeout: float = 10.0) -> Any:
    """The first true answer of the predicate, plain or awaitable; a failure if none came in time."""
    deadline = time.monotonic() + timeout
    while True:
        answer = predicate()
        value = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        assert time.monotonic() < deadline, f"not so after {timeout:g} s; the last answer was {value!r}"
        await asyncio.sleep(0.01)


def eventually_here(predicate: Callable[[], object], timeout: float = 10.0) -> Any:
    """As `eventually`, for code without a loop."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        assert time.monotonic() < deadline, f"not so after {timeout:g} s; the last answer was {value!r}"
        time.sleep(0.01)
