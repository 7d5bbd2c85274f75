"""Read-only queries of open tasks and activities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

from tenuto.errors import Invalid, quoted
from tenuto.model.access.actors import ActorType
from tenuto.model.filters import Filter
from tenuto.model.work.tasks import ActivityState, OutcomeReason, TaskState
from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.filter_sql import ACTIVITIES, TASKS, CappedCount, count_rows, count_rows_of_each
from tenuto.store.row_mapping import FromJson, RowMapper

SQL = load_statements(__file__)

_FIRST_INSTANT = datetime.min.replace(tzinfo=UTC)
_LOWEST_ID = UUID(int=0)
_LOWEST_RANK = -(2**15)


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """An open task, as in lists."""

    id: UUID
    activity_id: UUID
    state: TaskState
    queue: str
    priority: int
    run_at: datetime
    kind: str
    name: str
    attempt: int
    failure_count: int
    loss_count: int
    created_at: datetime
    claimed_at: datetime | None
    lease_until: datetime | None
    worker_id: UUID | None
    worker: str | None
    """Name of the worker that holds the task."""
    progress: Annotated[Any, FromJson]
    unique_key: str | None
    limit_key: str | None
    tags: Sequence[str] | None
    cancel_at: datetime | None
    """When the cancellation was requested."""
    cancel_name: str | None
    initiator_type: ActorType
    initiator_id: str | None
    initiator_name: str
    correlation_id: str | None


@dataclass(frozen=True, slots=True)
class TaskDetails(TaskRecord):
    """An open task with input and policy."""

    input: Annotated[Any, FromJson]
    policy: Annotated[dict[str, Any], FromJson]
    fence: int
    limit_max: int | None
    parent_id: UUID | None


@dataclass(frozen=True, slots=True)
class ActivityRecord:
    """One attempt at a task, as in lists."""

    id: UUID
    task_id: UUID
    attempt: int
    state: ActivityState
    reason: OutcomeReason | None
    final: bool
    """Whether the task ended with this attempt."""
    kind: str
    name: str
    queue: str
    priority: int
    created_at: datetime
    run_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    worker_id: UUID | None
    worker: str | None
    """Name of the worker that made the attempt."""
    failure_count: int
    """Number of earlier attempts that failed."""
    loss_count: int
    """Number of earlier attempts whose worker was lost."""
    error: Annotated[Any, FromJson]
    tags: Sequence[str] | None
    initiator_type: ActorType
    initiator_id: str | None
    initiator_name: str
    correlation_id: str | None


@dataclass(frozen=True, slots=True)
class ActivityDetails(ActivityRecord):
    """One attempt at a task with input, output and log."""

    fence: int
    input: Annotated[Any, FromJson]
    output: Annotated[Any, FromJson]
    log: str | None
    progress: Annotated[Any, FromJson]
    unique_key: str | None
    limit_key: str | None
    parent_id: UUID | None
    execution_id: UUID | None
    group_index: int | None
    step_index: int | None
    manifest_id: UUID | None
    batch_id: UUID | None
    item_key: str | None
    origin: str | None


@dataclass(frozen=True, slots=True)
class StoredLog:
    """The log of one attempt; None until it has ended."""

    state: ActivityState
    ended_at: datetime | None
    log: str | None


@dataclass(frozen=True, slots=True)
class JobStatistics:
    """Outcomes, waiting times and durations of the attempts at tasks of one name."""

    kind: str
    name: str
    attempt_count: int
    done_count: int
    failed_count: int
    cancelled_count: int
    ended_count: int
    """Number of tasks that ended."""
    wait_mean_seconds: float | None
    duration_mean_seconds: float | None
    duration_p50_seconds: float | None
    duration_p95_seconds: float | None
    last_ended_at: datetime


@dataclass(frozen=True, slots=True)
class OutcomeCounts:
    """Outcomes of tasks."""

    attempt_count: int
    done_count: int
    failed_count: int
    lost_attempt_count: int
    open_count: int
    doubled_count: int
    """Number of tasks that ended more than once; always 0."""


_TASKS = RowMapper(TaskRecord, SQL.list_tasks)
_TASK_DETAILS = RowMapper(TaskDetails, SQL.load_task)
_ACTIVITIES = RowMapper(ActivityRecord, SQL.list_activities, SQL.list_children)
_ACTIVITY_DETAILS = RowMapper(ActivityDetails, SQL.load_activity, SQL.list_attempts)
_LOGS = RowMapper(StoredLog, SQL.load_log)
_STATISTICS = RowMapper(JobStatistics, SQL.list_job_statistics)
_COUNTS = RowMapper(OutcomeCounts, SQL.count_outcomes)


async def load_activity(database: Database, activity_id: UUID) -> ActivityDetails | None:
    """Return one activity: planned, running or ended."""
    return _ACTIVITY_DETAILS.optional(await database.fetch_one(SQL.load_activity, activity_id))


async def load_log(database: Database, activity_id: UUID) -> StoredLog | None:
    """Return the log of one activity: planned, running or ended."""
    return _LOGS.optional(await database.fetch_one(SQL.load_log, activity_id))


async def list_attempts(database: Database, task_id: UUID) -> list[ActivityDetails]:
    """Return all attempts at a task, oldest first."""
    return _ACTIVITY_DETAILS.all(await database.fetch_all(SQL.list_attempts, task_id))


async def has_task_ended(database: Database, task_id: UUID) -> bool | None:
    """Return whether the last attempt at a task was final; None if the task does not exist."""
    ended: bool | None = await database.fetch_value(SQL.has_task_ended, task_id)
    return ended


async def list_children(database: Database, parent_id: UUID, above: UUID | None, limit: int) -> list[ActivityRecord]:
    """Return tasks and activities that an activity enqueued while it ran, oldest first."""
    return _ACTIVITIES.all(await database.fetch_all(SQL.list_children, parent_id, above, limit))


async def list_job_statistics(database: Database, since: datetime, name: str | None, limit: int) -> list[JobStatistics]:
    """Return statistics of attempts that ended since an instant, by job."""
    return _STATISTICS.all(await database.fetch_all(SQL.list_job_statistics, since, name, limit))


async def load_task(database: Database, task_id: UUID) -> TaskDetails | None:
    """Return one open task."""
    return _TASK_DETAILS.optional(await database.fetch_one(SQL.load_task, task_id))


async def list_activities(
    database: Database, filter: Filter, *, below: UUID | None = None, limit: int
) -> list[ActivityRecord]:
    """Return ended activities, newest first."""
    statement = ACTIVITIES.add_filter(SQL.list_activities, filter, below, limit)
    return _ACTIVITIES.all(await database.fetch_all(*statement))


async def count_activities(database: Database, filter: Filter) -> CappedCount:
    """Count ended activities."""
    return await count_rows(database, ACTIVITIES, SQL.count_activities, filter)


async def count_activities_of_each(database: Database, filters: Sequence[Filter]) -> list[CappedCount]:
    """Count ended activities that meet each of the filters."""
    return await count_rows_of_each(database, ACTIVITIES, SQL.count_activities, filters)


async def list_tasks(database: Database, filter: Filter, *, below: UUID | None = None, limit: int) -> list[TaskRecord]:
    """Return open tasks, newest first."""
    statement = SQL.list_running_tasks if _selects_running(filter) else SQL.list_tasks
    return _TASKS.all(await database.fetch_all(*TASKS.add_filter(statement, filter, below, limit)))


async def list_queued_tasks(
    database: Database, filter: Filter, *, after: tuple[str, int, datetime, UUID] | None = None, limit: int
) -> list[TaskRecord]:
    """Return queued tasks by queue and in the order of claims, after queue, priority, due instant and id of a task."""
    queue, priority, run_at, id = after or ("", 0, _FIRST_INSTANT, _LOWEST_ID)
    rank = -priority if after else _LOWEST_RANK
    statement = TASKS.add_filter(SQL.list_queued_tasks, filter, queue, rank, run_at, id, limit)
    return _TASKS.all(await database.fetch_all(*statement))


def _selects_running(filter: Filter) -> bool:
    """Return whether only running tasks can meet a filter of tasks. Tasks in other states have no worker."""
    return any(
        clause.key is not None
        and not clause.is_negated
        and (clause.key.name == "worker" or (clause.key.name == "state" and set(clause.values) == {"running"}))
        for clause in filter.clauses
    )


async def count_tasks(database: Database, filter: Filter) -> CappedCount:
    """Count open tasks."""
    return await count_rows(database, TASKS, _counting_statement(filter), filter)


async def count_tasks_of_each(database: Database, filters: Sequence[Filter]) -> list[CappedCount]:
    """Count open tasks that meet each of the filters."""
    return await count_rows_of_each(database, TASKS, _counting_statement, filters)


def _counting_statement(filter: Filter) -> str:
    """Return the statement that counts the tasks of a filter with the fewest reads."""
    only_states = filter.clauses and all(
        clause.key is not None and clause.key.name == "state" and not clause.is_negated for clause in filter.clauses
    )
    return SQL.count_tasks_by_state if only_states else SQL.count_tasks


async def find_ids_by_prefix(database: Database, prefix: str) -> list[UUID]:
    """Return up to three ids of tasks or activities with a prefix that a user entered."""
    return [row["id"] for row in await database.fetch_all(SQL.find_ids_by_prefix, *id_range_of_prefix(prefix))]


def id_range_of_prefix(prefix: str) -> tuple[UUID, UUID]:
    """Return the lowest and the highest id with a prefix."""
    digits = prefix.replace("-", "").lower()
    if not digits or len(digits) > 32 or any(digit not in "0123456789abcdef" for digit in digits):
        raise Invalid(
            f"{quoted(prefix, 60)} is not an id or the start of one",
            code="id.not_valid",
            field="id",
            remedy="copy it from a list",
        )
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


async def count_outcomes(database: Database, tag: str | None = None, initiator_id: str | None = None) -> OutcomeCounts:
    """Count the outcomes of all tasks with a tag, of one initiator, or both."""
    row = await database.fetch_one(SQL.count_outcomes, tag, initiator_id)
    assert row is not None
    return _COUNTS.one(row)
