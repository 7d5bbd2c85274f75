"""Read-only queries of open tasks and activities."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.errors import Invalid, quoted
from tenuto.postgres.database import Database, Row
from tenuto.postgres.sql_loader import load_statements

SQL = load_statements(__file__)

_JSON = frozenset({"input", "output", "error", "progress", "policy"})

Record = dict[str, Any]


async def load_activity(database: Database, activity_id: UUID) -> Record | None:
    """Return one activity: planned, running or ended."""
    row = await database.fetch_one(SQL.load_activity, activity_id)
    return None if row is None else to_record(row)


async def list_attempts(database: Database, task_id: UUID) -> list[Record]:
    """Return all attempts at a task, oldest first."""
    return [to_record(row) for row in await database.fetch_all(SQL.list_attempts, task_id)]


async def has_task_ended(database: Database, task_id: UUID) -> bool | None:
    """Return whether the last attempt at a task was final; None if the task does not exist."""
    ended: bool | None = await database.fetch_value(SQL.has_task_ended, task_id)
    return ended


async def list_children(database: Database, parent_id: UUID, above: UUID | None, limit: int) -> list[Record]:
    """Return tasks and activities that an activity enqueued while it ran, oldest first."""
    return [to_record(row) for row in await database.fetch_all(SQL.list_children, parent_id, above, limit)]


async def list_job_statistics(database: Database, since: datetime, name: str | None, limit: int) -> list[Record]:
    """Return statistics of attempts that ended since an instant, by job."""
    return [dict(row) for row in await database.fetch_all(SQL.list_job_statistics, since, name, limit)]


async def load_task(database: Database, task_id: UUID) -> Record | None:
    """Return one open task."""
    row = await database.fetch_one(SQL.load_task, task_id)
    return None if row is None else to_record(row)


async def list_activities(database: Database, filters: ListFilters) -> list[Record]:
    """Return ended activities, newest first."""
    return [to_record(row) for row in await database.fetch_all(SQL.list_activities, *filters.values())]


async def list_tasks(database: Database, filters: ListFilters) -> list[Record]:
    """Return open tasks, newest first."""
    return [to_record(row) for row in await database.fetch_all(SQL.list_tasks, *filters.values())]


async def find_ids_by_prefix(database: Database, prefix: str) -> list[UUID]:
    """Return up to three ids of tasks or activities with a prefix that a user entered."""
    return [row["id"] for row in await database.fetch_all(SQL.find_ids_by_prefix, *id_range_of_prefix(prefix))]


def id_range_of_prefix(prefix: str) -> tuple[UUID, UUID]:
    """Return the lowest and the highest id with a prefix."""
    digits = prefix.replace("-", "").lower()
    if not digits or len(digits) > 32 or any(digit not in "0123456789abcdef" for digit in digits):
        raise Invalid(
            f"{quoted(prefix, 60)} is not an id or the start of one",
            code="id.not_valid",
            field="id",
            remedy="copy it from a list",
        )
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


async def count_outcomes(database: Database, tag: str | None = None, initiator_id: str | None = None) -> dict[str, int]:
    """Count the outcomes of all tasks with a tag, of one initiator, or both."""
    row = await database.fetch_one(SQL.count_outcomes, tag, initiator_id)
    assert row is not None
    return dict(row)


class ListFilters:
    """Optional filters of a list."""

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
            raise Invalid(f"limit {limit} is not between 1 and 500", code="list.limit.out_of_range", field="limit")
        self._values = (below, state, name, queue, tag, limit)

    def values(self) -> tuple[Any, ...]:
        return self._values


def to_record(row: Row) -> Record:
    """Return a row with its JSON columns parsed."""
    return {key: json.loads(value) if key in _JSON and value is not None else value for key, value in row.items()}
