"""Facts of the overview: queues, failures, paused objects, processes and next runs, by bounded queries. Read-only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID

from tenuto.ids import smallest_id_at
from tenuto.model.work.rollups import Dimension, floor_to_bucket
from tenuto.model.work.worker_states import WorkerState
from tenuto.postgres import read_transactions
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.events import approvals
from tenuto.store.events.approvals import ApprovalRecord
from tenuto.store.reports import metrics
from tenuto.store.reports.blocking_reasons import StoppedDefinition, query_stopped_definitions
from tenuto.store.reports.metrics import UnknownJobTasks
from tenuto.store.row_mapping import FromInterval, RowMapper
from tenuto.store.statement_groups import StatementGroup
from tenuto.store.work import rollups
from tenuto.store.work.rollups import RollupRecord

SQL = load_statements(__file__)

MAX_QUEUES = 500
MAX_PROCESSES = 1000
MAX_ITEMS = 20
"""Limit of each list of things that need attention."""
MAX_NEXT_RUNS = 10
_MAX_LATE_RUNS = 200
_MAX_NEW_TASKS = 10_000
_MAX_OPEN_BATCHES = 1000
_RATE_SPAN = timedelta(minutes=1)
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class QueueObstacles:
    """What keeps the tasks of a queue from being claimed."""

    name: str
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    max_running: int | None
    running_count: int
    """Counted only if the queue has a limit."""
    is_served: bool
    """Whether a live worker claims its tasks."""


@dataclass(frozen=True, slots=True)
class OpenWorkCounts:
    """How much is open, each number counted up to a limit."""

    execution_count: int
    """Active executions."""
    task_count: int
    """Tasks that are due or running."""
    dead_letter_count: int
    batch_count: int
    """Batches with items that have not ended."""
    one_shot_count: int
    """One-shots that have not ended."""
    worker_count: int
    """Live workers, draining ones included."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Limits and pause of a queue."""

    max_running: int | None
    paused_at: datetime | None
    paused_by: str | None
    reason: str | None
    rate_limit: str | None


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """A queue with its settings and the numbers of its tasks."""

    name: str
    max_running: int | None
    paused_at: datetime | None
    paused_by: str | None
    reason: str | None
    queued_count: int
    oldest_due_at: datetime | None
    running_count: int
    rate_limit: str | None


@dataclass(frozen=True, slots=True)
class NewTasks:
    """The number of new tasks of a queue since an instant."""

    queue: str
    count: int
    since: datetime


@dataclass(frozen=True, slots=True)
class OpenFailure:
    """Open dead letters with the same failure."""

    fingerprint: str
    dead_letter_count: int
    first_at: datetime
    last_at: datetime
    reason: str
    """Reason of the newest one."""
    external_ids: Sequence[str]
    """External ids of up to five of their manifests."""
    manifest_count: int
    names: Sequence[str]
    """Names of up to five of their jobs."""
    job_count: int
    total_count: int
    """Number of all open dead letters."""


@dataclass(frozen=True, slots=True)
class UnresolvedExecution:
    """A failed execution after which no execution of its schedule has completed."""

    id: UUID
    schedule_name: str
    current_group: int
    group_count: int
    error: str | None
    """Names the step that failed and the reason."""
    ended_at: datetime
    running_id: UUID | None
    """The execution of the schedule that is in progress."""


@dataclass(frozen=True, slots=True)
class PausedObject:
    """An object whose tasks do not start because an operator paused or disabled it."""

    kind: Literal["queue", "execution", "batch", "manifest_group"]
    id: str
    """Id of an execution or batch; name of a queue or manifest group."""
    name: str
    """Name of the queue or group, of the schedule of the execution, or external id of the manifest of the batch."""
    paused_at: datetime
    paused_by: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class LiveProcess:
    """A service process that has not ended."""

    id: UUID
    name: str
    service: str
    queues: Sequence[str]
    slots: int
    state: WorkerState
    silent_seconds: Annotated[float, FromInterval]
    """Time since the last heartbeat."""
    seen_at: datetime
    running_count: int
    recovered_at: datetime | None
    """When the last of its leases ends: then its tasks are recovered if there is no heartbeat."""


