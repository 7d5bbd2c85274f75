"""Facts that explain why something does not run, by bounded index lookups. Read-only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Any, Generic, Protocol, TypeVar
from uuid import UUID

from tenuto.model.definitions.manifests import ScheduleType
from tenuto.model.work.tasks import TaskState
from tenuto.model.work.worker_states import WorkerState
from tenuto.postgres.database import Database, Row
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import FromInterval, FromJson, RowMapper

SQL = load_statements(__file__)

MAX_LISTED_WORKERS = 1000


@dataclass(frozen=True, slots=True)
class StepPosition:
    """The position of a step in its execution."""

    execution_id: UUID
    group_index: int
    step_index: int
    plan: str
    """The plan of the execution as JSON."""
    current_group: int
    group_count: int
    execution_paused_at: datetime | None
    execution_paused_by: str | None


@dataclass(frozen=True, slots=True)
class AwaitedExecution:
    """The execution that a task waits for."""

    awaited_name: str
    """Name of its schedule."""
    awaited_started_at: datetime
    awaited_group: int
    awaited_group_count: int
    awaited_paused_at: datetime | None
    awaited_paused_by: str | None


@dataclass(frozen=True, slots=True)
class DiagnosedTask:
    """An open task with everything that may delay it."""

    id: UUID
    state: TaskState
    kind: str
    name: str
    queue: str
    rank: int
    run_at: datetime
    policy: str
    """The policy as JSON."""
    failures: int
    losses: int
    claimed_at: datetime | None
    limit_key: str | None
    limit_max: int | None
    progress: Annotated[dict[str, Any] | None, FromJson]
    cancel_at: datetime | None
    cancel_name: str | None
    step: StepPosition | None
    """Of a step: its position in the execution."""
    waits_for: UUID | None
    """The execution that it waits for."""
    awaited: AwaitedExecution | None
    """That execution; None if it no longer exists."""
    standby: bool
    manifest_id: UUID | None
    limit_group: str | None
    batch_id: UUID | None
    last_chance: bool
    lease_until: datetime | None
    lease_expired: bool | None
    worker: str | None
    worker_state: WorkerState | None
    worker_silent_seconds: Annotated[float | None, FromInterval]
    max_running: int | None
    queue_paused_at: datetime | None
    queue_paused_by: str | None
    queue_reason: str | None
    manifest: str | None
    manifest_max: int | None
    group_max: int | None
    group_enabled: bool | None
    group_changed_at: datetime | None
    group_changed_by: str | None
    all_max: int | None
    """The limit of all manifests together."""
    all_enabled: bool | None
    all_changed_at: datetime | None
    all_changed_by: str | None
    batch_paused_at: datetime | None
    batch_paused_by: str | None
    batch_cancelled_at: datetime | None
    batch_cancelled_by: str | None
    expires_at: datetime | None
    parked_for: str | None
    """The scope of the rate limit whose next token it waits for."""
    rate_scope: str | None
    """Of the rate limits that apply, the one whose next token comes last; None: none has been used."""
    rate_limit: str | None
    next_token_at: datetime | None


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """The last failed attempt at a task."""

    id: UUID
    attempt: int
    ended_at: datetime
    error: Annotated[dict[str, Any] | None, FromJson]


@dataclass(frozen=True, slots=True)
class OpenStep:
    """An open step of an execution."""

    id: UUID
    step_index: int
    state: TaskState


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A running task that a limit counts."""

    id: UUID
    name: str
    claimed_at: datetime


@dataclass(frozen=True, slots=True)
class QueueWorker:
    """A live worker of a queue."""

    id: UUID
    name: str
    slots: int
    silent_seconds: Annotated[float, FromInterval]
    running_count: int
    """The number of occupied slots."""
    state: WorkerState
    knows_job: bool
    """Whether it knows the job or step kind of the task."""
    job_versions: str | None
    """Its versions of the job, separated by commas."""


@dataclass(frozen=True, slots=True)
class QueueCapacity:
    """The slots of the live workers of a queue, and its limit."""

    queue: str
    slots: int
    max_running: int | None
    paused: bool


