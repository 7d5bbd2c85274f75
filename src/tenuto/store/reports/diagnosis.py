"""Facts that explain why a task waits, by bounded index lookups. Read-only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import load_statements

SQL = load_statements(__file__)

MAX_LISTED_WORKERS = 1000

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """The first few rows of a result, and their total."""

    rows: list[Record]
    total_count: int

    @property
    def ids(self) -> tuple[UUID, ...]:
        return tuple(each["id"] for each in self.rows)


async def load_tasks(database: Database, ids: Sequence[UUID]) -> list[Record]:
    """Return open tasks with everything that may delay them."""
    return [
        {**row, "progress": None if row["progress"] is None else json.loads(row["progress"])}
        for row in map(dict, await database.fetch_all(SQL.load_tasks, list(ids)))
    ]


async def list_open_steps(database: Database, execution_id: UUID, group: int, limit: int) -> Sample:
    """Return the open steps of one group of an execution."""
    return _to_sample(await database.fetch_all(SQL.list_open_steps, execution_id, group, limit))


async def list_running_in_queue(database: Database, queue: str, limit: int) -> Sample:
    """Return the running tasks of a queue."""
    return _to_sample(await database.fetch_all(SQL.list_running_in_queue, queue, limit))


async def list_running_with_limit_key(database: Database, key: str, queue: str, limit: int) -> Sample:
    """Return the running tasks with a limit key; each row has the limit that applies to the queue."""
    return _to_sample(await database.fetch_all(SQL.list_running_with_limit_key, key, queue, limit))


async def list_running_on_last_chance(database: Database, limit: int) -> Sample:
    """Return the running last-chance task."""
    return _to_sample(await database.fetch_all(SQL.list_running_on_last_chance, limit))


async def list_running_of_manifests(
    database: Database, manifest_id: UUID | None, group: str | None, limit: int
) -> Sample:
    """Return the active runs of a manifest, of a group, or (neither given) of all manifests."""
    return _to_sample(await database.fetch_all(SQL.list_running_of_manifests, manifest_id, group, limit))


async def count_tasks_ahead(
    database: Database, queue: str, place: tuple[int, datetime, UUID], key: str | None, max_count: int
) -> int:
    """Count the tasks ahead of one, up to ``max_count``."""
    found: int = await database.fetch_value(SQL.count_tasks_ahead, queue, *place, key, max_count)
    return min(found, max_count)


async def list_workers_of_queue(database: Database, queue: str) -> list[Record]:
    """Return the live workers of a queue, including draining and silent ones."""
    return [dict(row) for row in await database.fetch_all(SQL.list_workers_of_queue, queue, MAX_LISTED_WORKERS)]


async def list_queue_capacities(database: Database, silence_limit: timedelta) -> list[Record]:
    """Return the slots and the limit of every queue that has either."""
    return [dict(row) for row in await database.fetch_all(SQL.list_queue_capacities, silence_limit)]


def _to_sample(rows: Sequence[Any]) -> Sample:
    found = [dict(row) for row in rows]
    return Sample(found, found[0]["in_all"] if found else 0)
