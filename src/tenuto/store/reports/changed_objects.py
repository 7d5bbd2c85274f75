"""Changes since an instant, for the event feed. Read-only.

Every query uses an index except the task counts of queues, whose cost grows with the backlog; the feed runs it less
often then.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID

from tenuto.model.work.dead_letters import DeadLetterState
from tenuto.model.work.executions import ExecutionState
from tenuto.model.work.tasks import OutcomeStatus
from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import FromColumn, FromJson, RowMapper

SQL = load_statements(__file__)


@dataclass(frozen=True, slots=True)
class ExecutionChange:
    """The progress of an execution."""

    id: UUID
    schedule_name: str
    state: ExecutionState
    current_group: int
    group_count: int
    step_count: int
    failed_step_count: int
    started_at: datetime
    ended_at: datetime | None
    paused_at: datetime | None

    @property
    def at(self) -> datetime:
        """When it ended, or started if it is open."""
        return self.ended_at or self.started_at


@dataclass(frozen=True, slots=True)
class EndedAttempts:
    """The number of attempts of a job that ended within one time span, by outcome."""

    span_at: datetime
    name: str
    state: OutcomeStatus
    count: int
    task_ids: Sequence[UUID]
    """The last tasks of the count, newest first."""


@dataclass(frozen=True, slots=True)
class DeadLetterChange:
    """A dead letter that was written or resolved."""

    id: UUID
    external_id: str
    state: DeadLetterState
    at: datetime


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """A change of a schedule or manifest."""

    id: UUID
    kind: Literal["schedule", "manifest"]
    name: str
    """Name of the schedule or external id of the manifest."""
    change: str
    version: int
    at: datetime


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A registered process that has not ended."""

    name: str
    service: str
    draining: bool


def _parse_workers(text: str) -> list[LiveWorker]:
    return [LiveWorker(**fields) for fields in json.loads(text)]


@dataclass(frozen=True, slots=True)
class QueuesAndWorkers:
    """The task counts of the queues by state, and the live workers."""

    queues: Annotated[dict[str, dict[str, int]], FromJson]
    workers: Annotated[list[LiveWorker], FromColumn(_parse_workers)]


_EXECUTIONS = RowMapper(ExecutionChange, SQL.list_open_executions, SQL.list_ended_executions)
_ENDED_ATTEMPTS = RowMapper(EndedAttempts, SQL.count_ended_activities)
_DEAD_LETTERS = RowMapper(DeadLetterChange, SQL.list_changed_dead_letters)
_DEFINITIONS = RowMapper(DefinitionChange, SQL.list_definition_changes)
_QUEUES_AND_WORKERS = RowMapper(QueuesAndWorkers, SQL.load_queues_and_workers)


async def list_open_executions(database: Database, limit: int) -> list[ExecutionChange]:
    """Return open executions, newest first."""
    return _EXECUTIONS.all(await database.fetch_all(SQL.list_open_executions, limit))


async def list_ended_executions(database: Database, since: datetime, above: UUID, limit: int) -> list[ExecutionChange]:
    """Return executions that ended after a cursor of instant and id, oldest first."""
    return _EXECUTIONS.all(await database.fetch_all(SQL.list_ended_executions, since, above, limit))


async def count_ended_activities(
    database: Database, since: datetime, span: timedelta, limit: int, max_ids: int
) -> list[EndedAttempts]:
    """Count attempts that ended since an instant, by time span, job and outcome; name up to ``max_ids`` of each."""
    return _ENDED_ATTEMPTS.all(await database.fetch_all(SQL.count_ended_activities, since, span, limit, max_ids))


async def list_changed_dead_letters(
    database: Database, since: datetime, above: UUID, limit: int
) -> list[DeadLetterChange]:
    """Return dead letters that were written or resolved after a cursor of instant and id."""
    return _DEAD_LETTERS.all(await database.fetch_all(SQL.list_changed_dead_letters, since, above, limit))


async def list_definition_changes(
    database: Database, since: datetime, above: UUID, limit: int
) -> list[DefinitionChange]:
    """Return changes of schedules and manifests after a cursor of instant and id."""
    return _DEFINITIONS.all(await database.fetch_all(SQL.list_definition_changes, since, above, limit))


async def load_queues_and_workers(database: Database) -> QueuesAndWorkers:
    """Return the current task counts of the queues and the live workers."""
    row = await database.fetch_one(SQL.load_queues_and_workers)
    assert row is not None
    return _QUEUES_AND_WORKERS.one(row)