@dataclass(frozen=True, slots=True)
class DiagnosedSchedule:
    """A schedule with everything that may keep it from running."""

    id: UUID
    name: str
    enabled: bool
    overlap: str
    trigger_kind: str | None
    zone: str | None
    """Time zone of the trigger."""
    next_run_at: datetime | None
    planned: bool
    """Whether the next run was computed."""
    disabled_at: datetime | None
    disabled_by: str | None
    disabled_reason: str | None
    active_id: UUID | None
    """The oldest active execution."""
    active_started_at: datetime | None
    active_group: int | None
    active_group_count: int | None
    queued_due_at: datetime | None
    """Of the run that has been queued longest."""
    last_due_at: datetime | None
    last_decision: str | None
    last_reason: str | None


@dataclass(frozen=True, slots=True)
class DiagnosedManifest:
    """A manifest with everything that may keep it from running."""

    id: UUID
    external_id: str
    enabled: bool
    schedule_type: ScheduleType
    depends_on: str | None
    group: str | None
    next_run_at: datetime | None
    planned: bool
    zone: str | None
    """Time zone of the trigger."""
    on_dead_letter: str
    disabled_at: datetime | None
    disabled_by: str | None
    disabled_reason: str | None
    group_enabled: bool | None
    group_changed_at: datetime | None
    group_changed_by: str | None
    all_enabled: bool | None
    all_changed_at: datetime | None
    all_changed_by: str | None
    awaited_enabled: bool | None
    """Whether the manifest that it depends on is enabled; None if it does not exist."""
    awaited_last_success_at: datetime | None
    dead_letter_id: UUID | None
    dead_lettered_at: datetime | None
    dead_letter_reason: str | None
    dead_letter_attempts: int | None
    dead_letter_activity_id: UUID | None
    open_task_id: UUID | None


@dataclass(frozen=True, slots=True)
class LiveScheduler:
    """A scheduler that has not ended."""

    id: UUID
    name: str
    silent_seconds: Annotated[float, FromInterval]
    state: WorkerState


class HasId(Protocol):
    """A row with an id."""

    @property
    def id(self) -> UUID: ...


T = TypeVar("T", bound=HasId)


@dataclass(frozen=True, slots=True)
class Sample(Generic[T]):
    """The first few rows of a result, and their total."""

    rows: list[T]
    total_count: int
    limit_max: int | None = None
    """The limit that applies instead of that of the task, if another does."""

    @property
    def ids(self) -> tuple[UUID, ...]:
        return tuple(each.id for each in self.rows)


_STEP_COLUMNS = [field.name for field in fields(StepPosition)]
_AWAITED_COLUMNS = [field.name for field in fields(AwaitedExecution)]
_TASKS = RowMapper(
    DiagnosedTask,
    SQL.load_tasks,
    computed=("step", "awaited"),
    unmapped=[*_STEP_COLUMNS, *_AWAITED_COLUMNS],
)
_FAILED_ATTEMPTS = RowMapper(FailedAttempt, SQL.load_last_failure)
_OPEN_STEPS = RowMapper(OpenStep, SQL.list_open_steps, SQL.list_open_steps_at, unmapped=("total_count",))
_RUNNING_TASKS = RowMapper(
    RunningTask,
    SQL.list_running_in_queue,
    SQL.list_running_on_last_chance,
    SQL.list_running_of_manifests,
    unmapped=("total_count",),
)
_LIMITED_TASKS = RowMapper(RunningTask, SQL.list_running_with_limit_key, unmapped=("total_count", "limit_max"))
_QUEUE_WORKERS = RowMapper(QueueWorker, SQL.list_workers_of_queue)
_SCHEDULES = RowMapper(DiagnosedSchedule, SQL.load_schedule)
_MANIFESTS = RowMapper(DiagnosedManifest, SQL.load_manifest)
_SCHEDULERS = RowMapper(LiveScheduler, SQL.list_schedulers)
_QUEUE_CAPACITIES = RowMapper(QueueCapacity, SQL.list_queue_capacities)


async def load_tasks(database: Database, ids: Sequence[UUID]) -> list[DiagnosedTask]:
    """Return open tasks with everything that may delay them."""
    return [
        _TASKS.one(
            row,
            step=None if row["plan"] is None else StepPosition(*(row[name] for name in _STEP_COLUMNS)),
            awaited=None
            if row["awaited_name"] is None
            else AwaitedExecution(*(row[name] for name in _AWAITED_COLUMNS)),
        )
        for row in await database.fetch_all(SQL.load_tasks, list(ids))
    ]


