"""What the database can tell of the whole installation, in figures: each by index, none by reading a whole table.

Nothing here judges, and nothing is kept: who asks how often is decided above (`observability.cached_query`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import beside

SQL = beside(__file__)

_LITTLE_PATIENCE = (
    "SET LOCAL statement_timeout = '5s'; SET LOCAL lock_timeout = '1s';"
    " SET LOCAL jit = off; SET LOCAL enable_seqscan = off"
)
LATELY = timedelta(minutes=1)
SILENT_AFTER = timedelta(seconds=120)
"""A service nobody has heard of for so long is not counted as alive."""

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gathered:
    """All figures, as they were at one moment."""

    waiting: list[Figures]
    running: list[Figures]
    scheduled: int
    held_back: int
    letters: int
    executions: Figures
    due: list[Figures]
    services: list[Figures]
    repairs: list[Figures]
    lately: list[Figures]


async def gather(database: Database) -> Gathered:
    """All figures at once, asked once and with little patience: a database in trouble is not to be pressed further."""
    return await database.transaction(_gather, tries=1)


async def _gather(connection: Connection) -> Gathered:
    await connection.execute(_LITTLE_PATIENCE)
    return Gathered(
        waiting=_all(await connection.fetch(SQL.waiting_by_queue)),
        running=_all(await connection.fetch(SQL.running_by_queue)),
        scheduled=await connection.fetchval(SQL.not_due),
        held_back=await connection.fetchval(SQL.held_back),
        letters=await connection.fetchval(SQL.letters),
        executions=_all(await connection.fetch(SQL.executions))[0],
        due=_all(await connection.fetch(SQL.due)),
        services=_all(await connection.fetch(SQL.services, SILENT_AFTER)),
        repairs=_all(await connection.fetch(SQL.repairs)),
        lately=_all(await connection.fetch(SQL.lately, LATELY)),
    )


@dataclass(frozen=True, slots=True)
class Signs:
    """What tells whether work gets done."""

    latest_schedule: Figures | None
    """Of the schedules that are due the one that has waited longest: its name, and how late it is."""
    services: list[Figures]


async def knock(database: Database) -> None:
    """An error if the database does not answer. Asked once."""
    await database.once(SQL.knock)


async def signs(database: Database) -> Signs:
    """Asked once and with little patience, as `gather`."""

    async def look(connection: Connection) -> Signs:
        await connection.execute(_LITTLE_PATIENCE)
        latest = _all(await connection.fetch(SQL.latest_schedule))
        return Signs(latest[0] if latest else None, _all(await connection.fetch(SQL.services, SILENT_AFTER)))

    return await database.transaction(look, tries=1)


def _all(rows: list[Row]) -> list[Figures]:
    return [dict(row) for row in rows]
