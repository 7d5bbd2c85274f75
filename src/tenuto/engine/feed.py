"""The feed: what changes in the whole installation, told to whoever watches, coalesced to about once a second.

One look at the database serves all who watch in this process, and nobody looks while nobody watches. What is told is
worked out from the state of things, not from messages, so it can be taken up again from any instant: a watcher that was
away for a while gets what has changed since, in one piece.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
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
_LONGEST = 15.0
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

    def tell_first(self, missed: Sequence[News]) -> None:
        """What was missed goes before what has been told since."""
        since = []
        while not self.waiting.empty():
            since.append(self.waiting.get_nowait())
        for news in [*missed, *since]:
            self.tell(news)


class Feed:
    """One look for all who watch."""

    def __init__(self, open: Callable[[], Awaitable[Database]]) -> None:
        self._open = open
        self._watchers: set[Watcher] = set()
        self._looking: asyncio.Task[None] | None = None
        self._known = asyncio.Event()
        """What stands is known: from here on there is news."""

    @contextlib.asynccontextmanager
    async def watching(self, topics: frozenset[str], since: datetime | None) -> AsyncIterator[Watcher]:
        """News of these topics for as long as the block lasts; with ``since``, first what has changed from then on."""
        watcher = Watcher(topics)
        database = await self._open()
        self._watchers.add(watcher)  # first of all: what is told to the others meanwhile is for this one, too
        if self._looking is None or self._looking.done():
            self._known = asyncio.Event()
            self._looking = asyncio.create_task(self._look(database), name="tenuto-feed")
        try:
            with contextlib.suppress(TimeoutError):  # whatever happens from here on is news
                async with asyncio.timeout(_EVERY):
                    await self._known.wait()
            now = database.clock.now()
            if since is not None and since < now - LONGEST_AWAY:
                watcher.tell_first([News(now, "reset", {"reason": "away for too long: look at everything anew"})])
            elif since is not None:
                watcher.tell_first(await Look().changes(database, since, now))
            yield watcher
        finally:
            self._watchers.discard(watcher)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking

    async def _look(self, database: Database) -> None:
        look, since = Look(), database.clock.now()
        while self._watchers:
            began = steady()
            try:
                now = database.clock.now()
                found = await look.changes(database, since, now)
                if self._known.is_set():  # what stands when somebody begins to watch is no news
                    for news in found:
                        for watcher in self._watchers:
                            watcher.tell(news)
                since = now
                self._known.set()
            except StoreError as error:
                log.warning("cannot look what has changed", error=str(error))
            await asyncio.sleep(min(max(_EVERY, (steady() - began) / _SHARE), _LONGEST))


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
        # All of it is read before any of it counts as seen: a look that fails halfway is made again.
        under_way = await events.executions_under_way(database, _MOST)
        executions_ended = await events.executions_ended(database, from_then, _MOST)
        ended = await events.activities_ended(database, since)
        letters = await events.letters_changed(database, from_then, _MOST)
        definitions = await events.definitions_changed(database, from_then, _MOST)
        standing = await events.standing(database)

        found = [News(now, "executions", each) for each in self._moved([*under_way, *executions_ended])]
        if ended:
            found.append(News(now, "activities", {"ended": ended}))
        for topic, changed in (("dead_letters", letters), ("definitions", definitions)):
            found += [News(now, topic, each) for each in changed if self._is_new((topic, *_key(each)), now)]
        if standing["queues"] != self._queues:
            self._queues = standing["queues"]
            found.append(News(now, "queues", standing["queues"]))
        if standing["workers"] != self._workers:
            self._workers = standing["workers"]
            found.append(News(now, "workers", {"alive": standing["workers"]}))
        return found

    def _moved(self, executions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Executions that begin, move on, pause or end."""
        seen = {each["id"]: each for each in executions}
        moved = [each for id, each in seen.items() if self._executions.get(id) != each]
        self._executions = seen
        return moved

    def _is_new(self, key: tuple[Any, ...], now: datetime) -> bool:
        if len(self._told) > 10 * _MOST:
            self._told = {each: at for each, at in self._told.items() if at > now - 2 * _OVERLAP}
        return bool(self._told.setdefault(key, now) == now)


def _key(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record.get(name) for name in ("id", "what", "name", "version", "status"))