@dataclass(frozen=True, slots=True)
class NextRun:
    """The next run of a schedule or manifest."""

    kind: Literal["schedule", "manifest"]
    id: UUID
    name: str
    """Name of the schedule, or external id of the manifest."""
    due_at: datetime


@dataclass(frozen=True, slots=True)
class RecentRepair:
    """A repair that was made recently."""

    repair: str
    total_count: int
    """How often it was made since the installation."""
    last_at: datetime


@dataclass(frozen=True, slots=True)
class FailedOperation:
    """A bulk operation that ended with failed items."""

    id: UUID
    kind: str
    description: str
    """Its selection in plain English."""
    total_count: int
    failed_count: int
    state: str
    ended_at: datetime
    started_by: str


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """First steps that a new installation has made."""

    has_worker: bool
    has_definition: bool
    has_run: bool


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    """Everything that decides what needs attention, read at one instant."""

    read_at: datetime
    queues: Sequence[QueueFigures]
    failures: Sequence[OpenFailure]
    unresolved_executions: Sequence[UnresolvedExecution]
    paused_objects: Sequence[PausedObject]
    processes: Sequence[LiveProcess]
    next_runs: Sequence[NextRun]
    repairs: Sequence[RecentRepair]
    unknown_jobs: Sequence[UnknownJobTasks]
    failed_operations: Sequence[FailedOperation]
    stopped: Sequence[StoppedDefinition]
    pending_approvals: Sequence[ApprovalRecord]


@dataclass(frozen=True, slots=True)
class OverviewFacts:
    """Everything that the overview is computed from, read at one instant."""

    attention: AttentionFacts
    new_tasks: Sequence[NewTasks]
    last_minute: Sequence[RollupRecord]
    """Attempts by queue that ended within a minute."""
    last_hour: Sequence[RollupRecord]
    """All attempts that ended within the last hour."""
    first_steps: FirstSteps


_QUEUE_OBSTACLES = RowMapper(QueueObstacles, SQL.list_queue_obstacles)
_OPEN_WORK = RowMapper(OpenWorkCounts, SQL.count_open_work)
_QUEUE_SETTINGS = RowMapper(QueueSettings, SQL.load_queue_settings)
_QUEUES = RowMapper(QueueFigures, SQL.list_queue_figures)
_NEW_TASKS = RowMapper(NewTasks, SQL.count_new_tasks)
_FAILURES = RowMapper(OpenFailure, SQL.list_failures)
_UNRESOLVED = RowMapper(UnresolvedExecution, SQL.list_unresolved_executions)
_PAUSED = RowMapper(PausedObject, SQL.list_paused_objects)
_PROCESSES = RowMapper(LiveProcess, SQL.list_processes)
_NEXT_RUNS = RowMapper(NextRun, SQL.list_next_runs)
_REPAIRS = RowMapper(RecentRepair, SQL.list_recent_repairs)
_FAILED_OPERATIONS = RowMapper(FailedOperation, SQL.list_failed_operations)
_FIRST_STEPS = RowMapper(FirstSteps, SQL.load_first_steps)


async def load_attention_facts(database: Database) -> AttentionFacts:
    """Load what decides what needs attention, without retries and with short timeouts."""
    now = database.clock.now()
    return await read_transactions.read_quickly(database, lambda connection: _read_attention_facts(connection, now))


