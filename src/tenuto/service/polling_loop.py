"""Polling loops of services: run a cycle, wait as long as it asks for or until a notification, repeat."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections.abc import Awaitable, Callable, Collection
from functools import cache
from typing import Any, TypeVar

from tenuto.errors import SchemaMismatch, StoreError, Unavailable
from tenuto.postgres.database import Database
from tenuto.postgres.listener import RECONNECTED, Listener

T = TypeVar("T")

_GARBAGE_COLLECTION_THRESHOLD = 20_000
_SCHEMA_RETRY_SECONDS = 30.0
"""Delay after a cycle that found a schema which only an operator can migrate."""


class PollingLoop:
    """A service that runs a cycle repeatedly. The given notifications of the database end a wait early."""

    def __init__(
        self,
        name: str,
        run_cycle: Callable[[], Awaitable[float]],
        log: Any,
        *,
        database: Database | None = None,
        notifications: Collection[str] = (),
        delay_seconds: float = 0,
    ) -> None:
        """``run_cycle`` returns the seconds to wait until the next cycle; the first one runs after the delay."""
        self.name = name
        self.is_ready = False
        """Whether it runs and its last cycle, if there was one, did not fail."""
        self._delay_seconds = delay_seconds
        self._run_cycle = run_cycle
        self._log = log
        self._notifications = {*notifications, RECONNECTED}
        self._wake_up = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._listener = None if database is None else Listener(database, self._receive)

    async def start(self) -> None:
        if self._listener is not None:
            self._listener.start()
        self.is_ready = True
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        """Stop after the current cycle."""
        self._stopping = True
        self.is_ready = False
        self._wake_up.set()
        if self._task is not None:
            await self._task
        if self._listener is not None:
            await self._listener.stop()

    def _receive(self, notification: str) -> None:
        if notification in self._notifications:
            self._wake_up.set()

    async def _run(self) -> None:
        await wait_for_event(self._delay_seconds, self._wake_up)
        await run_cycles(self._clear_and_run_cycle, self._wake_up, lambda: self._stopping, self._log, self.name)

    async def _clear_and_run_cycle(self) -> float:
        self._wake_up.clear()  # before the cycle: a notification that arrives during it must not be lost
        succeeded = False
        try:
            wait_seconds = await self._run_cycle()
            succeeded = True
            return wait_seconds
        finally:
            self.is_ready = succeeded


async def run_cycles(
    run_cycle: Callable[[], Awaitable[float]],
    wake_up: asyncio.Event,
    is_stopped: Callable[[], bool],
    log: Any,
    name: str,
) -> None:
    """Run cycles until stopped. Each returns the seconds to wait for a wake-up. A failed cycle is repeated.

    ``name`` names the loop in the log.
    """
    failure_count = 0
    reported_mismatch = ""
    while not is_stopped():
        try:
            wait_seconds = await run_cycle()
            failure_count, reported_mismatch = 0, ""
        except SchemaMismatch as error:
            wait_seconds = _SCHEMA_RETRY_SECONDS
            if str(error) != reported_mismatch:  # only an operator can help, so it is said once
                reported_mismatch = str(error)
                log.warning("service paused until migration", loop=name, error=error.message, remedy=error.remedy)
        except Exception as error:  # a service must survive any single cycle
            failure_count += 1
            wait_seconds = min(0.2 * 2**failure_count, 10.0) * random.uniform(0.5, 1.0)
            if isinstance(error, StoreError):
                log.warning(
                    "service cycle failed", loop=name, error=str(error), next_try_seconds=round(wait_seconds, 1)
                )
            else:
                log.exception("service cycle failed", loop=name, next_try_seconds=round(wait_seconds, 1))
        await wait_for_event(wait_seconds, wake_up)


async def wait_for_event(max_seconds: float, event: asyncio.Event) -> None:
    """Wait until the event is set or the time is over."""
    if max_seconds > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max_seconds):  # unlike `asyncio.wait_for`, starts no task
                await event.wait()


async def wait_for_event_of_task(event: asyncio.Event, task: asyncio.Task[None]) -> None:
    """Wait for an event that the task sets; raise the error of the task if it ends before."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait((waiting, task), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()


async def retry_until_database_answers(
    start: Callable[[], Awaitable[None]], is_stopped: Callable[[], bool], log: Any, *, retry_seconds: float = 0.5
) -> bool:
    """Call ``start`` until the database answers; return False if the service was stopped before."""
    while True:
        try:
            await start()
            return True
        except Unavailable as error:
            if is_stopped():
                return False
            log.warning("service start postponed", error=str(error), next_try_seconds=retry_seconds)
        await asyncio.sleep(retry_seconds)


async def retry_while_unavailable(operation: Callable[[], Awaitable[T]], log: Any, event: str, **fields: str) -> T:
    """Repeat an idempotent operation until the database answers.

    For code that runs under a lease: the worker cancels it when the lease expires.
    """
    pause_seconds = 0.1
    while True:
        try:
            return await operation()
        except Unavailable as error:
            log.warning(event, **fields, error=str(error))
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, 2.0)


def reduce_garbage_collection(threshold: int = _GARBAGE_COLLECTION_THRESHOLD) -> None:
    """Raise the garbage collection threshold of Python, unless it is higher already.

    Measured: a worker creates a dozen small objects per task that leave no reference cycles; with the default threshold
    the search for cycles takes a fifth of its time.
    """
    youngest, *older = gc.get_threshold()
    if 0 < youngest < threshold:
        gc.set_threshold(threshold, *older)


@cache
def leave_loaded_code_out_of_garbage_collections(service: str) -> None:
    """Exclude everything that exists now from garbage collections, once per process and service.

    Modules, routes and schemas are 200,000 objects that live as long as the process. Measured: each collection that
    examined them delayed a page by 40 ms or more (benchmark `dashboard`), and a step of an execution by 20 ms, once in
    500 executions (benchmark `executions`, a single one).
    """
    gc.collect()  # what is frozen is never collected
    gc.freeze()
