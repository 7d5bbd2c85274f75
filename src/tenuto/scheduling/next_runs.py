"""Next due instants of schedules and manifests: compute missing ones, and the wait until the earliest one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from uuid import UUID

from tenuto.model.triggers import Trigger
from tenuto.postgres.database import Connection, Database
from tenuto.service.quarantine import UNREADABLE_ROW_ERRORS, LockedRows, Quarantine, RowCounts, process_in_batches

_MIN_WAIT_SECONDS = 0.0005
_LOCKED_ROW_RETRY_SECONDS = 0.05
"""Wait when a row is due but locked by another process."""

RunTimes = tuple[UUID, datetime | None, datetime | None]
"""Id of a schedule or manifest, new last run or None for no change, next run or None for none."""


async def compute_missing_next_runs(
    database: Database,
    now: datetime,
    quarantine: Quarantine,
    list_rows: Callable[..., Awaitable[list[tuple[UUID, int, str, str]]]],
    parse_trigger: Callable[[str], Trigger],
    write_run_times: Callable[[Connection, Sequence[RunTimes]], Awaitable[None]],
) -> int:
    """Compute the next run of every row that has none; return their number.

    ``list_rows`` locks and returns such rows as (id, version, name, stored trigger or definition).
    """

    async def compute(connection: Connection, limit: int, locked: LockedRows) -> RowCounts:
        rows = await list_rows(connection, limit, quarantine.rows)
        run_times: list[RunTimes] = []
        for id, version, name, stored in rows:
            locked[id, version] = name
            try:
                run_times.append((id, None, parse_trigger(stored).next_after(now, str(id))))
            except UNREADABLE_ROW_ERRORS as error:
                quarantine.add((id, version), name, "read", error)
        await write_run_times(connection, run_times)
        return RowCounts(len(rows), len(run_times))

    results = process_in_batches(database, compute, quarantine, "compute next run")
    return sum([result.processed_count async for result in results])


def seconds_until_due(
    database: Database, next_due_at: datetime | None, cycle_at: datetime, poll_seconds: float
) -> float:
    """Return the wait until the next due instant; ``cycle_at`` is the instant for which due rows were processed."""
    if next_due_at is None:
        return poll_seconds
    if next_due_at <= cycle_at:
        return min(_LOCKED_ROW_RETRY_SECONDS, poll_seconds)
    wait_seconds = (next_due_at - database.clock.now()).total_seconds()
    return min(max(wait_seconds, _MIN_WAIT_SECONDS), poll_seconds)
