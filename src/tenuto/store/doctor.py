"""What the doctor asks the database: each question by its name, the rows that answer it. Nothing here judges."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tenuto.store.database import Database
from tenuto.store.statements import beside

SQL = beside(__file__)


async def ask(database: Database, question: str, *values: Any) -> list[dict[str, Any]]:
    """The rows that offend against one rule; none if it holds."""
    return [dict(row) for row in await database.all(getattr(SQL, question), *values)]


async def server(database: Database) -> dict[str, Any]:
    """Version, settings that decide whether a commit lasts, and the time by the server's clock."""
    row = await database.one(SQL.server)
    assert row is not None
    return dict(row)


async def history_begins(database: Database, horizon: UUID, most: int) -> UUID:
    """The task from which on histories are looked at, so that the cost does not grow with the past."""
    begins: UUID = await database.value(SQL.history_begins, horizon, most)
    return begins
