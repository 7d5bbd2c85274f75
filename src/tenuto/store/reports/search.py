"""Search for objects by the beginning of an id, or by a part of a name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import RowMapper

SQL = load_statements(__file__)

ObjectKind = Literal[
    "execution", "task", "one_shot", "activity", "dead_letter", "batch", "operation", "schedule", "manifest", "worker",
    "queue", "job",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class SearchHit:
    """An object that a search has found."""

    kind: ObjectKind
    id: UUID | None
    """None for queues and jobs, which have a name only."""
    name: str
    state: str | None


_HITS = RowMapper(SearchHit, SQL.find_by_id, SQL.find_by_name)


async def find_by_id(database: Database, low: UUID, high: UUID, limit: int) -> list[SearchHit]:
    """Return objects of every kind whose id is in a range."""
    return _HITS.all(await database.fetch_all(SQL.find_by_id, low, high, limit))


async def find_by_name(database: Database, text: str, limit: int) -> list[SearchHit]:
    """Return objects whose name contains a text, whole names and beginnings first."""
    return _HITS.all(await database.fetch_all(SQL.find_by_name, text, limit))
