"""Attempts and usual durations of the steps of an execution, by bounded index lookups. Read-only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from tenuto.model.work.executions import ExecutionState, StepState
from tenuto.model.work.tasks import ActivityState, OutcomeReason
from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import FromJson, RowMapper

SQL = load_statements(__file__)

MAX_LISTED_ATTEMPTS = 20_000


@dataclass(frozen=True, slots=True)
class StepRange:
    """Consecutive steps of one group, by their positions in the plan."""

    group: int
    low: int
    high: int
    """The last position."""


@dataclass(frozen=True, slots=True)
class GroupState:
    """The steps of a group whose last attempt is in one state."""

    group_index: int
    state: StepState
    step_count: int
    first_started_at: datetime | None
    last_ended_at: datetime | None
    shortest_seconds: float | None
    """Of the last attempts that have ended."""
    longest_seconds: float | None


@dataclass(frozen=True, slots=True)
class TimelineAttempt:
    """One attempt at a step, ended or open."""

    step_index: int
    activity_id: UUID
    task_id: UUID
    attempt: int
    state: ActivityState
    reason: OutcomeReason | None
    due_at: datetime
    """From here the attempt could start."""
    claimed_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    progress: Annotated[Any, FromJson]
    worker: str | None
    """Name of the worker that made the attempt."""
    message: str | None
    """Error message."""


@dataclass(frozen=True, slots=True)
class RecentExecution:
    """An ended execution of the same schedule."""

    id: UUID
    state: ExecutionState
    seconds: float


@dataclass(frozen=True, slots=True)
class StepDurations:
    """Durations of the successful runs of a step."""

    step_index: int
    kind: str
    target: str
    seconds: Sequence[float]


_GROUP_STATES = RowMapper(GroupState, SQL.list_timeline_groups)
_ATTEMPTS = RowMapper(TimelineAttempt, SQL.list_timeline_attempts)
_RECENT_EXECUTIONS = RowMapper(RecentExecution, SQL.list_recent_executions)
_STEP_DURATIONS = RowMapper(StepDurations, SQL.list_step_durations)


async def list_timeline_groups(database: Database, execution_id: UUID) -> list[GroupState]:
    """Return how many steps of each group are in which state; steps without an attempt are not counted."""
    return _GROUP_STATES.all(await database.fetch_all(SQL.list_timeline_groups, execution_id))


async def list_timeline_attempts(
    database: Database, execution_id: UUID, ranges: Sequence[StepRange]
) -> list[TimelineAttempt]:
    """Return all attempts at the steps in these ranges, in plan order."""
    groups, lows, highs = ([getattr(each, name) for each in ranges] for name in ("group", "low", "high"))
    return _ATTEMPTS.all(
        await database.fetch_all(SQL.list_timeline_attempts, execution_id, groups, lows, highs, MAX_LISTED_ATTEMPTS)
    )


async def list_recent_executions(
    database: Database, schedule_id: UUID, excluded_id: UUID, limit: int
) -> list[RecentExecution]:
    """Return ended executions of a schedule other than this one, latest first."""
    return _RECENT_EXECUTIONS.all(await database.fetch_all(SQL.list_recent_executions, schedule_id, excluded_id, limit))


async def list_step_durations(
    database: Database, execution_ids: Sequence[UUID], steps: Sequence[tuple[str, str]], limit: int
) -> list[StepDurations]:
    """Return the latest durations of successful runs of steps, given as (kind, target)."""
    kinds, targets = [kind for kind, _ in steps], [target for _, target in steps]
    return _STEP_DURATIONS.all(await database.fetch_all(SQL.list_step_durations, execution_ids, kinds, targets, limit))


async def list_children_of_steps(database: Database, task_ids: Sequence[UUID]) -> dict[UUID, UUID]:
    """Return the latest execution that each task has started."""
    rows = await database.fetch_all(SQL.list_children_of_steps, task_ids)
    return {row["task_id"]: row["execution_id"] for row in rows}
