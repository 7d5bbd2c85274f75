"""The event feed: changes in the whole installation, published to subscribers about once a second.

Single objects are queried twice a second, or four times while logs are watched: these queries read few rows. One query
serves all subscribers of this process, and none runs without subscribers. Events are derived from the state
of the database, not from messages, so that a subscriber can resume from any time: it receives all changes since then in
one batch. Recent batches are repeated from memory; older changes are queried once for all subscribers that return
together.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tenuto.clock import monotonic_seconds
from tenuto.errors import Conflict, StoreError, Unavailable
from tenuto.extension import Contribution, Event, EventOptions, EventSource, EventTopics
from tenuto.extension.registry import ExtensionRegistry
from tenuto.logs import Log
from tenuto.observability.event_sources import RESET, TOPICS, Reset
from tenuto.observability.watched_objects import (
    LOG,
    MAX_WATCHED,
    OVERVIEW,
    LoadOverview,
    WatchedObjects,
    is_watched_topic,
    make_change_event,
)
from tenuto.postgres.database import Database

COMMIT_DELAY = timedelta(seconds=5)
"""A change is dated before it is committed: recent ones are queried again, and reported once."""
CLOCK_DIFFERENCE = timedelta(seconds=2)
"""How much the clocks of two processes may differ: each knows that of the database only as exactly as it answered. A
subscriber that loaded its objects from another process receives the changes since this long before."""
MAX_CHANGES = 5_000
"""Limit per topic and poll; beyond it, subscribers must reload everything."""
HANGING_SOURCE_PAUSE_SECONDS = 60.0
"""How long the source of an extension is skipped after it has not answered in time."""


class ChangeDetector:
    """Compares the state of the database with the state at the previous poll, topic by topic."""

    def __init__(
        self,
        topics: Sequence[EventTopics] = TOPICS,
        extensions: ExtensionRegistry | None = None,
        *,
        is_catch_up: bool = False,
        max_changes: int = MAX_CHANGES,
    ) -> None:
        """``is_catch_up`` is for a single query over a long time."""
        options = EventOptions(is_catch_up, max_changes)
        self._sources = [each.create_source(options) for each in topics]
        self._extensions = extensions
        self._skipped_until: dict[int, float] = {}
        """Extension sources that did not answer in time, by index: the other topics must not wait for them again."""
        self._extension_sources = [] if extensions is None else extensions.event_sources(options)

    async def detect_changes(self, database: Database, since: datetime) -> list[Event]:
        """Return the changes since an instant and since the previous call."""
        since_commit = since - COMMIT_DELAY  # guard: events.late_commit
        # Everything is read before any of it counts as reported: a failed poll is repeated.
        loaded = [(source, await source.load(database, since_commit)) for source in self._sources]
        found: list[Event] = []
        for index, each in enumerate(self._extension_sources):
            found += await self._detect_extension_changes(index, each, database, since_commit)
        for source, changes in loaded:
            found += source.detect_changes(changes)
        resets = [event for event in found if event.topic == RESET]
        return resets[:1] or found

    async def _detect_extension_changes(
        self, index: int, source: Contribution[EventSource], database: Database, since: datetime
    ) -> list[Event]:
        assert self._extensions is not None
        started_at = monotonic_seconds()
        if started_at < self._skipped_until.get(index, started_at):
            return []
        found: list[Event] = []
        async with self._extensions.isolate_async(source.extension, "event topics"):
            changes = source.value.detect_changes(await source.value.load(database, since))
            found = self._extensions.check(source.extension, changes, Event)
        if monotonic_seconds() - started_at >= self._extensions.timeout_seconds:
            self._skipped_until[index] = monotonic_seconds() + HANGING_SOURCE_PAUSE_SECONDS
        return found


MAX_ABSENCE = timedelta(hours=1)
"""A subscriber that was away for longer must reload everything."""
POLL_INTERVAL_SECONDS = 1.0
OBJECT_POLL_SHARE, LOG_POLL_SHARE = 0.5, 0.25
"""Interval of the queries of single objects, and of logs, as a share of the interval of all queries."""
_MAX_QUERY_SHARE = 0.1
"""Upper bound of the share of time spent on queries."""
_MAX_PAUSE_SECONDS = 15.0
"""Longest pause after a slow query."""
_START_TIMEOUT_SECONDS = 10.0
_MAX_WAITING_BATCHES = 100
"""Batches that may wait for a slow subscriber."""
_MAX_REMEMBERED_BATCHES, _MAX_REMEMBERED_EVENTS = 3_600, 20_000
"""Size of the history of published batches."""
CATCH_UP_VALIDITY = timedelta(seconds=1)
"""How long the result of a catch-up query is shared."""

log = Log("tenuto.event_feed")


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events of one poll, published as a whole. A subscriber that received only a part resumes before it."""

    since: datetime
    at: datetime
    """Start of the poll: a subscriber that received the batch resumes from here."""
    events: tuple[Event, ...]
    published_at: datetime
    """End of the poll: what was loaded later contains the changes."""


