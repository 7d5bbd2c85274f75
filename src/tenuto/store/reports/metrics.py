"""Metrics of the whole installation, by index lookups only. `observability.cached_query` limits how often they run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.reports.blocking_reasons import StoppedDefinition, list_stopped_definitions
from tenuto.store.row_mapping import RowMapper
from tenuto.store.statement_groups import Rows, StatementGroup

SQL = load_statements(__file__)

SET_SHORT_TIMEOUTS = (
    "SET LOCAL statement_timeout = '5s'; SET LOCAL lock_timeout = '1s';"
    " SET LOCAL jit = off; SET LOCAL enable_seqscan = off"
)
RECENT_WINDOW = timedelta(minutes=1)
UNKNOWN_JOB_SAMPLE = 1000
"""How many of the first due tasks of each queue are searched for unknown jobs."""


@dataclass(frozen=True, slots=True)
class QueuedTasks:
    """The queued tasks of one queue."""

    queue: str
    count: int
    oldest_seconds: float
    """How long the oldest has been due."""
    worker_count: int
    """Number of live workers that serve the queue."""


@dataclass(frozen=True, slots=True)
class RunningTasks:
    """The running tasks of one queue."""

    queue: str
    live_count: int
    overdue_count: int
    """Tasks whose lease has expired."""


@dataclass(frozen=True, slots=True)
class OpenExecutions:
    """The executions in progress."""

    in_progress_count: int
    paused_count: int


@dataclass(frozen=True, slots=True)
class DueDefinitions:
    """The due schedules or manifests that have not been fired."""

    kind: str
    due_count: int
    late_seconds: float
    """Delay of the most overdue one."""


@dataclass(frozen=True, slots=True)
class ServiceProcesses:
    """The registered processes of one service."""

    service: str
    alive_count: int
    dead_count: int
    slots: int
    heartbeat_age_seconds: float
    """Time since the latest heartbeat."""


@dataclass(frozen=True, slots=True)
class UnknownJobTasks:
    """Due tasks of a job or step kind that no live worker of their queue knows."""

    queue: str
    kind: str
    name: str
    task_count: int
    oldest_due_at: datetime


@dataclass(frozen=True, slots=True)
class RepairCount:
    """Number of repairs of one kind."""

    repair: str
    count: int


@dataclass(frozen=True, slots=True)
class RecentAttempts:
    """Recently ended attempts with the same outcome."""

    state: str
    reason: str
    attempt_count: int
    run_seconds: float
    """Total duration."""
    max_run_seconds: float
    max_start_delay_seconds: float


@dataclass(frozen=True, slots=True)
class OverdueSchedule:
    """The most overdue schedule."""

    name: str
    late_seconds: float


@dataclass(frozen=True, slots=True)
class DatabaseMetrics:
    """All metrics at one instant."""

    queued: list[QueuedTasks]
    running: list[RunningTasks]
    scheduled_count: int
    waiting_count: int
    open_dead_letter_count: int
    executions: OpenExecutions
    due: list[DueDefinitions]
    services: list[ServiceProcesses]
    unknown_jobs: list[UnknownJobTasks]
    repairs: list[RepairCount]
    recent: list[RecentAttempts]
    stopped: list[StoppedDefinition]
    """One schedule or manifest of each kind of obstacle, with the number of all."""


_QUEUED = RowMapper(QueuedTasks, SQL.count_queued_by_queue)
_RUNNING = RowMapper(RunningTasks, SQL.count_running_by_queue)
_EXECUTIONS = RowMapper(OpenExecutions, SQL.count_open_executions)
_DUE = RowMapper(DueDefinitions, SQL.count_due_definitions)
_SERVICES = RowMapper(ServiceProcesses, SQL.list_services)
_UNKNOWN_JOBS = RowMapper(UnknownJobTasks, SQL.list_unknown_jobs)
_REPAIRS = RowMapper(RepairCount, SQL.list_repairs)
_RECENT = RowMapper(RecentAttempts, SQL.summarise_recent_attempts)
_OVERDUE_SCHEDULES = RowMapper(OverdueSchedule, SQL.find_most_overdue_schedule)


async def load_metrics(database: Database) -> DatabaseMetrics:
    """Return all metrics, without retries and with short timeouts, to spare a database in trouble."""
    return await database.transaction(_load_metrics, tries=1)


async def _load_metrics(connection: Connection) -> DatabaseMetrics:
    await connection.execute(SET_SHORT_TIMEOUTS)
    return DatabaseMetrics(
        queued=_QUEUED.all(await connection.fetch(SQL.count_queued_by_queue)),
        running=_RUNNING.all(await connection.fetch(SQL.count_running_by_queue)),
        scheduled_count=await connection.fetchval(SQL.count_scheduled),
        waiting_count=await connection.fetchval(SQL.count_waiting),
        open_dead_letter_count=await connection.fetchval(SQL.count_open_dead_letters),
        executions=_EXECUTIONS.all(await connection.fetch(SQL.count_open_executions))[0],
        due=_DUE.all(await connection.fetch(SQL.count_due_definitions)),
        services=_SERVICES.all(await connection.fetch(SQL.list_services)),
        unknown_jobs=await list_unknown_jobs(connection),
        repairs=_REPAIRS.all(await connection.fetch(SQL.list_repairs)),
        recent=_RECENT.all(await connection.fetch(SQL.summarise_recent_attempts, RECENT_WINDOW)),
        stopped=await list_stopped_definitions(connection, per_kind=1),
    )


def query_unknown_jobs(group: StatementGroup) -> Rows[UnknownJobTasks]:
    """Add the query of `list_unknown_jobs` to a group."""
    return group.add(_UNKNOWN_JOBS, SQL.list_unknown_jobs, UNKNOWN_JOB_SAMPLE)


async def list_unknown_jobs(connection: Connection) -> list[UnknownJobTasks]:
    """Return the jobs and step kinds with due tasks that no live worker of their queue knows."""
    return _UNKNOWN_JOBS.all(await connection.fetch(SQL.list_unknown_jobs, UNKNOWN_JOB_SAMPLE))


@dataclass(frozen=True, slots=True)
class LivenessSigns:
    """Facts that show whether work gets done."""

    most_overdue_schedule: OverdueSchedule | None
    services: list[ServiceProcesses]
    misses_scheduler: bool
    """Work is planned that only a scheduler starts, and no scheduler is alive."""


async def ping(database: Database) -> None:
    """Raise an error if the database does not answer. Without retries."""
    await database.fetch_once(SQL.ping)


async def load_liveness_signs(database: Database) -> LivenessSigns:
    """Return the liveness signs, without retries and with short timeouts."""

    async def load(connection: Connection) -> LivenessSigns:
        await connection.execute(SET_SHORT_TIMEOUTS)
        return LivenessSigns(
            _OVERDUE_SCHEDULES.optional(await connection.fetchrow(SQL.find_most_overdue_schedule)),
            _SERVICES.all(await connection.fetch(SQL.list_services)),
            await connection.fetchval(SQL.misses_scheduler),
        )

    return await database.transaction(load, tries=1)
