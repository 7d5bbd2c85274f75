"""Queries for tests with a controlled clock; services do not use them.

The database compares the instant of a retry with its own clock, which may differ from the test clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tenuto.postgres.bulk_copy import ExcludedVersions, split_ids_and_versions
from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import RowMapper

SQL = load_statements(__file__)


@dataclass(frozen=True, slots=True)
class DueWork:
    """When more work is due."""

    next_schedule_at: datetime | None
    next_task_at: datetime | None
    next_manifest_at: datetime | None
    has_queued_run: bool
    """Whether a run of a schedule is queued."""
    has_unplanned_schedule: bool
    """Whether a schedule has no next run yet."""
    has_unplanned_manifest: bool
    """Whether a manifest has no next run yet."""


_DUE_WORK = RowMapper(DueWork, SQL.load_due_work)


@dataclass(frozen=True, slots=True)
class ClaimableQueues:
    """The queues with claimable tasks."""

    queues: list[str]
    has_due_tasks: bool
    has_limits: bool


async def load_due_work(
    database: Database, schedules: ExcludedVersions = (), manifests: ExcludedVersions = ()
) -> DueWork:
    """Return when schedules, tasks and manifests are due next, except excluded schedules and manifests."""
    row = await database.fetch_one(
        SQL.load_due_work, *split_ids_and_versions(schedules), *split_ids_and_versions(manifests)
    )
    assert row is not None
    return _DUE_WORK.one(row)


async def find_claimable_queues(database: Database, now: datetime) -> ClaimableQueues:
    """Return the queues with claimable tasks by the given clock."""
    rows = await database.fetch_all(SQL.find_claimable_queues, now)
    return ClaimableQueues(
        [row["queue"] for row in rows], any(row["to_promote"] for row in rows), any(row["limited"] for row in rows)
    )


async def reschedule_future_retries(database: Database, now: datetime) -> int:
    """Set queued tasks that are due later by the given clock back to scheduled; return their number."""
    return len(await database.write_all(SQL.reschedule_future_retries, now))
