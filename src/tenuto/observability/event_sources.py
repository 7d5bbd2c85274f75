"""Event sources of the core: executions, activities, dead letters, definitions, queues and workers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from tenuto.extension import Event, EventOptions, EventSource, EventTopics
from tenuto.postgres.database import Database
from tenuto.store.reports import changed_objects
from tenuto.store.reports.changed_objects import (
    DeadLetterChange,
    DefinitionChange,
    EndedAttempts,
    ExecutionChange,
    LiveWorker,
    QueuesAndWorkers,
)

RESET = "reset"
"""Topic of the event after which a subscriber must reload everything."""
_COUNT_SPAN, _WHOLE_SPAN = timedelta(seconds=1), timedelta(days=10_000)
_PAGE_SIZE = 500
_MAX_OPEN_EXECUTIONS = 2_000
_MAX_ACTIVITY_KINDS = 100
_MAX_NAMED_TASKS = 20
_HIGHEST_ID = UUID(int=2**128 - 1)


class DatedChange(Protocol):
    """A change with an id and an instant, by which pages are ordered."""

    @property
    def id(self) -> UUID: ...

    @property
    def at(self) -> datetime: ...


C = TypeVar("C", bound=DatedChange)
PagedQuery = Callable[[Database, datetime, UUID, int], Awaitable[list[C]]]


@dataclass(frozen=True, slots=True)
class Reset:
    """Data of the event after which a subscriber must reload everything."""

    reason: str


@dataclass(frozen=True, slots=True)
class EndedCount:
    """The number of attempts of a job that ended with one outcome."""

    name: str
    state: str
    count: int
    task_ids: list[UUID]
    """Tasks whose attempts these are: the last ones, newest first. Empty after a resumed stream has missed some."""


@dataclass(frozen=True, slots=True)
class EndedActivities:
    """Data of an event of the topic ``activities``."""

    ended: list[EndedCount]


@dataclass(frozen=True, slots=True)
class LiveWorkers:
    """Data of an event of the topic ``workers``."""

    alive: list[LiveWorker]


async def _load_all(load_page: PagedQuery[C], database: Database, since: datetime, max_changes: int) -> list[C]:
    """Load all changes after an instant, page by page, up to the limit."""
    found: list[C] = []
    at, after_id = since, _HIGHEST_ID
    while len(found) < max_changes:
        page = await load_page(database, at, after_id, _PAGE_SIZE)
        found += page
        if len(page) < _PAGE_SIZE:
            break
        at, after_id = page[-1].at, page[-1].id
    return found


def _reset_if_full(count: int, max_changes: int) -> list[Event]:
    return [Event(RESET, Reset("too many changes: reload everything"))] if count >= max_changes else []


class _Executions:
    """Executions that started, advanced, paused or ended."""

    def __init__(self, options: EventOptions) -> None:
        self._max_changes = options.max_changes
        self._known: dict[UUID, ExecutionChange] = {}

    async def load(self, database: Database, since: datetime) -> tuple[list[ExecutionChange], list[ExecutionChange]]:
        open_executions = await changed_objects.list_open_executions(database, _MAX_OPEN_EXECUTIONS)
        ended = await _load_all(changed_objects.list_ended_executions, database, since, self._max_changes)
        return open_executions, ended

    def detect_changes(self, loaded: tuple[list[ExecutionChange], list[ExecutionChange]]) -> list[Event]:
        open_executions, ended = loaded
        current = {each.id: each for each in (*open_executions, *ended)}
        changed = [each for id, each in current.items() if self._known.get(id) != each]
        self._known = current
        return [Event("executions", each) for each in changed] + _reset_if_full(len(ended), self._max_changes)


class _Activities:
    """Numbers of attempts that ended, by job and outcome, and the last tasks of each number."""

    def __init__(self, options: EventOptions) -> None:
        self._max_changes = options.max_changes
        self._span = _WHOLE_SPAN if options.is_catch_up else _COUNT_SPAN
        self._counted: Counter[tuple[datetime, str, str]] = Counter()
        self._named: dict[tuple[datetime, str, str], set[UUID]] = {}
        """The tasks that events have named, by count."""

    async def load(self, database: Database, since: datetime) -> list[EndedAttempts]:
        first_span_at = since.replace(microsecond=0)
        max_ids = _MAX_NAMED_TASKS if self._span == _COUNT_SPAN else 0
        return await changed_objects.count_ended_activities(
            database, first_span_at, self._span, self._max_changes, max_ids
        )

    def detect_changes(self, loaded: Sequence[EndedAttempts]) -> list[Event]:
        counted = Counter({(each.span_at, each.name, str(each.state)): each.count for each in loaded})
        named = {(each.span_at, each.name, str(each.state)): each.task_ids for each in loaded}
        new_counts: Counter[tuple[str, str]] = Counter()
        new_ids: defaultdict[tuple[str, str], list[UUID]] = defaultdict(list)
        for key, count in (counted - self._counted).items():
            _span_at, name, state = key
            new_counts[name, state] += count
            new_ids[name, state][:0] = [id for id in named[key] if id not in self._named.get(key, ())]
        self._counted = counted
        self._named = {key: {*ids, *self._named.get(key, ())} for key, ids in named.items()}
        ended = [
            EndedCount(name, state, count, new_ids[name, state][:_MAX_NAMED_TASKS])
            for (name, state), count in new_counts.most_common(_MAX_ACTIVITY_KINDS)
        ]
        return [Event("activities", EndedActivities(ended))] if ended else []


class _RecordedChanges(Generic[C]):
    """Changes that are stored with their instants: each is reported once."""

    def __init__(self, topic: str, load_page: PagedQuery[C], options: EventOptions) -> None:
        self._topic = topic
        self._load_page = load_page
        self._max_changes = options.max_changes
        self._reported: dict[C, datetime] = {}
        self._since: datetime | None = None

    async def load(self, database: Database, since: datetime) -> list[C]:
        self._since = since
        return await _load_all(self._load_page, database, since, self._max_changes)

    def detect_changes(self, loaded: list[C]) -> list[Event]:
        found = [Event(self._topic, each) for each in self._select(loaded) if self._is_new(each)]
        self._forget_reported()
        return found + _reset_if_full(len(loaded), self._max_changes)

    def _select(self, loaded: list[C]) -> list[C]:
        return loaded

    def _is_new(self, change: C) -> bool:
        if change in self._reported:
            return False
        self._reported[change] = change.at
        return True

    def _forget_reported(self) -> None:
        """Forget changes that are too old to be queried again."""
        if len(self._reported) > 2 * self._max_changes and self._since is not None:
            since = self._since
            self._reported = {change: at for change, at in self._reported.items() if at > since}


class _Definitions(_RecordedChanges[DefinitionChange]):
    """Changes of schedules and manifests: the last of several changes of a definition."""

    def _select(self, loaded: list[DefinitionChange]) -> list[DefinitionChange]:
        return list({(each.kind, each.id): each for each in loaded}.values())


class _QueuesAndWorkers:
    """Task counts of the queues, and the live workers."""

    def __init__(self, _options: EventOptions) -> None:
        self._queues: dict[str, dict[str, int]] | None = None
        self._workers: list[LiveWorker] | None = None

    async def load(self, database: Database, since: datetime) -> QueuesAndWorkers:
        return await changed_objects.load_queues_and_workers(database)

    def detect_changes(self, loaded: QueuesAndWorkers) -> list[Event]:
        found = []
        if loaded.queues != self._queues:
            self._queues = loaded.queues
            found.append(Event("queues", loaded.queues))
        if loaded.workers != self._workers:
            self._workers = loaded.workers
            found.append(Event("workers", LiveWorkers(loaded.workers)))
        return found


def _dead_letters(options: EventOptions) -> EventSource:
    return _RecordedChanges[DeadLetterChange]("dead_letters", changed_objects.list_changed_dead_letters, options)


def _definitions(options: EventOptions) -> EventSource:
    return _Definitions("definitions", changed_objects.list_definition_changes, options)


TOPICS = (
    EventTopics(("executions",), _Executions),
    EventTopics(("activities",), _Activities),
    EventTopics(("dead_letters",), _dead_letters),
    EventTopics(("definitions",), _definitions),
    EventTopics(("queues", "workers"), _QueuesAndWorkers),
)
"""The topics of the core."""
