"""Marks of the processes in the history of the database, and the losses that they found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from tenuto.ids import new_id
from tenuto.model.lost_commits import FoundHistory, SeenHistory
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import RowMapper

SQL = load_statements(__file__)

MARK_RETENTION = timedelta(days=30)
"""A mark is deleted this long after the end of its process; what a process remembers from before is not compared."""
_MAX_LOSSES = 20


@dataclass(frozen=True, slots=True)
class HistoryLoss:
    """Commits that a process saw acknowledged and did not find again."""

    found_at: datetime
    service: str
    name: str
    seen_at: datetime
    seen_number: int
    found_number: int
    seen_timeline: int
    found_timeline: int


_TIMELINE = RowMapper(FoundHistory, SQL.find_timeline)
_FOUND = RowMapper(FoundHistory, SQL.find_history)
_LOSSES = RowMapper(HistoryLoss, SQL.list_losses)


async def find_timeline(connection: Connection) -> FoundHistory:
    """Return the history of the database that a connection leads to, without a mark."""
    return _TIMELINE.one(*await connection.fetch(SQL.find_timeline))


async def find_history(connection: Connection, process: UUID) -> FoundHistory:
    """Return the history of the database that a connection leads to."""
    return _FOUND.one(*await connection.fetch(SQL.find_history, process))


async def load_history(database: Database, process: UUID) -> FoundHistory:
    """Like `find_history`, over any connection of a database."""
    return _FOUND.one(*await database.fetch_all(SQL.find_history, process))


async def record_mark(database: Database, process: UUID, service: str, name: str, number: int) -> datetime | None:
    """Record a mark and return its instant; None if a lost reply had recorded it already."""
    at: datetime | None = await database.write_value(SQL.record_mark, process, service, name, number)
    return at


async def record_loss(database: Database, service: str, name: str, seen: SeenHistory, found: FoundHistory) -> None:
    """Record lost commits in the database that has lost them."""
    await database.write_all(
        SQL.record_loss, new_id(), service, name, seen.at, seen.number, found.number, seen.timeline, found.timeline
    )


async def list_losses(database: Database, since: datetime) -> list[HistoryLoss]:
    """Return losses that were found since an instant, newest first."""
    return _LOSSES.all(await database.fetch_all(SQL.list_losses, since, _MAX_LOSSES))


async def find_clock_setback_seconds(database: Database) -> float:
    """Return by how many seconds the clock of the server is behind a mark; 0 if it is not."""
    ahead: float | None = await database.fetch_value(SQL.find_newest_mark_ahead)
    return max(0.0, ahead or 0.0)


async def delete_old_marks(database: Database, now: datetime) -> None:
    """Delete the marks of processes that have ended long ago."""
    await database.write_all(SQL.delete_old_marks, now - MARK_RETENTION)


async def delete_old_losses(database: Database, before: datetime) -> None:
    """Delete losses that were found before an instant."""
    await database.write_all(SQL.delete_old_losses, before)
