"""Partitions of activities and of the tables of extensions, by month or by day.

They are created ahead of time and dropped when all their rows are older than the retention. Months and days may follow
each other after a change of the setting; no two partitions overlap.

An activity id contains the creation time of its task, so a partition is a range of ids. The activity of a task that ran
after its partition was dropped is stored in the default partition, whose old rows are deleted one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Literal

from tenuto.errors import Invalid, Unavailable
from tenuto.ids import smallest_id_at
from tenuto.model.partition_ranges import (
    PartitionPeriod,
    PartitionRange,
    find_missing_ranges,
    find_period,
    find_replaceable_ranges,
    find_retained_start,
    parse_range,
)
from tenuto.postgres.database import Connection, Database, PermissionDenied
from tenuto.settings import Settings
from tenuto.store.work.activities import SQL

_PREFIX = "activities_"
# guard: activities.truncate_trigger_of_partition
_CREATE = """
CREATE TABLE IF NOT EXISTS tenuto.{name} PARTITION OF tenuto.activities FOR VALUES FROM ('{low}') TO ('{high}');
CREATE OR REPLACE TRIGGER activities_are_not_emptied BEFORE TRUNCATE ON tenuto.{name}
    FOR EACH STATEMENT EXECUTE FUNCTION tenuto.refuse_to_change_the_past();
"""
_DROP = "DROP TABLE tenuto.{name}"
_LOCK = "LOCK TABLE tenuto.{name} IN SHARE MODE"
_HAS_ROWS = "SELECT EXISTS (SELECT FROM tenuto.{name})"
HAS_YOUNGER_ROWS = "SELECT EXISTS (SELECT FROM tenuto.{name} WHERE ended_at >= $1)"


def configured_period(settings: Settings) -> PartitionPeriod | None:
    """Return the period that the settings demand; None to keep that of the database."""
    return None if settings.partition_period is None else PartitionPeriod(settings.partition_period)


async def ensure_partitions(database: Database, now: datetime, period: PartitionPeriod | None = None) -> list[str]:
    """Create the missing partitions of this period and the next ones; return their names.

    Without a ``period``, that of the newest partition remains. Another one replaces empty partitions to come, and
    applies from the end of the current month on: one of its partitions is created there at once.
    """
    present = await _list_ranges(database)
    if not _needs_change(present, now, period):
        return []

    async def create(connection: Connection) -> list[str]:
        await connection.execute(SQL.lock_partitions)
        present = [
            each for row in await connection.fetch(SQL.list_partitions) if (each := _range_of(row["name"])) is not None
        ]
        chosen = period or find_period(present)
        for each in find_replaceable_ranges(present, now, chosen):
            await connection.execute(_LOCK.format(name=_partition_name(each)))
            if not await connection.fetchval(
                _HAS_ROWS.format(name=_partition_name(each))
            ):  # guard: partitions.replaced
                await connection.execute(_DROP.format(name=_partition_name(each)))
                present.remove(each)
        created = []
        for each in find_missing_ranges(present, now, chosen):
            name, low, high = _partition_name(each), smallest_id_at(each.start), smallest_id_at(each.end)
            # Rows of this range in the default partition stay there; nothing is moved or lost.
            # guard: partitions.records_in_default
            if not await connection.fetchval(SQL.has_rows_in_default, low, high):
                await connection.execute(_CREATE.format(name=name, low=low, high=high))
                created.append(name)
        return created

    try:
        return await database.transaction(create)
    except PermissionDenied:
        return []  # only the owner may; records go into the default partition, and the doctor warns
    except Unavailable:
        if not any(each.start <= now < each.end for each in present):
            raise
        return []  # a long reader blocks it; the next cycle tries again


def _needs_change(present: Sequence[PartitionRange], now: datetime, period: PartitionPeriod | None) -> bool:
    chosen = period or find_period(present)
    return bool(find_missing_ranges(present, now, chosen) or find_replaceable_ranges(present, now, chosen))


async def find_missing_partitions(database: Database, now: datetime, *, ahead: int | None = None) -> list[str]:
    """Return the missing partitions of this period and ``ahead`` more."""
    present = await _list_ranges(database)
    missing = find_missing_ranges(present, now, find_period(present), ahead=ahead)
    return [_partition_name(each) for each in missing]


async def find_partitions_of_other_period(database: Database, now: datetime, period: PartitionPeriod) -> list[str]:
    """Return the coming partitions that partitions of this period replace if they are empty."""
    ranges = find_replaceable_ranges(await _list_ranges(database), now, period)
    return [_partition_name(each) for each in ranges]


async def find_retained_since(database: Database, now: datetime) -> datetime:
    """Return the start of the first partition since which none was dropped."""
    return find_retained_start(await _list_ranges(database), now)


async def _list_ranges(database: Database) -> list[PartitionRange]:
    rows = await database.fetch_all(SQL.list_partitions)
    return [each for row in rows if (each := _range_of(row["name"])) is not None]


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
        name, found = row["name"], _range_of(row["name"])
        if found is None or found.end > cutoff:  # guard: partitions.whole_periods
            continue
        with isolate(name):
            if await database.transaction(
                partial(_drop_if_old, name=name, cutoff=cutoff)
            ):  # one short transaction each
                dropped.append(name)
    return dropped


async def _drop_if_old(connection: Connection, *, name: str, cutoff: datetime) -> bool:
    """Check and drop a partition under a lock, so that no row is inserted in between.

    Only activities of tasks of this period wait meanwhile; after the drop they are stored in the default partition.
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


