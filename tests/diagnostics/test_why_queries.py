"""Asking why costs a few look-ups by index, however much there is: no walk over all tasks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from tenuto.diagnostics.why import MAX_COUNTED_TASKS, diagnose_task
from tenuto.postgres.database import Database
from tenuto.store.reports.diagnosis import SQL
from tests.store.test_query_plans import FILL, nodes

ARGUMENTS = {
    "tasks": "ARRAY['01972000-0000-7000-8000-000000000000']::uuid[]",
    "open_steps": "'01972000-0000-7000-8000-000000000000', 0, 10",
    "held_in_queue": "'queue 1', 10",
    "held_by_key": "'key 1', 'queue 1', 10",
    "held_of_manifests": "'01972000-0000-7000-8000-000000000000', 'a group', 10",
    "before": "'queue 1', 3, now(), '01972000-0000-7000-8000-000000000000', 'key 1', 1001",
    "workers_of_queue": "'queue 1', 1000",
}


@pytest.fixture
async def ours(url: str) -> AsyncIterator[Database]:
    """As the app opens it: with the planner's own mind."""
    database = await Database.open(url)
    yield database
    await database.close()


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_no_look_up_walks_over_all_tasks(mode: str, ours: Database) -> None:
    walks = []
    async with ours.connection() as connection:
        await connection.execute(FILL)
        await connection.execute("ANALYZE tenuto.tasks")
        await connection.execute(f"SET plan_cache_mode = {mode}")
        for name, arguments in ARGUMENTS.items():
            await connection.execute(f"PREPARE look AS {getattr(SQL, name)}")
            text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE look({arguments})")
            await connection.execute("DEALLOCATE look")
            scans = [node for node in nodes(json.loads(text)) if node.get("Relation Name") == "tasks"]
            assert scans
            walks += [name for node in scans if node["Node Type"].startswith("Seq Scan")]
    assert walks == []


async def test_what_goes_before_a_task_is_counted_no_further_than_the_bound(ours: Database) -> None:
    await ours.fetch_all(FILL)
    await ours.fetch_all(
        "INSERT INTO tenuto.workers (id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at)"
        " VALUES (gen_random_uuid(), 'w', 'worker', 'here', 'boot', 1, '0', '{\"queue 1\"}', 5, now(), now())"
    )
    last: UUID = await ours.fetch_value(
        "SELECT id FROM tenuto.tasks WHERE state = 'queued' AND queue = 'queue 1' AND limit_key IS NULL"
        " ORDER BY rank DESC, run_at DESC, id DESC LIMIT 1"
    )
    (reason,) = (await diagnose_task(ours, last)).reasons
    assert f"more than {MAX_COUNTED_TASKS:,} tasks go before it" in reason.text
