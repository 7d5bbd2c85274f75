"""Metrics of the installation by job, schedule and manifest. All lists are bounded."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.reports.metrics import SET_SHORT_TIMEOUTS
from tenuto.store.row_mapping import RowMapper

SQL = load_statements(__file__)

QUEUED_SAMPLE = 1000
"""How many of the first due tasks of each queue are counted by job."""
MAX_QUEUES = 200
RECENT_EXECUTIONS_WINDOW = timedelta(hours=1)
MAX_RECENT_EXECUTIONS = 5000


@dataclass(frozen=True, slots=True)
class JobTasks:
    """Due or running tasks of a job, or of a kind of step, in one queue."""

    name: str
    queue: str
    state: str
    task_count: int


@dataclass(frozen=True, slots=True)
class ScheduleFigures:
    """The latest executions of a schedule."""

    name: str
    last_success_age_seconds: float | None
    """Time since the last completed execution ended."""
    last_state: str | None
    """State of the last execution that has ended."""
    last_seconds: float | None


@dataclass(frozen=True, slots=True)
class OpenScheduleExecutions:
    """The executions in progress of one schedule."""

    name: str
    execution_count: int


@dataclass(frozen=True, slots=True)
class EndedScheduleExecutions:
    """Recently ended executions of one schedule with the same state."""

    name: str
    state: str
    execution_count: int


@dataclass(frozen=True, slots=True)
class ManifestFigures:
    """The last success of a manifest."""

    name: str
    last_success_age_seconds: float | None


@dataclass(frozen=True, slots=True)
class EnabledDefinitions:
    """The number of enabled schedules and manifests."""

    schedule_count: int
    manifest_count: int


@dataclass(frozen=True, slots=True)
class FiguresByName:
    """All of them at one instant."""

    tasks: list[JobTasks]
    schedules: list[ScheduleFigures]
    open: list[OpenScheduleExecutions]
    ended: list[EndedScheduleExecutions]
    manifests: list[ManifestFigures]
    enabled: EnabledDefinitions


_TASKS = RowMapper(JobTasks, SQL.count_tasks_by_job)
_SCHEDULES = RowMapper(ScheduleFigures, SQL.list_schedule_figures)
_OPEN = RowMapper(OpenScheduleExecutions, SQL.count_open_executions)
_ENDED = RowMapper(EndedScheduleExecutions, SQL.count_recent_executions)
_MANIFESTS = RowMapper(ManifestFigures, SQL.list_manifest_figures)
_ENABLED = RowMapper(EnabledDefinitions, SQL.count_enabled_definitions)


async def load_figures_by_name(database: Database, max_names: int) -> FiguresByName:
    """Return the figures of the first ``max_names`` enabled schedules and manifests, and those of tasks and executions
    by all names. Without retries and with short timeouts."""
    return await database.transaction(partial(_load, max_names=max_names), tries=1)


async def _load(connection: Connection, max_names: int) -> FiguresByName:
    await connection.execute(SET_SHORT_TIMEOUTS)
    ended = await connection.fetch(SQL.count_recent_executions, RECENT_EXECUTIONS_WINDOW, MAX_RECENT_EXECUTIONS)
    return FiguresByName(
        tasks=_TASKS.all(await connection.fetch(SQL.count_tasks_by_job, QUEUED_SAMPLE, MAX_QUEUES)),
        schedules=_SCHEDULES.all(await connection.fetch(SQL.list_schedule_figures, max_names)),
        open=_OPEN.all(await connection.fetch(SQL.count_open_executions)),
        ended=_ENDED.all(ended),
        manifests=_MANIFESTS.all(await connection.fetch(SQL.list_manifest_figures, max_names)),
        enabled=_ENABLED.all(await connection.fetch(SQL.count_enabled_definitions))[0],
    )
