"""Reading: open tasks, and activities before, during and after. Nothing here changes a row."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.errors import Invalid
from tenuto.postgres.database import Database, Row
from tenuto.postgres.sql_loader import beside

SQL = beside(__file__)

_JSON = frozenset({"input", "output", "error", "progress", "policy"})

Record = dict[str, Any]


async def activity(database: Database, activity_id: UUID) -> Record | None:
    """One activity, whether it lies ahead, is in progress or is past."""
    row = await database.one(SQL.activity, activity_id)
    return None if row is None else record(row)


async def attempts(database: Database, task_id: UUID) -> list[Record]:
    """Every attempt at a task so far, the first one first."""
    return [record(row) for row in await database.all(SQL.attempts_of_task, task_id)]


async def has_ended(database: Database, task_id: UUID) -> bool | None:
    """Whether the last attempt at a task was its last; None if there is no such task."""
    ended: bool | None = await database.value(SQL.is_over, task_id)
    return ended


async def children(database: Database, parent_id: UUID, above: UUID | None, limit: int) -> list[Record]:
    """What was asked for by an activity while it ran, the first one first."""
    return [record(row) for row in await database.all(SQL.children, parent_id, above, limit)]


async def stats(database: Database, since: datetime, name: str | None, limit: int) -> list[Record]:
    """What has ended since, by name."""
    return [dict(row) for row in await database.all(SQL.stats, since, name, limit)]


async def task(database: Database, task_id: UUID) -> Record | None:
    """One open task."""
    row = await database.one(SQL.task, task_id)
    return None if row is None else record(row)


async def list_activities(database: Database, filters: Filters) -> list[Record]:
    """Past activities, newest first."""
    return [record(row) for row in await database.all(SQL.list_activities, *filters.values())]


async def list_tasks(database: Database, filters: Filters) -> list[Record]:
    """Open tasks, newest first."""
    return [record(row) for row in await database.all(SQL.list_tasks, *filters.values())]


async def find(database: Database, prefix: str) -> list[UUID]:
    """Up to three ids of tasks or activities that begin with what a person typed."""
    return [row["id"] for row in await database.all(SQL.find_by_prefix, *ids_beginning(prefix))]


def ids_beginning(prefix: str) -> tuple[UUID, UUID]:
    """The lowest and the highest id that begin so."""
    digits = prefix.replace("-", "").lower()
    if not digits or len(digits) > 32 or any(digit not in "0123456789abcdef" for digit in digits):
        raise Invalid(f"{prefix!r:.60} is not an id", field="id", remedy="copy it from a list")
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


async def outcome_counts(database: Database, tag: str | None = None, initiator_id: str | None = None) -> dict[str, int]:
    """What became of all tasks with a tag, of one initiator, or both."""
    row = await database.one(SQL.outcome_counts, tag, initiator_id)
    assert row is not None
    return dict(row)


class Filters:
    """What a list is narrowed to; everything may be left out."""

    def __init__(
        self,
        *,
        below: UUID | None = None,
        state: str | None = None,
        name: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        limit: int = 50,
    ) -> None:
        if not 1 <= limit <= 500:
            raise Invalid("must be from 1 to 500", field="limit")
        self._values = (below, state, name, queue, tag, limit)

    def values(self) -> tuple[Any, ...]:
        return self._values


def record(row: Row) -> Record:
    """A row as plain data."""
    return {key: json.loads(value) if key in _JSON and value is not None else value for key, value in row.items()}
