"""What has changed since an instant, in few words: for whoever watches. Reads only; every question goes by an index."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from tenuto.store.database import Database
from tenuto.store.statements import beside

SQL = beside(__file__)

Record = dict[str, Any]


async def executions_under_way(database: Database, limit: int) -> list[Record]:
    """Executions that have not ended, the newest first."""
    return [dict(row) for row in await database.all(SQL.executions_under_way, limit)]


async def executions_ended(database: Database, since: datetime, limit: int) -> list[Record]:
    """Executions that ended after an instant, the first of them first."""
    return [dict(row) for row in await database.all(SQL.executions_ended, since, limit)]


async def activities_ended(database: Database, since: datetime) -> list[Record]:
    """How many attempts ended after an instant, by job and by how."""
    return [dict(row) for row in await database.all(SQL.activities_ended, since)]


async def letters_changed(database: Database, since: datetime, limit: int) -> list[Record]:
    """Dead letters that came, or were resolved, after an instant."""
    return [dict(row) for row in await database.all(SQL.letters_changed, since, limit)]


async def definitions_changed(database: Database, since: datetime, limit: int) -> list[Record]:
    """Schedules and manifests that were changed after an instant, the last change of each."""
    return [dict(row) for row in await database.all(SQL.definitions_changed, since, limit)]


async def standing(database: Database) -> dict[str, Any]:
    """What is there right now: queues with their counts, and the workers that are alive."""
    row = await database.one(SQL.standing)
    assert row is not None
    return {"queues": json.loads(row["queues"]), "workers": json.loads(row["workers"])}
