"""Metrics of the whole installation, by index lookups only. `observability.cached_query` limits how often they run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import load_statements

SQL = load_statements(__file__)

_SET_SHORT_TIMEOUTS = (
    "SET LOCAL statement_timeout = '5s'; SET LOCAL lock_timeout = '1s';"
    " SET LOCAL jit = off; SET LOCAL enable_seqscan = off"
)
RECENT_WINDOW = timedelta(minutes=1)
SILENT_AFTER = timedelta(seconds=120)
"""A service without a heartbeat for this long does not count as live."""

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DatabaseMetrics:
    """All metrics at one instant."""

    waiting: list[Figures]
    running: list[Figures]
    scheduled: int
    held_back: int
    dead_letters: int
    executions: Figures
    due: list[Figures]
    services: list[Figures]
    repairs: list[Figures]
    recent: list[Figures]


async def load_metrics(database: Database) -> DatabaseMetrics:
    """Return all metrics, without retries and with short timeouts, to spare a database in trouble."""
    return await database.transaction(_load_metrics, tries=1)


async def _load_metrics(connection: Connection) -> DatabaseMetrics:
    await connection.execute(_SET_SHORT_TIMEOUTS)
    return DatabaseMetrics(
        waiting=_to_records(await connection.fetch(SQL.count_queued_by_queue)),
        running=_to_records(await connection.fetch(SQL.count_running_by_queue)),
        scheduled=await connection.fetchval(SQL.count_scheduled),
        held_back=await connection.fetchval(SQL.count_waiting),
        dead_letters=await connection.fetchval(SQL.count_open_dead_letters),
        executions=_to_records(await connection.fetch(SQL.count_open_executions))[0],
        due=_to_records(await connection.fetch(SQL.count_due_definitions)),
        services=_to_records(await connection.fetch(SQL.list_services, SILENT_AFTER)),
        repairs=_to_records(await connection.fetch(SQL.list_repairs)),
        recent=_to_records(await connection.fetch(SQL.summarise_recent_attempts, RECENT_WINDOW)),
    )


@dataclass(frozen=True, slots=True)
class LivenessSigns:
    """Facts that show whether work gets done."""

    most_overdue_schedule: Figures | None
    """Name and delay of the most overdue schedule."""
    services: list[Figures]


async def ping(database: Database) -> None:
    """Raise an error if the database does not answer. Without retries."""
    await database.fetch_once(SQL.ping)


async def load_liveness_signs(database: Database) -> LivenessSigns:
    """Return the liveness signs, without retries and with short timeouts."""

    async def load(connection: Connection) -> LivenessSigns:
        await connection.execute(_SET_SHORT_TIMEOUTS)
        latest = _to_records(await connection.fetch(SQL.find_most_overdue_schedule))
        return LivenessSigns(
            latest[0] if latest else None, _to_records(await connection.fetch(SQL.list_services, SILENT_AFTER))
        )

    return await database.transaction(load, tries=1)


def _to_records(rows: list[Row]) -> list[Figures]:
    return [dict(row) for row in rows]
