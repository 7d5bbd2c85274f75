"""A diagnosis costs a few index lookups, however many tasks exist."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from tenuto.diagnostics.task_diagnosis import MAX_COUNTED_TASKS, diagnose_task
from tenuto.postgres.database import Database
from tenuto.store.reports.diagnosis import SQL
from tests.store.test_query_plans import FILL, nodes

ARGUMENTS = {
    "load_tasks": "ARRAY['01972000-0000-7000-8000-000000000000']::uuid[]",
    "list_open_steps": "'01972000-0000-7000-8000-000000000000', 0, 10",
    "list_running_in_queue": "'queue 1', 10",
    "list_running_with_limit_key": "'key 1', 'queue 1', 10",
    "list_running_of_manifests": "'01972000-0000-7000-8000-000000000000', 'a group', 10",
    "count_tasks_ahead": "'queue 1', 3, now(), '01972000-0000-7000-8000-000000000000', 'key 1', 1001",
    "list_workers_of_queue": "'queue 1', 1000, 'job', 'bake'",
}


@pytest.fixture
async def default_database(url: str) -> AsyncIterator[Database]:
    """A database opened as the app opens it, with default planner settings."""
    database = await Database.open(url)
    yield database
    await database.close()


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_why_queries_do_not_scan_all_tasks(mode: str, default_database: Database) -> None:
    scanning = []
    async with default_database.connection() as connection:
        await connection.execute(FILL)
        await connection.execute("ANALYZE tenuto.tasks")
        await connection.execute(f"SET plan_cache_mode = {mode}")
        for name, arguments in ARGUMENTS.items():
            await connection.execute(f"PREPARE statement AS {getattr(SQL, name)}")
            text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE statement({arguments})")
            await connection.execute("DEALLOCATE statement")
            scans = [node for node in nodes(json.loads(text)) if node.get("Relation Name") == "tasks"]
            assert scans
            scanning += [name for node in scans if node["Node Type"].startswith("Seq Scan")]
    assert scanning == []


async def test_why_counts_tasks_ahead_up_to_its_bound(default_database: Database) -> None:
    await default_database.fetch_all(FILL)
    await default_database.fetch_all(
        "INSERT INTO tenuto.workers (id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at)"
        " VALUES (gen_random_uuid(), 'w', 'worker', 'here', 'boot', 1, '0', '{\"queue 1\"}', 5, now(), now())"
    )
    last: UUID = await default_database.fetch_value(
        "SELECT id FROM tenuto.tasks WHERE state = 'queued' AND queue = 'queue 1' AND limit_key IS NULL"
        " ORDER BY rank DESC, run_at DESC, id DESC LIMIT 1"
    )
    (reason,) = (await diagnose_task(default_database, last)).reasons
    assert f"more than {MAX_COUNTED_TASKS:,} tasks" in reason.message
