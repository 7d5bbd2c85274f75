"""The feed: what changes in the whole installation, told to whoever watches, coalesced to about once a second.

One look at the database serves all who watch in this process, and nobody looks while nobody watches. What is told is
worked out from the state of things, not from messages, so it can be taken up again from any instant: a watcher that was
away for a while gets what has changed since, in one piece.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tenuto.clock import steady
from tenuto.errors import StoreError
from tenuto.logs import Log
from tenuto.store import events
from tenuto.store.database import Database

TOPICS = ("executions", "activities", "dead_letters", "definitions", "queues", "workers")
LONGEST_AWAY = timedelta(hours=1)
"""Who was away for longer looks at everything anew."""
_EVERY = 1.0
_SHARE = 0.05
"""Looking takes no more of the time than this."""
_MOST = 500
_OVERLAP = timedelta(seconds=2)
"""An end is recorded a moment before it is committed: what is this young is looked at twice, and told once."""

log = Log("tenuto.feed")


@dataclass(frozen=True, slots=True)
class News:
    """Something has changed."""

    at: datetime
    topic: str
    data: Any


@dataclass(eq=False, slots=True)
class Watcher:
    """Somebody who watches."""

    topics: frozenset[str]
    waiting: asyncio.Queue[News] = field(default_factory=lambda: asyncio.Queue(1000))
    fell_behind: bool = False

    def tell(self, news: News) -> None:
        if news.topic not in self.topics:
            return
        try:
            self.waiting.put_nowait(news)
        except asyncio.QueueFull:
            self.fell_behind = True


class Feed:
    """One look for all who watch."""

    def __init__(self, open: Callable[[], Awaitable[Database]]) -> None:
        self._open = open
        self._watchers: set[Watcher] = set()
        self._looking: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def watching(self, topics: frozenset[str], since: datetime | None) -> AsyncIterator[Watcher]:
        """News of these topics for as long as the block lasts; with ``since``, first what has changed from then on."""
        watcher = Watcher(topics)
        database = await self._open()
        now = database.clock.now()
        if since is not None and since < now - LONGEST_AWAY:
            watcher.waiting.put_nowait(News(now, "reset", {"reason": "away for too long: look at everything anew"}))
        elif since is not None:
            for news in await Look().changes(database, since, now):
                watcher.tell(news)
        self._watchers.add(watcher)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="tenuto-feed")
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking

    async def _look(self) -> None:
        look, database = Look(), await self._open()
        since = database.clock.now()
        await look.changes(database, since, since)  # what stands when somebody begins to watch is no news
        while self._watchers:
            began = steady()
            try:
                now = database.clock.now()
                for news in await look.changes(database, since, now):
                    for watcher in self._watchers:
                        watcher.tell(news)
                since = now
            except StoreError as error:
                log.warning("cannot look what has changed", error=str(error))
            await asyncio.sleep(max(_EVERY, (steady() - began) / _SHARE))


class Look:
    """What was seen last, and what is different now."""

    def __init__(self) -> None:
        self._executions: dict[Any, Any] = {}
        self._told: dict[Any, Any] = {}
        self._queues: Any = None
        self._workers: Any = None

    async def changes(self, database: Database, since: datetime, now: datetime) -> list[News]:
        """What has changed since an instant, and since the look before."""
        from_then = since - _OVERLAP
        found = [News(now, "executions", each) for each in await self._moved(database, from_then)]
        ended = await events.activities_ended(database, since)
        if ended:
            found.append(News(now, "activities", {"ended": ended}))
        for topic, changed in (
            ("dead_letters", await events.letters_changed(database, from_then, _MOST)),
            ("definitions", await events.definitions_changed(database, from_then, _MOST)),
        ):
            found += [News(now, topic, each) for each in changed if self._is_new((topic, *_key(each)), now)]
        standing = await events.standing(database)
        if standing["queues"] != self._queues:
            self._queues = standing["queues"]
            found.append(News(now, "queues", standing["queues"]))
        if standing["workers"] != self._workers:
            self._workers = standing["workers"]
            found.append(News(now, "workers", {"alive": standing["workers"]}))
        return found

    async def _moved(self, database: Database, since: datetime) -> list[dict[str, Any]]:
        """Executions that begin, move on, pause or end."""
        ended = await events.executions_ended(database, since, _MOST)
        under_way = await events.executions_under_way(database, _MOST)
        seen = {each["id"]: each for each in [*under_way, *ended]}
        moved = [each for id, each in seen.items() if self._executions.get(id) != each]
        self._executions = seen
        return moved

    def _is_new(self, key: tuple[Any, ...], now: datetime) -> bool:
        if len(self._told) > 10 * _MOST:
            self._told = {each: at for each, at in self._told.items() if at > now - 2 * _OVERLAP}
        return bool(self._told.setdefault(key, now) == now)


def _key(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record.get(name) for name in ("id", "what", "name", "version", "status"))
