"""Digests of the state of single objects, by primary key. Read-only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import load_statements

SQL = load_statements(__file__)

KINDS = ("execution", "task", "batch", "log", "operation")
"""Kinds of objects, in the order of the parameters of the statement."""


async def load_digests(database: Database, ids: Mapping[str, Sequence[UUID]]) -> dict[str, str]:
    """Return the digests of objects, given by kind; the key is ``KIND:ID``. All by one statement."""
    rows = await database.fetch_all(SQL.load_digests, *(list(ids.get(kind, ())) for kind in KINDS))
    return {row["topic"]: row["digest"] for row in rows}
