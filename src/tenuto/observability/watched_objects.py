"""Changes of single objects, such as one execution, for subscribers that show them.

Only objects with subscribers are queried, all of a process by one statement. The topic of an object is
``KIND:ID``; ``overview`` is the topic of the overview.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tenuto.clock import monotonic_seconds
from tenuto.errors import Invalid, quoted
from tenuto.extension import Event
from tenuto.postgres.database import Database
from tenuto.store.reports import watched_objects as store
from tenuto.store.work import live_logs

MAX_WATCHED = 200
"""Objects that the subscribers of one process may watch at the same time."""
OVERVIEW = "overview"
LOG = "log"
_VOLATILE_FIELDS = {"read_at", "silent_seconds"}
"""Fields of the overview that change with time alone."""

LoadOverview = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """Data of an event: an object changed, or the subscription to it has begun."""

    topic: str


def is_watched_topic(topic: str) -> bool:
    """Return whether a topic is that of a single object or of the overview."""
    return topic == OVERVIEW or ":" in topic


def parse_watched_topic(topic: str) -> str:
    """Return the topic in its usual form, or raise an error."""
    if topic == OVERVIEW:
        return topic
    kind, _, text = topic.partition(":")
    try:
        if kind in store.KINDS:
            return f"{kind}:{UUID(text)}"
    except ValueError:
        pass
    raise Invalid(
        f"topic {quoted(topic, 60)} does not name an object",
        code="events.topic.unknown",
        field="topics",
        remedy=f"write KIND:ID with a complete id; the kinds are {', '.join(store.KINDS)}",
    )


class WatchedObjects:
    """The state of watched objects at the previous poll."""

    def __init__(self, load_overview: LoadOverview | None = None) -> None:
        self._load_overview = load_overview
        self._known: dict[str, Any] = {}
        self._log_watches: dict[UUID, float] = {}
        """Watched logs, and when each watch was renewed."""

    async def detect_changes(self, database: Database, topics: Collection[str]) -> list[Event]:
        """Return the objects that have changed since the previous poll. An object that was not watched then is not
        reported; its new subscribers receive a first event."""
        if not topics:
            self._known = {}
            return []
        current: dict[str, Any] = {}
        if ids := _ids_by_kind(topics):
            await self._watch_logs(database, ids.get(LOG, []))
            digests = await store.load_digests(database, ids)
            current |= {topic: digests.get(topic) for topic in topics if topic != OVERVIEW}
        if OVERVIEW in topics and self._load_overview is not None:
            current[OVERVIEW] = _without_volatile_fields(await self._load_overview())
        known, self._known = self._known, current
        changed = [topic for topic in current if topic in known and known[topic] != current[topic]]
        return [make_change_event(topic) for topic in changed]

    async def _watch_logs(self, database: Database, ids: Sequence[UUID]) -> None:
        """Renew the watches of logs, so that the workers send them."""
        now = monotonic_seconds()
        self._log_watches = {id: at for id, at in self._log_watches.items() if id in ids}
        renew_before = now - live_logs.WATCH_TIME.total_seconds() / 3
        if due := [id for id in ids if self._log_watches.get(id, renew_before) <= renew_before]:
            await live_logs.watch(database, due)
            self._log_watches |= dict.fromkeys(due, now)


def make_change_event(topic: str) -> Event:
    """Return the event after which a subscriber loads an object again."""
    return Event(topic, ObjectChange(topic))


def _ids_by_kind(topics: Collection[str]) -> dict[str, list[UUID]]:
    ids: dict[str, list[UUID]] = {}
    for topic in topics:
        kind, _, text = topic.partition(":")
        if text:
            ids.setdefault(kind, []).append(UUID(text))
    return ids


def _without_volatile_fields(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: _without_volatile_fields(getattr(value, each.name))
            for each in dataclasses.fields(value)
            if each.name not in _VOLATILE_FIELDS
        }
    if isinstance(value, list | tuple):
        return [_without_volatile_fields(each) for each in value]
    return value
