"""One look at what has changed since the last one. Reads only; who is told of it is the feed's business."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenuto.store import events
from tenuto.store.database import Database

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
