"""What only somebody with a clock of their own needs to see and set right: for tests, never for a service.

The database compares the instant of a retry with its own clock, which a test may have left behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import beside
from tenuto.store.bulk_copy import Excluded, ids_and_versions

SQL = beside(__file__)


@dataclass(frozen=True, slots=True)
class Look:
    """What there is, and when more is due."""

    next_schedule: datetime | None
    next_task: datetime | None
    next_manifest: datetime | None
    turns: bool
    """Some run waits for an earlier one of its schedule."""
    unplanned: bool
    """Of some schedule nobody knows the next run."""
    unplanned_manifests: bool
    """The same of some manifest."""


@dataclass(frozen=True, slots=True)
class ToTake:
    """The queues in which something is due."""

    queues: list[str]
    to_promote: bool
    limited: bool


async def look(database: Database, schedules: Excluded = (), manifests: Excluded = ()) -> Look:
    """What there is to do, and when there is more, but for schedules and manifests that are left out."""
    row = await database.one(SQL.look, *ids_and_versions(schedules), *ids_and_versions(manifests))
    assert row is not None
    return Look(*row)


async def to_take(database: Database, now: datetime) -> ToTake:
    """Where something may be taken by the given clock."""
    rows = await database.all(SQL.to_take, now)
    return ToTake(
        [row["queue"] for row in rows], any(row["to_promote"] for row in rows), any(row["limited"] for row in rows)
    )


async def not_due_yet(database: Database, now: datetime) -> int:
    """Have what is to be tried again later wait until then by the given clock; how many."""
    return len(await database.all(SQL.not_due_yet, now))
