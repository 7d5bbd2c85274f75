"""Waiting for something to become true, with a deadline: what tests do instead of sleeping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any


async def eventually(predicate: Callable[[], object], timeout: float = 10.0, *, what: str = "") -> Any:
    """The first true answer of the predicate, plain or awaitable; a failure if none came in time.

    ``what`` is being waited for is said if it does not come.
    """
    deadline = time.monotonic() + timeout
    while True:
        answer = predicate()
        value = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        _still_time(deadline, timeout, what, value)
        await asyncio.sleep(0.01)


def eventually_here(predicate: Callable[[], object], timeout: float = 10.0, *, what: str = "") -> Any:
    """As `eventually`, for code without a loop."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        _still_time(deadline, timeout, what, value)
        time.sleep(0.01)


def _still_time(deadline: float, timeout: float, what: str, value: object) -> None:
    called = f" ({what})" if what else ""
    assert time.monotonic() < deadline, f"not so after {timeout:g} s{called}; the last answer was {value!r}"
