"""Monthly partitions of activities and of the tables of extensions.

They are created ahead of time and dropped when all their rows are older than the retention.

An activity id contains the creation time of its task, so a partition is a range of ids. The activity of a task that ran
after its month was dropped is stored in the default partition, whose old rows are deleted one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Literal

from tenuto.errors import Invalid, Unavailable
from tenuto.ids import smallest_id_at
from tenuto.postgres.database import Connection, Database, PermissionDenied
from tenuto.settings import Settings
from tenuto.store.work.activities import SQL

MONTHS_AHEAD = 3
# guard: activities.truncate_trigger_of_partition
_CREATE = """
CREATE TABLE IF NOT EXISTS tenuto.{name} PARTITION OF tenuto.activities FOR VALUES FROM ('{low}') TO ('{high}');
CREATE OR REPLACE TRIGGER activities_are_not_emptied BEFORE TRUNCATE ON tenuto.{name}
    FOR EACH STATEMENT EXECUTE FUNCTION tenuto.refuse_to_change_the_past();
"""
_DROP = "DROP TABLE tenuto.{name}"
_LOCK = "LOCK TABLE tenuto.{name} IN SHARE MODE"
HAS_YOUNGER_ROWS = "SELECT EXISTS (SELECT FROM tenuto.{name} WHERE ended_at >= $1)"


async def ensure_partitions(database: Database, now: datetime) -> list[str]:
    """Create the missing partitions of this month and the next ones; return their names."""
    wanted = [month_start(now, months) for months in range(MONTHS_AHEAD + 1)]
    present = {row["name"] for row in await database.fetch_all(SQL.list_partitions)}
    missing = [month for month in wanted if _partition_name(month) not in present]
    if not missing:
        return []

    async def create(connection: Connection) -> list[str]:
        await connection.execute(SQL.lock_partitions)
        created = []
        for month in missing:
            low, high = smallest_id_at(month), smallest_id_at(month_start(month, 1))
            # Rows of this range in the default partition stay there; nothing is moved or lost.
            # guard: partitions.records_in_default
            if not await connection.fetchval(SQL.has_rows_in_default, low, high):
                await connection.execute(_CREATE.format(name=_partition_name(month), low=low, high=high))
                created.append(_partition_name(month))
        return created

    try:
        return await database.transaction(create)
    except PermissionDenied:
        return []  # only the owner may; records go into the default partition, and the doctor warns
    except Unavailable:
        if month_start(now, 0) in missing:
            raise
        return []  # a long reader blocks it; the next cycle tries again


async def find_missing_partitions(database: Database, now: datetime, *, months_ahead: int) -> list[str]:
    """Return the missing partitions of this month and ``months_ahead`` more."""
    present = {row["name"] for row in await database.fetch_all(SQL.list_partitions)}
    wanted = [_partition_name(month_start(now, months)) for months in range(months_ahead + 1)]
    return [name for name in wanted if name not in present]


async def find_retained_since(database: Database, now: datetime) -> datetime:
    """Return the start of the first month since which no partition was dropped."""
    present = {row["name"] for row in await database.fetch_all(SQL.list_partitions)}
    since = month_start(now, 0)
    while _partition_name(earlier := month_start(since, -1)) in present:
        since = earlier
    return since


async def drop_old_partitions(
    database: Database,
    cutoff: datetime,
    isolate: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext(),
) -> list[str]:
    """Drop each partition whose rows all ended before the cut-off; return their names.

    Each is dropped inside ``isolate``, which may suppress errors so that the others are still dropped.
    """
    dropped = []
    for row in await database.fetch_all(SQL.list_partitions):
        name, month = row["name"], _month_of_partition(row["name"])
        if month is None or month_start(month, 1) > cutoff:  # guard: partitions.whole_months
            continue
        with isolate(name):
            if await database.transaction(
                partial(_drop_if_old, name=name, cutoff=cutoff)
            ):  # one short transaction each
                dropped.append(name)
    return dropped


async def _drop_if_old(connection: Connection, *, name: str, cutoff: datetime) -> bool:
    """Check and drop a partition under a lock, so that no row is inserted in between.

    Only activities of tasks of this month wait meanwhile; after the drop they are stored in the default partition.
    """
    await connection.execute(SQL.lock_partitions)
    # guard: partitions.dropped_by_another
    if name not in {row["name"] for row in await connection.fetch(SQL.list_partitions)}:
        return False  # another process has dropped it
    await connection.execute(_LOCK.format(name=name))  # guard: partitions.lock_before_drop
    if await connection.fetchval(HAS_YOUNGER_ROWS.format(name=name), cutoff):  # guard: partitions.recent_record
        return False
    await connection.execute(_DROP.format(name=name))
    return True


async def delete_old_default_rows(database: Database, cutoff: datetime, batch: int) -> int:
    """Delete a small batch of old rows of the default partition; return their number."""

    async def delete(connection: Connection) -> int:
        await connection.execute(SQL.allow_retention)
        return len(await connection.fetch(SQL.delete_old_default_rows, cutoff, batch))

    return await database.transaction(delete)


def _partition_name(month: datetime) -> str:
    return f"activities_{month:%Y_%m}"


def _month_of_partition(name: str) -> datetime | None:
    try:
        return datetime.strptime(name, "activities_%Y_%m").replace(tzinfo=UTC)
    except ValueError:
        return None


def month_start(instant: datetime, months: int) -> datetime:
    """Return the start of the month so many months after the month of an instant."""
    total = instant.year * 12 + instant.month - 1 + months
    return datetime(total // 12, total % 12 + 1, 1, tzinfo=UTC)


# --- tables of extensions -------------------------------------------------------------------------------------------
# Rows outside all months are in the default partition, which the extension created; a month with such rows gets no
# partition.

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_CREATE_MONTH = (
    "CREATE TABLE IF NOT EXISTS {schema}.{name} PARTITION OF {schema}.{table} FOR VALUES FROM ('{low}') TO ('{high}')"
)
_DROP_MONTH = "DROP TABLE IF EXISTS {schema}.{name}"


@dataclass(frozen=True, slots=True)
class MonthlyTable:
    """A table that is partitioned by month."""

    schema: str
    table: str
    key: Literal["instant", "id"]
    cutoff: Callable[[datetime, Settings], datetime] | None = None

    def __post_init__(self) -> None:
        for identifier in (self.schema, self.table):
            if not _IDENTIFIER.fullmatch(identifier):
                raise Invalid(
                    f"{identifier!r} is not the name of a table",
                    code="extension.table.invalid",
                    field="table",
                    remedy="use lower-case letters, digits and underscores",
                )

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    def partition_name(self, month: datetime) -> str:
        return f"{self.table}_{month:%Y_%m}"

    def month_of(self, partition: str) -> datetime | None:
        try:
            return datetime.strptime(partition, f"{self.table}_%Y_%m").replace(tzinfo=UTC)
        except ValueError:
            return None

    def bound(self, month: datetime) -> str:
        """The first key of a month, as an SQL literal."""
        return month.isoformat() if self.key == "instant" else str(smallest_id_at(month))


async def ensure_monthly_partitions(database: Database, table: MonthlyTable, now: datetime) -> list[str]:
    """Create the missing partitions of this month and the next ones; return their names."""
    present = await _list_monthly_partitions(database, table)
    wanted = [month_start(now, months) for months in range(MONTHS_AHEAD + 1)]
    missing = [month for month in wanted if table.partition_name(month) not in present]
    if not missing:
        return []

    async def create(connection: Connection) -> list[str]:
        await connection.execute(SQL.lock_partitions)
        for month in missing:
            low, high = table.bound(month), table.bound(month_start(month, 1))
            name = table.partition_name(month)
            await connection.execute(
                _CREATE_MONTH.format(schema=table.schema, table=table.table, name=name, low=low, high=high)
            )
        return [table.partition_name(month) for month in missing]

    return await database.transaction(create)


async def drop_old_monthly_partitions(database: Database, table: MonthlyTable, cutoff: datetime) -> list[str]:
    """Drop the partitions of months that ended before the cut-off; return their names."""
    old = [
        name
        for name in await _list_monthly_partitions(database, table)
        if (month := table.month_of(name)) is not None and month_start(month, 1) <= cutoff
    ]

    async def drop(connection: Connection) -> list[str]:
        await connection.execute(SQL.lock_partitions)
        for name in old:
            await connection.execute(_DROP_MONTH.format(schema=table.schema, name=name))
        return old

    return await database.transaction(drop) if old else []


async def _list_monthly_partitions(database: Database, table: MonthlyTable) -> list[str]:
    return [row["name"] for row in await database.fetch_all(SQL.list_partitions_of_table, table.schema, table.table)]
