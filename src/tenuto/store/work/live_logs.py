"""Rows of live logs: the logs of running attempts that clients watch, and the watches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from tenuto.postgres.bulk_copy import to_columns
from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import RowMapper

SQL = load_statements(__file__)

WATCH_TIME = timedelta(seconds=15)
"""How long a request or subscription watches a log."""
MAX_WATCHED = 1000
_ABANDONED_AFTER = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class LiveText:
    """A part of a live log."""

    first_offset: int
    """Number of characters of the log before it."""
    text: str


_TEXTS = RowMapper(LiveText, SQL.list_texts)


async def watch(database: Database, activity_ids: Sequence[UUID]) -> None:
    """Watch the logs of running attempts for 15 seconds from now on."""
    await database.write_all(SQL.watch, activity_ids, WATCH_TIME)


async def list_watched(database: Database) -> list[UUID]:
    """Return the attempts whose logs are watched."""
    return [row["activity_id"] for row in await database.fetch_all(SQL.list_watched, MAX_WATCHED)]


async def append_texts(database: Database, texts: Sequence[tuple[UUID, int, str]]) -> None:
    """Append texts, given as (activity, first offset, text)."""
    await database.write_all(SQL.append_texts, *to_columns(texts))


async def trim_texts(database: Database, floors: Sequence[tuple[UUID, int]]) -> None:
    """Delete the texts before offsets, given as (activity, offset)."""
    await database.write_all(SQL.trim_texts, *to_columns(floors))


async def remove_live_logs(database: Database, activity_ids: Sequence[UUID]) -> None:
    """Delete the live logs of attempts that have ended or that no client watches."""
    await database.write_all(SQL.remove_live_logs, activity_ids)


async def remove_abandoned(database: Database) -> None:
    """Delete expired watches and the texts that a lost worker has left."""
    await database.write_all(SQL.remove_abandoned, _ABANDONED_AFTER)


async def list_texts(database: Database, activity_id: UUID, after_offset: int) -> list[LiveText]:
    """Return the parts of a live log that end after an offset, in order."""
    return _TEXTS.all(await database.fetch_all(SQL.list_texts, activity_id, after_offset))
