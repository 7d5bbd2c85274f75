"""What has changed since an instant, in few words: for whoever watches. Reads only.

Every question goes by an index but one: how much is in each queue is counted, which takes as long as there is work. Who
looks often must look less often then, as the feed does.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import beside

SQL = beside(__file__)

Record = dict[str, Any]


async def executions_under_way(database: Database, limit: int) -> list[Record]:
    """Executions that have not ended, the newest first."""
    return [dict(row) for row in await database.all(SQL.executions_under_way, limit)]


async def executions_ended(database: Database, since: datetime, above: UUID, limit: int) -> list[Record]:
    """Executions that ended after an instant, or at it with a higher id; the first of them first."""
    return [dict(row) for row in await database.all(SQL.executions_ended, since, above, limit)]


async def activities_ended(database: Database, since: datetime, span: timedelta, limit: int) -> list[Record]:
    """How many attempts ended from an instant on, by span of time, job, and how."""
    return [dict(row) for row in await database.all(SQL.activities_ended, since, span, limit)]


async def letters_changed(database: Database, since: datetime, above: UUID, limit: int) -> list[Record]:
    """Dead letters that came, or were resolved, after an instant, or at it with a higher id."""
    return [dict(row) for row in await database.all(SQL.letters_changed, since, above, limit)]


async def definitions_changed(database: Database, since: datetime, above: UUID, limit: int) -> list[Record]:
    """Changes of schedules and manifests after an instant, or at it with a higher id."""
    return [dict(row) for row in await database.all(SQL.definitions_changed, since, above, limit)]


async def standing(database: Database) -> dict[str, Any]:
    """What is there right now: queues with their counts, and the workers that are alive."""
    row = await database.one(SQL.standing)
    assert row is not None
    return {"queues": json.loads(row["queues"]), "workers": json.loads(row["workers"])}
