"""One look at what has changed since the last one. Reads only; who is told of it is the feed's business.

The feed: what changes in the whole installation, told to whoever watches, coalesced to about once a second.

One look at the database serves all who watch in this process, and nobody looks while nobody watches. What is told is
worked out from the state of things, not from messages, so it can be taken up again from any instant: a watcher that was
away for a while gets what has changed since, in one piece. What this process has told it tells again from memory; what
happened before is asked of the database, once for all who come back together.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenuto.clock import steady
from tenuto.errors import StoreError, Unavailable
from tenuto.logs import Log
from tenuto.postgres.database import Database
from tenuto.store.reports import changes as events

TOPICS = ("executions", "activities", "dead_letters", "definitions", "queues", "workers")

OVERLAP = timedelta(seconds=5)
"""An end is recorded a moment before it is committed: what is this young is looked at again, and told once."""
_SECOND, _ALL = timedelta(seconds=1), timedelta(days=10_000)
_PAGE = 500
_MOST = 5_000
"""Of one topic in one look; if there is more, everything is to be looked at anew."""
_UNDER_WAY = 2_000
_KINDS = 100
_HIGHEST = UUID(int=2**128 - 1)

Record = dict[str, Any]
Asking = Callable[[Database, datetime, UUID, int], Awaitable[list[Record]]]


@dataclass(frozen=True, slots=True)
class News:
    """Something has changed."""

    topic: str
    data: Any


class Look:
    """What was seen last, and what is different now."""

    def __init__(self, *, whole: bool = False) -> None:
        """``whole`` is for one look alone, over a long time: its counts are not to be told apart by when."""
        self._span = _ALL if whole else _SECOND
        self._executions: dict[Any, Any] = {}
        self._counted: Counter[tuple[datetime, str, str]] = Counter()
        self._told: dict[Any, datetime] = {}
        self._queues: Any = None
        self._workers: Any = None

    async def changes(self, database: Database, since: datetime) -> list[News]:
        """What has changed since an instant, and since the look before."""
        from_then = since - OVERLAP
        begin = from_then.replace(microsecond=0)  # where a span begins
        # All of it is read before any of it counts as seen: a look that fails halfway is made again.
        under_way = await events.executions_under_way(database, _UNDER_WAY)
        executions_ended = await _every(events.executions_ended, database, from_then, "ended_at")
        ended = await events.activities_ended(database, begin, self._span, _MOST)
        letters = await _every(events.letters_changed, database, from_then, "at")
        definitions = await _every(events.definitions_changed, database, from_then, "at")
        standing = await events.standing(database)

        found = [News("executions", each) for each in self._moved([*under_way, *executions_ended])]
        if counts := self._more_ended(ended):
            found.append(News("activities", {"ended": counts}))
        found += [News("dead_letters", each) for each in letters if self._is_new(each)]
        last = {(each["what"], each["id"]): each for each in definitions}  # of several changes the last
        found += [News("definitions", _without_id(each)) for each in last.values() if self._is_new(each)]
        self._forget(from_then)
        if standing["queues"] != self._queues:
            self._queues = standing["queues"]
            found.append(News("queues", standing["queues"]))
        if standing["workers"] != self._workers:
            self._workers = standing["workers"]
            found.append(News("workers", {"alive": standing["workers"]}))
        if max(len(executions_ended), len(letters), len(definitions)) >= _MOST:
            return [News("reset", {"reason": "more has changed than can be told: look at everything anew"})]
        return found

    def _moved(self, executions: Sequence[Record]) -> list[Record]:
        """Executions that begin, move on, pause or end."""
        seen = {each["id"]: each for each in executions}
        moved = [each for id, each in seen.items() if self._executions.get(id) != each]
        self._executions = seen
        return moved

    def _more_ended(self, ended: Sequence[Record]) -> list[Record]:
        """How many attempts have ended that were not counted before, by job and by how."""
        counted = Counter({(each["span"], each["name"], each["status"]): each["count"] for each in ended})
        more: Counter[tuple[str, str]] = Counter()
        for (_span, name, status), count in (counted - self._counted).items():
            more[name, status] += count
        self._counted = counted
        return [{"name": name, "status": status, "count": count} for (name, status), count in more.most_common(_KINDS)]

    def _is_new(self, record: Record) -> bool:
        key = tuple(record.get(name) for name in ("id", "what", "version", "status", "at"))
        if key in self._told:
            return False
        self._told[key] = record["at"]
        return True

    def _forget(self, before: datetime) -> None:
        """What is too old to be seen again need not be remembered."""
        if len(self._told) > 2 * _MOST:
            self._told = {key: at for key, at in self._told.items() if at > before}


async def _every(ask: Asking, database: Database, since: datetime, order: str) -> list[Record]:
    """Everything after an instant, page by page; of far too much, the beginning."""
    found: list[Record] = []
    at, above = since, _HIGHEST
    while len(found) < _MOST:
        some = await ask(database, at, above, _PAGE)
        found += some
        if len(some) < _PAGE:
            break
        at, above = some[-1][order], some[-1]["id"]
    return found


def _without_id(record: Record) -> Record:
    return {name: value for name, value in record.items() if name != "id"}


LONGEST_AWAY = timedelta(hours=1)
"""Who was away for longer looks at everything anew."""
_EVERY = 1.0
_SHARE = 0.05
"""Looking takes no more of the time than this."""
_LONGEST = 15.0
_PATIENCE = 10.0
_MOST_WAITING = 100
"""Looks that may wait for a watcher who is slow."""
_MOST_LOOKS, _MOST_REMEMBERED = 3_600, 20_000
"""What was told and is remembered: looks, and news."""
_SHARED_FOR = timedelta(seconds=1)

log = Log("tenuto.feed")


@dataclass(frozen=True, slots=True)
class Told:
    """What one look has found: told as a whole. Who has heard only some of it takes up again before it."""

    since: datetime
    at: datetime
    news: tuple[News, ...]


@dataclass(frozen=True, slots=True)
class _MadeUp:
    """What the database said of the past, and how often something had been told before it was asked."""

    told: Told
    number: int


@dataclass(eq=False, slots=True)
class Watcher:
    """Somebody who watches."""

    topics: frozenset[str]
    over: bool = False
    """There will be no more: the service stops, or more was waiting than is kept. Who comes again says from where."""
    _waiting: deque[Told] = field(default_factory=deque)
    _rung: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, told: Told) -> None:
        mine = tuple(news for news in told.news if news.topic in self.topics)
        if self.over or not mine:
            return
        if len(self._waiting) >= _MOST_WAITING:
            self.over = True
        else:
            self._waiting.append(Told(told.since, told.at, mine))
        self._rung.set()

    def begin_with(self, missed: Iterable[Told]) -> None:
        """What was missed, in place of what has been told since: that is part of it."""
        self._waiting.clear()
        for told in missed:
            self.tell(told)

    def dismiss(self) -> None:
        self.over = True
        self._rung.set()

    async def next(self, within: float) -> list[Told]:
        """Whatever is there, or the first thing that comes soon."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._rung.wait()
        self._rung.clear()
        found = list(self._waiting)
        self._waiting.clear()
        return found


