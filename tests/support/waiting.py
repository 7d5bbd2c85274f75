"""Waiting for a condition with a deadline; tests use it instead of sleeping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any


async def eventually(predicate: Callable[[], object], timeout: float = 10.0, *, what: str = "") -> Any:
    """Return the first true result of the predicate, plain or awaitable; fail after the timeout.

    ``what`` names the condition in the failure message.
    """
    deadline = time.monotonic() + timeout
    while True:
        result = predicate()
        value = await result if inspect.isawaitable(result) else result
        if value:
            return value
        _check_deadline(deadline, timeout, what, value)
        await asyncio.sleep(0.01)


def eventually_blocking(predicate: Callable[[], object], timeout: float = 10.0, *, what: str = "") -> Any:
    """Wait like `eventually` in code without an event loop."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        _check_deadline(deadline, timeout, what, value)
        time.sleep(0.01)


def _check_deadline(deadline: float, timeout: float, what: str, value: object) -> None:
    condition = f" ({what})" if what else ""
    assert time.monotonic() < deadline, f"condition not met after {timeout:g} s{condition}; last value: {value!r}"
