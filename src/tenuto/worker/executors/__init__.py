"""Executors: run the code of attempts for a worker, and report each result once.

The worker claims tasks (queues, priorities, limits), renews leases, applies cancellations, enforces timeouts and writes
outcomes. An executor does none of that and never sees the database: it starts code, stops it when asked, and reports
how it ended. docs/how-to/executors.md describes the contract, tests/worker/executors/conformance.py checks it. The
built-in executor is `native`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tenuto.clock import Clock
from tenuto.jobs.attempts import Attempt
from tenuto.jobs.registry import JobRegistry
from tenuto.jobs.runner import AttemptResult, DeliverResults


class Executor(Protocol):
    """Runs the code of attempts."""

    def start(self) -> None:
        """Prepare for attempts; called once, before the first one is launched."""
        ...

    def launch(self, attempts: Sequence[Attempt]) -> None:
        """Start attempts and return at once. Called on the worker's event loop, for at most as many attempts at a time
        as there are slots. Each result is delivered exactly once, after the code has really stopped.
        """
        ...

    def check_for_stalls(self) -> None:
        """Check for blocked code; called now and then on a thread of the worker while attempts run."""
        ...

    def close(self) -> None:
        """Release all resources; called once, when no attempt runs any more."""
        ...


@dataclass(frozen=True, slots=True)
class ExecutorContext:
    """Services of a worker for its executor."""

    jobs: JobRegistry
    clock: Clock
    """The database clock, for the times at which code started and ended."""
    deliver: DeliverResults
    """Receives results from any thread, one or several at once; the outcome is None if none may be reported."""
    slots: int
    """Maximum number of attempts at the same time."""
    set_capacity: Callable[[int], None] = lambda _slots: None
    """Sets, from any thread, how many attempts the executor can run at the same time now. Without a call it
    is ``slots``, which is the upper bound."""


ExecutorFactory = Callable[[ExecutorContext], Executor]


class ResultQueue:
    """Brings results from the threads of an executor to the worker's event loop, many at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, collect: Callable[[Sequence[AttemptResult]], None]) -> None:
        self._loop = loop
        self._collect = collect
        self._results: deque[AttemptResult] = deque()
        self._collection_scheduled = False

    def __call__(self, results: Sequence[AttemptResult]) -> None:
        """Add results; callable from any thread."""
        self._results.extend(results)
        # A producer adds results before it reads the flag; the collector clears the flag before it reads the results.
        # No result is left behind, however many threads deliver at once.
        if not self._collection_scheduled:
            self._collection_scheduled = True
            with contextlib.suppress(RuntimeError):  # the event loop is closed, so the worker is gone
                self._loop.call_soon_threadsafe(self._collect_all)

    def _collect_all(self) -> None:
        self._collection_scheduled = False
        results = []
        while self._results:
            results.append(self._results.popleft())
        self._collect(results)