class Feed:
    """One look for all who watch."""

    def __init__(self, open: Callable[[], Awaitable[Database]]) -> None:
        self._open = open
        self._watchers: set[Watcher] = set()
        self._looking: asyncio.Task[None] | None = None
        self._known = asyncio.Event()
        """What stands is known: from here on there is news."""
        self._past: deque[Told] = deque()
        self._number = 0
        """How often something was told."""
        self._whole_since: datetime | None = None
        """From when on everything that was told is remembered."""
        self._one_at_a_time = asyncio.Lock()
        self._made_up: dict[datetime, _MadeUp] = {}
        self._closed = False

    @contextlib.asynccontextmanager
    async def watching(self, topics: frozenset[str], since: datetime | None) -> AsyncIterator[Watcher]:
        """News of these topics for as long as the block lasts; with ``since``, first what has changed from then on."""
        watcher = Watcher(topics, over=self._closed)
        if self._closed:
            yield watcher
            return
        database = await self._open()
        self._watchers.add(watcher)  # first of all: what is told to the others meanwhile is for this one, too
        if self._looking is None or self._looking.done():
            self._known = asyncio.Event()
            self._looking = asyncio.create_task(self._look(database), name="tenuto-feed")
        try:
            await self._begin(watcher, database, since)
            yield watcher
        finally:
            self._watchers.discard(watcher)

    async def close(self) -> None:
        """Let everybody go who watches, and look no more."""
        self._closed = True
        for watcher in self._watchers:
            watcher.dismiss()
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.wait([looking])

    async def _begin(self, watcher: Watcher, database: Database, since: datetime | None) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._known.wait()  # whatever happens from here on is news
        except TimeoutError:
            raise Unavailable("it cannot be seen what changes") from None
        if since is None:
            return
        now = database.clock.now()
        if since < now - LONGEST_AWAY:
            anew = News("reset", {"reason": "away for too long: look at everything anew"})
            watcher.begin_with([Told(since, now, (anew,))])
            return
        if self._remembers(since):
            watcher.begin_with(told for told in self._past if told.at > since)
        else:
            missed = await self._make_up(database, since)
            watcher.begin_with([missed.told, *self._told_after(missed.number)])

    def _remembers(self, since: datetime) -> bool:
        return self._whole_since is not None and since >= self._whole_since

    def _told_after(self, number: int) -> list[Told]:
        remembered = list(self._past)
        return remembered[max(len(remembered) - (self._number - number), 0) :]

    async def _make_up(self, database: Database, since: datetime) -> _MadeUp:
        """What has changed since an instant before all we remember. Those who come back together were cut off together:
        one asks for all of them, and nobody at the same time for another instant."""
        from_then = since.replace(microsecond=0)
        async with self._one_at_a_time:
            now, number = database.clock.now(), self._number
            good = {then: each for then, each in self._made_up.items() if self._is_good(each.told.at, now)}
            if from_then not in good:
                found = await Look(whole=True).changes(database, from_then)
                good[from_then] = _MadeUp(Told(from_then, now, tuple(found)), number)
            self._made_up = good
            return good[from_then]

    def _is_good(self, made_at: datetime, now: datetime) -> bool:
        return made_at > now - _SHARED_FOR and self._remembers(made_at)

    async def _look(self, database: Database) -> None:
        look, since = Look(), database.clock.now()
        self._past.clear()
        self._whole_since = None
        while self._watchers:
            began = steady()
            try:
                now = database.clock.now()
                found = await look.changes(database, since)
                if not self._known.is_set():  # what stands when somebody begins to watch is no news
                    self._whole_since = now
                    self._known.set()
                elif found:
                    self._tell(Told(since, now, tuple(found)))
                since = now
            except StoreError as error:
                log.warning("cannot look what has changed", error=str(error))
            await asyncio.sleep(min(max(_EVERY, (steady() - began) / _SHARE), _LONGEST))

    def _tell(self, told: Told) -> None:
        self._number += 1
        self._past.append(told)
        while len(self._past) > _MOST_LOOKS or sum(len(each.news) for each in self._past) > _MOST_REMEMBERED:
            self._whole_since = self._past.popleft().at
        for watcher in self._watchers:
            watcher.tell(told)
