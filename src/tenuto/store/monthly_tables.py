"""Monthly partitions of the tables of extensions: created ahead of time, dropped after their retention.

The partitions of activities have further rules; see `partitions`. Rows outside all months are in the default partition,
which the extension created; a month with such rows gets no partition.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from tenuto.errors import Invalid
from tenuto.ids import smallest_id_at
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.settings import Settings
from tenuto.store.partitions import MONTHS_AHEAD, month_start

SQL = load_statements(__file__)

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_CREATE = (
    "CREATE TABLE IF NOT EXISTS {schema}.{name} PARTITION OF {schema}.{table} FOR VALUES FROM ('{low}') TO ('{high}')"
)
_DROP = "DROP TABLE IF EXISTS {schema}.{name}"


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


async def ensure_partitions(database: Database, table: MonthlyTable, now: datetime) -> list[str]:
    """Create the missing partitions of this month and the next ones; return their names."""
    present = await _list_partitions(database, table)
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
                _CREATE.format(schema=table.schema, table=table.table, name=name, low=low, high=high)
            )
        return [table.partition_name(month) for month in missing]

    return await database.transaction(create)


async def drop_old_partitions(database: Database, table: MonthlyTable, cutoff: datetime) -> list[str]:
    """Drop the partitions of months that ended before the cut-off; return their names."""
    old = [
        name
        for name in await _list_partitions(database, table)
        if (month := table.month_of(name)) is not None and month_start(month, 1) <= cutoff
    ]

    async def drop(connection: Connection) -> list[str]:
        await connection.execute(SQL.lock_partitions)
        for name in old:
            await connection.execute(_DROP.format(schema=table.schema, name=name))
        return old

    return await database.transaction(drop) if old else []


async def _list_partitions(database: Database, table: MonthlyTable) -> list[str]:
    return [row["name"] for row in await database.fetch_all(SQL.list_partitions, table.schema, table.table)]