@dataclass(frozen=True, slots=True)
class _CatchUp:
    """Result of a catch-up query, and how many batches had been published before it."""

    batch: EventBatch
    published_count: int


@dataclass(eq=False, slots=True)
class Subscription:
    """One subscriber of the feed."""

    topics: frozenset[str]
    is_closed: bool = False
    """No more events follow: the service stops, or too many batches waited. The subscriber may subscribe again."""
    watched: frozenset[str] = frozenset()
    """Topics of single objects."""
    is_started: bool = False
    """Missed batches are waiting: what is published from now on is added to them."""
    announced: set[str] = field(default_factory=set)
    """Watched topics whose first event has been published."""
    _waiting: deque[EventBatch] = field(default_factory=deque)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, batch: EventBatch) -> None:
        wanted = tuple(event for event in batch.events if event.topic in self.topics)
        if self.is_closed or not wanted:
            return
        if len(self._waiting) >= _MAX_WAITING_BATCHES:
            self.is_closed = True
        else:
            self._waiting.append(EventBatch(batch.since, batch.at, wanted, batch.published_at))
        self._changed.set()

    def start_with(self, missed: Iterable[EventBatch]) -> None:
        """Replace waiting batches by the missed ones, which include them."""
        self._waiting.clear()
        batches = list(missed)
        if len(batches) > _MAX_WAITING_BATCHES // 2:
            # As one batch: more of them than may wait would end the stream, again and again.
            events = tuple(event for batch in batches for event in batch.events)
            batches = [EventBatch(batches[0].since, batches[-1].at, events, batches[-1].published_at)]
        for batch in batches:
            self.publish(batch)

    def close(self) -> None:
        self.is_closed = True
        self._changed.set()

    async def next_batches(self, timeout_seconds: float) -> list[EventBatch]:
        """Return waiting batches, or wait for the next one up to the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._changed.wait()
        self._changed.clear()
        found = list(self._waiting)
        self._waiting.clear()
        return found


class EventFeed:
    """Polls for changes and publishes them to all subscribers of this process."""

    def __init__(
        self,
        open: Callable[[], Awaitable[Database]],
        extensions: ExtensionRegistry | None = None,
        *,
        load_overview: LoadOverview | None = None,
        poll_interval_seconds: float = POLL_INTERVAL_SECONDS,
        catch_up_validity: timedelta = CATCH_UP_VALIDITY,
    ) -> None:
        self._open = open
        self._watched_objects = WatchedObjects()
        self._watched_overview = WatchedObjects(load_overview)
        self._extensions = extensions
        self._poll_interval_seconds = poll_interval_seconds
        self._catch_up_validity = catch_up_validity
        self._subscriptions: set[Subscription] = set()
        self._polling: asyncio.Task[None] | None = None
        self._polling_objects: asyncio.Task[None] | None = None
        self._position = datetime.min.replace(tzinfo=UTC)
        """All changes up to here have been published: a subscriber resumes from here."""
        self._baseline_known = asyncio.Event()
        """The initial state is known; later differences are events."""
        self._own_positions: deque[datetime] = deque(maxlen=_MAX_REMEMBERED_BATCHES)
        """Instants of recent events of this process. Another process polls at other instants, so a subscriber that
        resumes from one of its events may have missed a change of a batch that began earlier here."""
        self._history: deque[EventBatch] = deque()
        self._published_count = 0
        self._history_since: datetime | None = None
        """Start of the complete history."""
        self._catch_up_lock = asyncio.Lock()
        self._catch_ups: dict[datetime, _CatchUp] = {}
        self._closed = False

    @property
    def topics(self) -> list[str]:
        """The topics of the core and of all extensions."""
        found = [topic for each in TOPICS for topic in each.topics]
        if self._extensions is not None:
            found += [topic for each in self._extensions.event_topics() for topic in each.value.topics]
        return found

    @contextlib.asynccontextmanager
    async def subscribe(
        self, topics: frozenset[str], since: datetime | None, loaded_at: datetime | None = None
    ) -> AsyncIterator[Subscription]:
        """Subscribe to topics for the duration of the block; with ``since``, first deliver the changes since then.

        ``since`` is the id of the last event received. A subscriber without one gives ``loaded_at``, the instant before
        it read what it shows, and first receives the changes that were detected later.

        An event for every single object among the topics follows as soon as its changes are detected: what the
        subscriber has loaded before may be out of date.
        """
        watched = frozenset(topic for topic in topics if is_watched_topic(topic))
        subscription = Subscription(topics, is_closed=self._closed, watched=watched)
        if self._closed:
            yield subscription
            return
        self.check_watched_count(topics)
        database = await self._open()
        self._subscriptions.add(subscription)  # first: batches published meanwhile are for this subscriber too
        if self._polling is None or self._polling.done():
            self._baseline_known = asyncio.Event()
            self._polling = asyncio.create_task(self._poll(database), name="tenuto-event-feed")
        if watched and (self._polling_objects is None or self._polling_objects.done()):
            self._polling_objects = asyncio.create_task(self._poll_objects(database), name="tenuto-object-feed")
        try:
            await self._start_subscription(subscription, database, since, loaded_at)
            subscription.is_started = True
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def check_watched_count(self, topics: frozenset[str]) -> None:
        """Raise an error if a subscription to these topics would exceed the limit of watched objects."""
        new = {topic for topic in topics if is_watched_topic(topic)}
        if len(new | self._watched_topics()) > MAX_WATCHED:  # guard: events.watched_objects
            raise Conflict(
                f"more than {MAX_WATCHED} objects are watched in this process",
                code="events.objects.limit",
                remedy="subscribe to a topic of a whole list, such as executions",
            )

    def _watched_topics(self) -> frozenset[str]:
        return frozenset().union(*(each.watched for each in self._subscriptions))

    async def close(self) -> None:
        """Close all subscriptions and stop polling."""
        self._closed = True
        for subscription in self._subscriptions:
            subscription.close()
        polling = [each for each in (self._polling, self._polling_objects) if each is not None]
        self._polling = self._polling_objects = None
        for each in polling:
            each.cancel()
        if polling:
            await asyncio.wait(polling)

    async def _start_subscription(
        self, subscription: Subscription, database: Database, since: datetime | None, loaded_at: datetime | None
    ) -> None:
        try:
            async with asyncio.timeout(_START_TIMEOUT_SECONDS):
                await self._baseline_known.wait()  # later changes are events
        except TimeoutError:
            raise Unavailable(
                "the event feed cannot read changes from the database",
                code="events.unavailable",
                remedy="try again later",
            ) from None
        start = since or loaded_at
        if start is None:
            return
        now = database.clock.now()
        if start < now - MAX_ABSENCE:
            reset = Event(RESET, Reset("away for too long: reload everything"))
            subscription.start_with([EventBatch(start, now, (reset,), now)])
            return
        if start in self._own_positions and self._has_history_since(start):
            subscription.start_with([each for each in self._history if each.at > start])
        elif self._has_history_since(earliest := start - CLOCK_DIFFERENCE):  # guard: events.clock_of_another_process
            # A poll that began before the subscriber loaded its objects may have detected a change after that.
            late = [each for each in self._history if each.published_at > earliest]  # guard: events.changes_since_load
            subscription.start_with(late)
        else:
            missed = await self._catch_up(database, start)
            subscription.start_with([missed.batch, *self._published_after(missed.published_count)])

    def _has_history_since(self, since: datetime) -> bool:
        return self._history_since is not None and since >= self._history_since

    def _published_after(self, published_count: int) -> list[EventBatch]:
        batches = list(self._history)
        return batches[max(len(batches) - (self._published_count - published_count), 0) :]

    async def _catch_up(self, database: Database, since: datetime) -> _CatchUp:
        """Query the changes since an instant before the history. Subscribers that return together share one query, and
        only one such query runs at a time."""
        since_second = since.replace(microsecond=0)
        async with self._catch_up_lock:
            now, published_count = database.clock.now(), self._published_count
            valid = {start: each for start, each in self._catch_ups.items() if self._is_valid(each.batch.at, now)}
            if since_second not in valid:  # guard: events.shared_query
                detector = ChangeDetector(extensions=self._extensions, is_catch_up=True)
                found = await detector.detect_changes(database, since_second)
                valid[since_second] = _CatchUp(EventBatch(since_second, now, tuple(found), now), published_count)
            self._catch_ups = valid
            return valid[since_second]

    def _is_valid(self, made_at: datetime, now: datetime) -> bool:
        return made_at > now - self._catch_up_validity and self._has_history_since(made_at)

    async def _poll(self, database: Database) -> None:
        """Detect changes of all topics except those of single objects."""
        detector = ChangeDetector(extensions=self._extensions)
        self._position = database.clock.now()
        self._history.clear()
        self._history_since = None
        while self._subscriptions:
            started_at = monotonic_seconds()
            query_seconds = 0.0
            try:
                now = database.clock.now()
                found = await detector.detect_changes(database, self._position)
                query_seconds = monotonic_seconds() - started_at
                if not self._baseline_known.is_set():  # the initial state is no event
                    self._history_since = self._position = database.clock.now()
                    self._own_positions.append(self._position)
                    self._baseline_known.set()
                else:
                    if found:
                        self._publish(EventBatch(self._position, now, tuple(found), database.clock.now()))
                    self._position = now
                    self._own_positions.append(now)
                # The overview has its own interval.
                await self._publish_watched(database, self._watched_overview, self._watched_topics() & {OVERVIEW})
            except StoreError as error:
                log.warning("event feed poll failed", error=str(error))
            pause_seconds = min(query_seconds / _MAX_QUERY_SHARE, _MAX_PAUSE_SECONDS)
            await asyncio.sleep(max(self._poll_interval_seconds, pause_seconds))

    async def _poll_objects(self, database: Database) -> None:
        """Detect changes of single objects, more often than others: a viewer looks at them."""
        while topics := self._watched_topics() - {OVERVIEW}:
            started_at = monotonic_seconds()
            try:
                await self._publish_watched(database, self._watched_objects, topics)
            except StoreError as error:
                log.warning("event feed poll failed", error=str(error))
            pause_seconds = min((monotonic_seconds() - started_at) / _MAX_QUERY_SHARE, _MAX_PAUSE_SECONDS)
            has_log = any(topic.startswith(f"{LOG}:") for topic in topics)
            share = LOG_POLL_SHARE if has_log else OBJECT_POLL_SHARE
            await asyncio.sleep(max(self._poll_interval_seconds * share, pause_seconds))

    async def _publish_watched(self, database: Database, watched: WatchedObjects, topics: frozenset[str]) -> None:
        """Publish changes of single objects. They are not remembered: a subscriber that returns loads its objects.

        Their batches do not move the position of subscribers, because another poll may still detect earlier changes.
        """
        subscriptions = [each for each in self._subscriptions if each.watched & topics and each.is_started]
        changes = await watched.detect_changes(database, topics)
        now = database.clock.now()
        for subscription in subscriptions:
            events = changes
            if new := (subscription.watched & topics) - subscription.announced:  # guard: events.load_after_baseline
                subscription.announced |= new
                events = [make_change_event(topic) for topic in sorted(new)]
                events += [each for each in changes if each.topic not in new]
            if events:
                subscription.publish(EventBatch(self._position, self._position, tuple(events), now))

    def _publish(self, batch: EventBatch) -> None:
        self._published_count += 1
        self._history.append(batch)
        while (
            len(self._history) > _MAX_REMEMBERED_BATCHES
            or sum(len(each.events) for each in self._history) > _MAX_REMEMBERED_EVENTS
        ):
            self._history_since = self._history.popleft().published_at
        for subscription in self._subscriptions:
            subscription.publish(batch)