def _partition_name(each: PartitionRange) -> str:
    return f"{_PREFIX}{each.suffix}"


def _range_of(name: str) -> PartitionRange | None:
    return parse_range(name.removeprefix(_PREFIX))


# --- tables of extensions -------------------------------------------------------------------------------------------
# Rows outside all ranges are in the default partition, which the extension created. A range with such rows gets no
# partition, and nothing is moved: a large number of rows would lock the table for long. Retention deletes them.

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_CREATE_RANGE = (
    "CREATE TABLE IF NOT EXISTS {schema}.{name} PARTITION OF {schema}.{table} FOR VALUES FROM ('{low}') TO ('{high}')"
)
_DROP_RANGE = "DROP TABLE IF EXISTS {schema}.{name}"
_LOCK_RANGE = "LOCK TABLE {schema}.{name} IN SHARE MODE"
_RANGE_HAS_ROWS = "SELECT EXISTS (SELECT FROM {schema}.{name})"
_DEFAULT_HAS_ROWS = "SELECT EXISTS (SELECT FROM {default} WHERE {key} >= '{low}' AND {key} < '{high}')"
_DELETE_OLD_DEFAULT_ROWS = """
DELETE FROM {default} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {default} WHERE {key} < '{cutoff}' LIMIT $1)) RETURNING 1
"""


@dataclass(frozen=True, slots=True)
class PartitionedTable:
    """A table that is partitioned by month or day."""

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

    def partition_name(self, each: PartitionRange) -> str:
        return f"{self.table}_{each.suffix}"

    def range_of(self, partition: str) -> PartitionRange | None:
        return parse_range(partition.removeprefix(f"{self.table}_"))

    def bound(self, instant: datetime) -> str:
        """The first key of a range, as an SQL literal."""
        return instant.isoformat() if self.key == "instant" else str(smallest_id_at(instant))


async def ensure_partitions_of_table(
    database: Database, table: PartitionedTable, now: datetime, period: PartitionPeriod | None = None
) -> list[str]:
    """Create the missing partitions of a table of an extension, like `ensure_partitions`."""
    if not _needs_change(await _list_ranges_of_table(database, table), now, period):
        return []

    async def create(connection: Connection) -> list[str]:
        await connection.execute(SQL.lock_partitions)
        rows = await connection.fetch(SQL.list_partitions_of_table, table.schema, table.table)
        present = [each for row in rows if (each := table.range_of(row["name"])) is not None]
        chosen = period or find_period(present)
        for each in find_replaceable_ranges(present, now, chosen):
            name = table.partition_name(each)
            await connection.execute(_LOCK_RANGE.format(schema=table.schema, name=name))
            # guard: partitions.replaced_of_extension
            if not await connection.fetchval(_RANGE_HAS_ROWS.format(schema=table.schema, name=name)):
                await connection.execute(_DROP_RANGE.format(schema=table.schema, name=name))
                present.remove(each)
        created = []
        for each in find_missing_ranges(present, now, chosen):
            low, high = table.bound(each.start), table.bound(each.end)
            # guard: partitions.rows_in_default_of_extension
            if not await _has_rows_in_default(connection, table, low, high):
                name = table.partition_name(each)
                await connection.execute(
                    _CREATE_RANGE.format(schema=table.schema, table=table.table, name=name, low=low, high=high)
                )
                created.append(name)
        return created

    return await database.transaction(create)


async def _has_rows_in_default(connection: Connection, table: PartitionedTable, low: str, high: str) -> bool:
    names = await connection.fetchrow(SQL.load_names_of_default_partition, table.schema, table.table)
    return names is not None and bool(await connection.fetchval(_DEFAULT_HAS_ROWS.format(**names, low=low, high=high)))


async def drop_old_partitions_of_table(database: Database, table: PartitionedTable, cutoff: datetime) -> list[str]:
    """Drop the partitions of ranges that ended before the cut-off; return their names."""
    old = [table.partition_name(each) for each in await _list_ranges_of_table(database, table) if each.end <= cutoff]

    async def drop(connection: Connection) -> list[str]:
        await connection.execute(SQL.lock_partitions)
        for name in old:
            await connection.execute(_DROP_RANGE.format(schema=table.schema, name=name))
        return old

    return await database.transaction(drop) if old else []


async def delete_old_default_rows_of_table(
    database: Database, cutoff: datetime, batch: int, *, table: PartitionedTable
) -> int:
    """Delete a small batch of the rows before the cut-off in the default partition of a table; return their number."""

    async def delete(connection: Connection) -> int:
        names = await connection.fetchrow(SQL.load_names_of_default_partition, table.schema, table.table)
        if names is None:
            return 0
        statement = _DELETE_OLD_DEFAULT_ROWS.format(**names, cutoff=table.bound(cutoff))
        return len(await connection.fetch(statement, batch))

    return await database.transaction(delete)


async def _list_ranges_of_table(database: Database, table: PartitionedTable) -> list[PartitionRange]:
    rows = await database.fetch_all(SQL.list_partitions_of_table, table.schema, table.table)
    return [each for row in rows if (each := table.range_of(row["name"])) is not None]
