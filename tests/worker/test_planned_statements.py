"""The connections of a worker plan the statements of the hot path before a task has to wait for it."""

from __future__ import annotations

from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.postgres.database import Connection, Database
from tenuto.store.work.tasks import HOT_STATEMENTS
from tenuto.worker import worker as module
from tests.races.task_actions import enqueue
from tests.support.manifests import create_batch, create_manifest
from tests.support.service_fixtures import WorkerFactory

ROWS = """
    SELECT 'task' AS kind, id::text, xmin::text, xmax::text FROM tenuto.tasks
    UNION ALL SELECT 'bucket', scope, xmin::text, xmax::text FROM tenuto.rate_buckets
    UNION ALL SELECT 'activity', id::text, xmin::text, xmax::text FROM tenuto.activities
    ORDER BY kind, id
"""


async def planned_statements(connection: Connection) -> set[str]:
    rows = await connection.fetch("SELECT statement FROM pg_prepared_statements WHERE generic_plans > 0")
    return {row["statement"] for row in rows} & set(HOT_STATEMENTS)


async def test_planning_the_hot_statements_locks_and_changes_nothing(db: Database) -> None:
    await enqueue(db, 3)
    await create_batch(db, await create_manifest(db, max_active=1), 2)
    await db.fetch_all(
        "UPDATE tenuto.tasks SET state = 'scheduled' WHERE id = (SELECT id FROM tenuto.tasks ORDER BY id LIMIT 1)"
    )
    await db.fetch_all(
        "INSERT INTO tenuto.rate_buckets (scope, next_at, release_at) VALUES ('queue default', now(), now())"
    )
    before = await db.fetch_all(ROWS)
    await db.plan_statements(HOT_STATEMENTS, 2)
    assert await db.fetch_all(ROWS) == before
    async with db.connection() as one, db.connection() as other:
        assert [await planned_statements(each) for each in (one, other)] == [set(HOT_STATEMENTS)] * 2


async def test_worker_plans_the_hot_statements_after_its_start(
    app: Tenuto, worker: WorkerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PLANNING_DELAY_SECONDS", 0)
    async with worker() as one:
        planning: Any = one._planning
        await planning
        async with one._database.connection() as connection:
            assert await planned_statements(connection) == set(HOT_STATEMENTS)
