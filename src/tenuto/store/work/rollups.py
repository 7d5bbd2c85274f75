"""Rows of activity rollups: counts of ended attempts per time bucket, added once for each activity."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from tenuto.model.work.rollups import HISTOGRAM_BOUNDS, Dimension, RollupCounts
from tenuto.model.work.tasks import OutcomeStatus
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import RowMapper

SQL = load_statements(__file__)

MAX_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class RollupProgress:
    """Which transactions have been added, and which have ended by now."""

    next_transaction_id: int
    in_progress: Sequence[int]
    since: datetime
    new_next_transaction_id: int
    new_in_progress: Sequence[int]


@dataclass(frozen=True, slots=True)
class EndedAttemptCount:
    """The number of attempts that ended within ten seconds with the same outcome and similar times."""

    bucket_at: datetime
    queue: str
    name: str
    state: OutcomeStatus
    wait_bin: int | None
    run_bin: int | None
    count: int


@dataclass(frozen=True, slots=True)
class RollupKey:
    """A bucket of all attempts, of a queue or of a name."""

    bucket_seconds: int
    dimension: Dimension
    label: str
    bucket_at: datetime


@dataclass(frozen=True, slots=True)
class RollupRecord:
    """The counts of one bucket."""

    label: str
    bucket_at: datetime
    completed: int
    warnings: int
    errors: int
    failed: int
    cancelled: int
    wait_bins: Sequence[int]
    run_bins: Sequence[int]

    def counts(self) -> RollupCounts:
        return RollupCounts(
            self.completed,
            self.warnings,
            self.errors,
            self.failed,
            self.cancelled,
            list(self.wait_bins),
            list(self.run_bins),
        )


_PROGRESS = RowMapper(RollupProgress, SQL.lock_progress)
_ENDED = RowMapper(EndedAttemptCount, SQL.count_new_activities)
_ROLLUPS = RowMapper(RollupRecord, SQL.list_rollups)


async def lock_progress(connection: Connection) -> RollupProgress | None:
    """Lock the progress until the transaction ends; None if another process holds it."""
    row = await connection.fetchrow(SQL.lock_progress)
    if row is None:
        await connection.execute(SQL.start_progress)
        row = await connection.fetchrow(SQL.lock_progress)
    return _PROGRESS.optional(row)


async def count_new_activities(connection: Connection, progress: RollupProgress) -> list[EndedAttemptCount]:
    """Count the activities of transactions that have ended since the stored progress."""
    rows = await connection.fetch(
        SQL.count_new_activities,
        progress.next_transaction_id,
        progress.in_progress,
        progress.new_next_transaction_id,
        progress.new_in_progress,
        progress.since,
        HISTOGRAM_BOUNDS,
    )
    return _ENDED.all(rows)


async def add_rollups(connection: Connection, counts: Iterable[tuple[RollupKey, RollupCounts]]) -> None:
    """Add counts to buckets; a missing bucket is created."""
    rows = [{**asdict(key), "bucket_at": key.bucket_at.isoformat(), **asdict(each)} for key, each in counts]
    if rows:
        await connection.execute(SQL.add_rollups, json.dumps(rows))


async def store_progress(connection: Connection, progress: RollupProgress, since: datetime) -> None:
    """Store that the transactions that have ended by now are added."""
    await connection.execute(SQL.store_progress, progress.new_next_transaction_id, progress.new_in_progress, since)


async def expire_rollups(database: Database, bucket_seconds: int, cutoff: datetime, limit: int) -> int:
    """Delete a batch of buckets of one size before the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_old_rollups, bucket_seconds, cutoff, limit))


async def delete_old_hours(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of the largest buckets before the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_old_rollups, 3600, cutoff, limit))


async def list_rollups(
    database: Database,
    bucket_seconds: int,
    dimension: Dimension,
    since: datetime,
    until: datetime,
    labels: Sequence[str] | None = None,
) -> list[RollupRecord]:
    """Return the buckets of one size in a window, by label and instant."""
    return _ROLLUPS.all(
        await database.fetch_all(SQL.list_rollups, bucket_seconds, dimension, since, until, labels, MAX_ROWS)
    )


async def read_rollups(
    connection: Connection, bucket_seconds: int, dimension: Dimension, since: datetime, until: datetime
) -> list[RollupRecord]:
    """Like `list_rollups` for all labels, on a connection."""
    rows = await connection.fetch(SQL.list_rollups, bucket_seconds, dimension, since, until, None, MAX_ROWS)
    return _ROLLUPS.all(rows)


async def list_busiest_labels(
    database: Database, bucket_seconds: int, dimension: Dimension, since: datetime, until: datetime, limit: int
) -> tuple[list[str], int]:
    """Return the labels with the most attempts in a window, and the number of all labels."""
    rows = await database.fetch_all(SQL.list_busiest_labels, bucket_seconds, dimension, since, until, limit)
    return [row["label"] for row in rows], rows[0]["label_count"] if rows else 0
