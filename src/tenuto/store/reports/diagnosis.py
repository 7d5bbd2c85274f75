"""What may hold a task up, read in a few bounded look-ups by index. Nothing is judged here and no row is changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import beside

SQL = beside(__file__)

MOST_WORKERS = 1000

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Some:
    """The first few of something, and how many there are in all."""

    first: list[Record]
    in_all: int

    @property
    def ids(self) -> tuple[UUID, ...]:
        return tuple(each["id"] for each in self.first)


async def tasks(database: Database, ids: Sequence[UUID]) -> list[Record]:
    """Open tasks with their execution, the execution they wait for, their queue, manifest, groups, batch and holder."""
    return [
        {**row, "progress": None if row["progress"] is None else json.loads(row["progress"])}
        for row in map(dict, await database.all(SQL.tasks, list(ids)))
    ]


async def open_steps(database: Database, execution_id: UUID, group: int, limit: int) -> Some:
    """What is left of one group of an execution."""
    return _some(await database.all(SQL.open_steps, execution_id, group, limit))


async def held_in_queue(database: Database, queue: str, limit: int) -> Some:
    """The tasks of a queue that run."""
    return _some(await database.all(SQL.held_in_queue, queue, limit))


async def held_by_key(database: Database, key: str, queue: str, limit: int) -> Some:
    """The tasks with a limited key that run; each row has the limit that counts for the queue."""
    return _some(await database.all(SQL.held_by_key, key, queue, limit))


async def held_alone(database: Database, limit: int) -> Some:
    """The task that runs on its last chance."""
    return _some(await database.all(SQL.held_alone, limit))


async def held_of_manifests(database: Database, manifest_id: UUID | None, group: str | None, limit: int) -> Some:
    """The active runs of a manifest, or of a group; of neither: of all manifests."""
    return _some(await database.all(SQL.held_of_manifests, manifest_id, group, limit))


async def before(database: Database, queue: str, place: tuple[int, datetime, UUID], key: str | None, most: int) -> int:
    """How many are taken before a task; ``most`` stands for that many or more."""
    found: int = await database.value(SQL.before, queue, *place, key, most)
    return min(found, most)


async def workers_of(database: Database, queue: str) -> list[Record]:
    """The workers that serve a queue, also those that leave or are silent."""
    return [dict(row) for row in await database.all(SQL.workers_of_queue, queue, MOST_WORKERS)]


async def capacity(database: Database, silence: timedelta) -> list[Record]:
    """The slots and the bound of every queue that has either."""
    return [dict(row) for row in await database.all(SQL.capacity, silence)]


def _some(rows: Sequence[Any]) -> Some:
    found = [dict(row) for row in rows]
    return Some(found, found[0]["in_all"] if found else 0)
