"""Monthly partitions of the past: made ahead of time, dropped when a whole month has aged.

An activity's id carries the instant its task was created; a month of ids is a partition. A task that ran years after
it was created finds its month gone: its record lies in the default partition, which is thinned out row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from functools import partial

from tenuto.errors import Unavailable
from tenuto.ids import first_id_at
from tenuto.postgres.database import Connection, Database
from tenuto.store.activities import SQL

MONTHS_AHEAD = 3
_CREATE = """
CREATE TABLE IF NOT EXISTS tenuto.{name} PARTITION OF tenuto.activities FOR VALUES FROM ('{low}') TO ('{high}');
CREATE OR REPLACE TRIGGER activities_are_not_emptied BEFORE TRUNCATE ON tenuto.{name}
    FOR EACH STATEMENT EXECUTE FUNCTION tenuto.refuse_to_change_the_past();
"""
_DROP = "DROP TABLE tenuto.{name}"
_LOCK = "LOCK TABLE tenuto.{name} IN SHARE MODE"
HAS_YOUNGER = "SELECT EXISTS (SELECT FROM tenuto.{name} WHERE ended_at >= $1)"


async def ensure(database: Database, now: datetime) -> list[str]:
    """Make the partitions of this month and the next ones, if they are missing; their names."""
    wanted = [_month_after(now, months) for months in range(MONTHS_AHEAD + 1)]
    present = {row["name"] for row in await database.all(SQL.partitions)}
    missing = [month for month in wanted if _name(month) not in present]
    if not missing:
        return []

    async def make(connection: Connection) -> list[str]:
        await connection.execute(SQL.lock_partitions)
        made = []
        for month in missing:
            low, high = first_id_at(month), first_id_at(_month_after(month, 1))
            # Rows that already lie in the default partition keep their range there; nothing is moved, nothing is lost.
            if not await connection.fetchval(SQL.youngest_in_default, low, high):
                await connection.execute(_CREATE.format(name=_name(month), low=low, high=high))
                made.append(_name(month))
        return made

    try:
        return await database.transaction(make)
    except Unavailable:
        if _month_after(now, 0) in missing:
            raise
        return []  # somebody reads for long; there is time: the next round tries again


async def missing(database: Database, now: datetime, *, ahead: int) -> list[str]:
    """Which partitions of this month and so many more are not there."""
    present = {row["name"] for row in await database.all(SQL.partitions)}
    wanted = [_name(_month_after(now, months)) for months in range(ahead + 1)]
    return [name for name in wanted if name not in present]


async def unbroken_since(database: Database, now: datetime) -> datetime:
    """The beginning of the first month from which on nothing has been dropped."""
    present = {row["name"] for row in await database.all(SQL.partitions)}
    since = _month_after(now, 0)
    while _name(earlier := _month_after(since, -1)) in present:
        since = earlier
    return since


async def drop_aged(
    database: Database,
    cutoff: datetime,
    apart: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext(),
) -> list[str]:
    """Drop each month that lies wholly before the cut-off and holds no record that ended after it; their names.

    Each is dropped inside ``apart``, which may let the others go on when one cannot be.
    """
    dropped = []
    for row in await database.all(SQL.partitions):
        name, month = row["name"], _month_of(row["name"])
        if month is None or _month_after(month, 1) > cutoff:
            continue
        with apart(name):
            if await database.transaction(partial(_drop, name=name, cutoff=cutoff)):  # a short one for each
                dropped.append(name)
    return dropped


async def _drop(connection: Connection, *, name: str, cutoff: datetime) -> bool:
    """Look, and drop what was looked at: in between nothing is recorded in this month.

    Only records of this month wait meanwhile, those of tasks as old as it; when it is gone they go among the old.
    """
    await connection.execute(SQL.lock_partitions)
    if name not in {row["name"] for row in await connection.fetch(SQL.partitions)}:
        return False  # somebody else has dropped it
    await connection.execute(_LOCK.format(name=name))
    if await connection.fetchval(HAS_YOUNGER.format(name=name), cutoff):
        return False
    await connection.execute(_DROP.format(name=name))
    return True


async def delete_old(database: Database, cutoff: datetime, batch: int) -> int:
    """One small batch out of the default partition; how many went."""

    async def delete(connection: Connection) -> int:
        await connection.execute(SQL.allow_retention)
        return len(await connection.fetch(SQL.delete_old, cutoff, batch))

    return await database.transaction(delete)


def _name(month: datetime) -> str:
    return f"activities_{month:%Y_%m}"


def _month_of(name: str) -> datetime | None:
    try:
        return datetime.strptime(name, "activities_%Y_%m").replace(tzinfo=UTC)
    except ValueError:
        return None


def _month_after(instant: datetime, months: int) -> datetime:
    total = instant.year * 12 + instant.month - 1 + months
    return datetime(total // 12, total % 12 + 1, 1, tzinfo=UTC)