async def load_last_failure(database: Database, task_id: UUID) -> FailedAttempt | None:
    """Return the last failed attempt at a task."""
    return _FAILED_ATTEMPTS.optional(await database.fetch_one(SQL.load_last_failure, task_id))


async def list_open_steps(database: Database, execution_id: UUID, group: int, limit: int) -> Sample[OpenStep]:
    """Return the open steps of one group of an execution."""
    return _to_sample(_OPEN_STEPS, await database.fetch_all(SQL.list_open_steps, execution_id, group, limit))


async def list_open_steps_at(
    database: Database, execution_id: UUID, positions: Sequence[int], limit: int
) -> Sample[OpenStep]:
    """Return the open steps at some positions of the plan of an execution."""
    rows = await database.fetch_all(SQL.list_open_steps_at, execution_id, list(positions), limit)
    return _to_sample(_OPEN_STEPS, rows)


async def list_running_in_queue(database: Database, queue: str, limit: int) -> Sample[RunningTask]:
    """Return the running tasks of a queue."""
    return _to_sample(_RUNNING_TASKS, await database.fetch_all(SQL.list_running_in_queue, queue, limit))


async def list_running_with_limit_key(database: Database, key: str, queue: str, limit: int) -> Sample[RunningTask]:
    """Return the running tasks with a limit key, and the limit that applies to the queue."""
    rows = await database.fetch_all(SQL.list_running_with_limit_key, key, queue, limit)
    return _to_sample(_LIMITED_TASKS, rows, rows[0]["limit_max"] if rows else None)


async def list_running_on_last_chance(database: Database, limit: int) -> Sample[RunningTask]:
    """Return the running task that is on its last chance: after two lost workers a task runs alone."""
    return _to_sample(_RUNNING_TASKS, await database.fetch_all(SQL.list_running_on_last_chance, limit))


async def list_running_of_manifests(
    database: Database, manifest_id: UUID | None, group: str | None, limit: int
) -> Sample[RunningTask]:
    """Return the active runs of a manifest, of a group, or (neither given) of all manifests."""
    return _to_sample(
        _RUNNING_TASKS, await database.fetch_all(SQL.list_running_of_manifests, manifest_id, group, limit)
    )


async def count_tasks_ahead(
    database: Database, queue: str, place: tuple[int, datetime, UUID], key: str | None, max_count: int
) -> int:
    """Count the tasks ahead of one, up to ``max_count``."""
    found: int = await database.fetch_value(SQL.count_tasks_ahead, queue, *place, key, max_count)
    return min(found, max_count)


async def list_workers_of_queue(database: Database, queue: str, kind: str, name: str) -> list[QueueWorker]:
    """Return the workers of a queue, including draining and dead ones, and whether they know a job or step kind."""
    rows = await database.fetch_all(SQL.list_workers_of_queue, queue, MAX_LISTED_WORKERS, kind, name)
    return _QUEUE_WORKERS.all(rows)


async def load_version_of_run(database: Database, task_id: UUID) -> str | None:
    """Return the version of the workflow that a task has begun with, if it has one."""
    found: str | None = await database.fetch_value(SQL.load_version_of_run, task_id)
    return found


async def load_schedule(database: Database, name: str) -> DiagnosedSchedule | None:
    """Return a schedule with everything that may keep it from running."""
    return _SCHEDULES.optional(await database.fetch_one(SQL.load_schedule, name))


async def load_manifest(database: Database, external_id: str) -> DiagnosedManifest | None:
    """Return a manifest with everything that may keep it from running."""
    return _MANIFESTS.optional(await database.fetch_one(SQL.load_manifest, external_id))


async def list_schedulers(database: Database) -> list[LiveScheduler]:
    """Return the schedulers that have not ended, including dead ones."""
    return _SCHEDULERS.all(await database.fetch_all(SQL.list_schedulers, MAX_LISTED_WORKERS))


async def list_queue_capacities(database: Database) -> list[QueueCapacity]:
    """Return the slots and the limit of every queue that has either."""
    return _QUEUE_CAPACITIES.all(await database.fetch_all(SQL.list_queue_capacities))


def _to_sample(mapper: RowMapper[T], rows: Sequence[Row], limit_max: int | None = None) -> Sample[T]:
    return Sample(mapper.all(rows), rows[0]["total_count"] if rows else 0, limit_max)
