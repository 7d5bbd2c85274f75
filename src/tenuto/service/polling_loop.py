"""The shape of every loop in a service: do a round, wait as long as it asked, go on whatever happens.

A round, repeated: after as long as it asked for, or as soon as a word is heard that concerns it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

from tenuto.errors import StoreError, Unavailable
from tenuto.postgres.database import Database
from tenuto.postgres.listener import RECONNECTED, Listener

T = TypeVar("T")

_OBJECTS_BETWEEN_COLLECTIONS = 20_000
_AGAIN_SECONDS = 0.5


async def poll_until_stopped(
    round: Callable[[], Awaitable[float]],
    news: asyncio.Event,
    stopped: Callable[[], bool],
    log: Any,
) -> None:
    """Call ``round`` until stopped; it answers how long to wait if there is no news. A failing round is reported and
    tried again."""
    failures = 0
    while not stopped():
        try:
            wait = await round()
            failures = 0
        except Exception as error:  # a service must outlive any single round
            failures += 1
            wait = min(0.2 * 2**failures, 10.0) * random.uniform(0.5, 1.0)
            if isinstance(error, StoreError):
                log.warning("round failed", error=str(error), next_try_in=round_to_tenths(wait))
            else:
                log.exception("round failed", next_try_in=round_to_tenths(wait))
        await wait_at_most(wait, news)


async def once_the_database_answers(
    begin: Callable[[], Awaitable[None]], stopped: Callable[[], bool], log: Any
) -> bool:
    """Begin. A service that has found its database does not give up because it goes away a moment later; False if it
    was told to stop before it could."""
    while True:
        try:
            await begin()
            return True
        except Unavailable as error:
            if stopped():
                return False
            log.warning("cannot begin yet", error=str(error), next_try_in=_AGAIN_SECONDS)
        await asyncio.sleep(_AGAIN_SECONDS)


async def patiently(ask: Callable[[], Awaitable[T]], log: Any, words: str, **about: str) -> T:
    """Ask until there is an answer, however long the database is away: for code that holds a lease, which is stopped in
    time. What is asked for may be asked for twice."""
    pause = 0.1
    while True:
        try:
            return await ask()
        except Unavailable as error:
            log.warning(words, **about, error=str(error))
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)


async def wait_at_most(seconds: float, news: asyncio.Event) -> None:
    """Until there is news, or the time is over."""
    if seconds > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # unlike wait_for without a task between the news and us
                await news.wait()


async def happens_before_the_end(event: asyncio.Event, running: asyncio.Task[None]) -> None:
    """Wait for something a task is to bring about; if the task has failed before, so does this."""
    happened = asyncio.create_task(event.wait())
    await asyncio.wait((happened, running), return_when=asyncio.FIRST_COMPLETED)
    happened.cancel()
    if running.done():
        running.result()


class Loop:
    """A round, repeated in the background until it is stopped."""

    def __init__(self, name: str, round: Callable[[], Awaitable[float]], log: Any) -> None:
        self._name = name
        self._round = round
        self._log = log
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, *, after: float = 0) -> None:
        """Begin; ``after`` so many seconds, so that what is not urgent does not hinder the start."""
        self._task = asyncio.create_task(self._run(after), name=self._name)

    async def _run(self, after: float) -> None:
        if after:
            await wait_at_most(after, self._stop)
        await poll_until_stopped(self._round, self._stop, self._stop.is_set, self._log)

    async def stop(self) -> None:
        self._stop.set()
        if self._task is not None:
            await self._task


def round_to_tenths(seconds: float) -> float:
    return round(seconds, 1)


def collect_garbage_less_often() -> None:
    """A worker makes a dozen small objects per task and lets them go without leaving cycles. At Python's threshold the
    search for cycles would take a fifth of its time. Who has chosen a higher threshold keeps it."""
    youngest, *older = gc.get_threshold()
    if 0 < youngest < _OBJECTS_BETWEEN_COLLECTIONS:
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *older)


class Rounds:
    """Rounds in the background, from start to stop."""

    def __init__(
        self, name: str, database: Database, round: Callable[[], Awaitable[float]], words: Collection[str], log: Any
    ) -> None:
        self._name = name
        self._round = round
        self._words = {*words, RECONNECTED}
        self._log = log
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._listener = Listener(database, self._hear)

    def start(self) -> None:
        self._listener.start()
        self._task = asyncio.create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await self._task
        await self._listener.stop()

    async def _run(self) -> None:
        await poll_until_stopped(self._one, self._wake, lambda: self._stopping, self._log)

    async def _one(self) -> float:
        self._wake.clear()  # before looking: what we are told meanwhile must not be forgotten
        return await self._round()

    def _hear(self, word: str) -> None:
        if word in self._words:
            self._wake.set()