async def load_overview_facts(database: Database) -> OverviewFacts:
    """Load the facts of the overview, without retries and with short timeouts."""
    now = database.clock.now()

    async def load(connection: Connection) -> OverviewFacts:
        # The attempts of the last ten seconds may not have been added yet.
        until = floor_to_bucket(now, 10) - timedelta(seconds=10)
        since = now - _RATE_SPAN
        group = StatementGroup()
        attention = _AttentionQueries(group, now)
        new_tasks = group.add(_NEW_TASKS, SQL.count_new_tasks, smallest_id_at(since), _MAX_NEW_TASKS, since)
        first_steps = group.add(_FIRST_STEPS, SQL.load_first_steps)
        await group.fetch(connection)
        return OverviewFacts(
            attention=attention.facts,
            new_tasks=new_tasks.all,
            last_minute=await rollups.read_rollups(connection, 10, Dimension.QUEUE, until - _RATE_SPAN, until),
            last_hour=await rollups.read_rollups(connection, 60, Dimension.ALL, now - _HOUR, now),
            first_steps=first_steps.all[0],
        )

    return await read_transactions.read_quickly(database, load)


async def list_queue_obstacles(database: Database, names: Collection[str]) -> list[QueueObstacles]:
    """Return what keeps the tasks of some queues from being claimed."""
    return _QUEUE_OBSTACLES.all(await database.fetch_all(SQL.list_queue_obstacles, list(names)))


async def count_open_work(database: Database, limit: int) -> OpenWorkCounts:
    """Count what is open, each number up to a limit; batches up to a lower one, because each is searched for."""
    row = await database.fetch_one(SQL.count_open_work, limit, _MAX_OPEN_BATCHES)
    assert row is not None
    return _OPEN_WORK.one(row)


async def load_queue_settings(database: Database, name: str) -> QueueSettings | None:
    """Return the settings of a queue; None if it has none."""
    row = await database.fetch_one(SQL.load_queue_settings, name)
    return None if row is None else _QUEUE_SETTINGS.one(row)


async def _read_attention_facts(connection: Connection, now: datetime) -> AttentionFacts:
    group = StatementGroup()
    queries = _AttentionQueries(group, now)
    await group.fetch(connection)
    return queries.facts


class _AttentionQueries:
    """The queries of what needs attention, in a group of statements."""

    def __init__(self, group: StatementGroup, now: datetime) -> None:
        self._now = now
        self._queues = group.add(_QUEUES, SQL.list_queue_figures, MAX_QUEUES)
        self._failures = group.add(_FAILURES, SQL.list_failures, MAX_ITEMS)
        self._unresolved_executions = group.add(_UNRESOLVED, SQL.list_unresolved_executions, MAX_ITEMS)
        self._paused_objects = group.add(_PAUSED, SQL.list_paused_objects, MAX_ITEMS)
        self._processes = group.add(_PROCESSES, SQL.list_processes, MAX_PROCESSES)
        self._next_runs = group.add(_NEXT_RUNS, SQL.list_next_runs, _MAX_LATE_RUNS)
        self._repairs = group.add(_REPAIRS, SQL.list_recent_repairs, now - _DAY)
        self._unknown_jobs = metrics.query_unknown_jobs(group)
        self._failed_operations = group.add(_FAILED_OPERATIONS, SQL.list_failed_operations, now - _DAY, MAX_ITEMS)
        self._stopped = query_stopped_definitions(group, per_kind=MAX_ITEMS)
        self._pending_approvals = approvals.query_pending_approvals(group, MAX_ITEMS)

    @property
    def facts(self) -> AttentionFacts:
        """The answers, once the group was fetched."""
        return AttentionFacts(
            read_at=self._now,
            queues=self._queues.all,
            failures=self._failures.all,
            unresolved_executions=self._unresolved_executions.all,
            paused_objects=self._paused_objects.all,
            processes=self._processes.all,
            next_runs=self._next_runs.all,
            repairs=self._repairs.all,
            unknown_jobs=self._unknown_jobs.all[:MAX_ITEMS],
            failed_operations=self._failed_operations.all,
            stopped=self._stopped.all,
            pending_approvals=self._pending_approvals.all,
        )
