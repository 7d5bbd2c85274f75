"""Changes since an instant, for the event feed. Read-only.

Every query uses an index except the task counts of queues, whose cost grows with the backlog; the feed runs it less
often then.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import load_statements

SQL = load_statements(__file__)

Record = dict[str, Any]


async def list_open_executions(database: Database, limit: int) -> list[Record]:
    """Return open executions, newest first."""
    return [dict(row) for row in await database.fetch_all(SQL.list_open_executions, limit)]


async def list_ended_executions(database: Database, since: datetime, above: UUID, limit: int) -> list[Record]:
    """Return executions that ended after a cursor of instant and id, oldest first."""
    return [dict(row) for row in await database.fetch_all(SQL.list_ended_executions, since, above, limit)]


async def count_ended_activities(database: Database, since: datetime, span: timedelta, limit: int) -> list[Record]:
    """Count attempts that ended since an instant, by time span, job and outcome."""
    return [dict(row) for row in await database.fetch_all(SQL.count_ended_activities, since, span, limit)]


async def list_changed_dead_letters(database: Database, since: datetime, above: UUID, limit: int) -> list[Record]:
    """Return dead letters that were written or resolved after a cursor of instant and id."""
    return [dict(row) for row in await database.fetch_all(SQL.list_changed_dead_letters, since, above, limit)]


async def list_definition_changes(database: Database, since: datetime, above: UUID, limit: int) -> list[Record]:
    """Return changes of schedules and manifests after a cursor of instant and id."""
    return [dict(row) for row in await database.fetch_all(SQL.list_definition_changes, since, above, limit)]


async def load_queues_and_workers(database: Database) -> dict[str, Any]:
    """Return the current task counts of the queues and the live workers."""
    row = await database.fetch_one(SQL.load_queues_and_workers)
    assert row is not None
    return {"queues": json.loads(row["queues"]), "workers": json.loads(row["workers"])}
