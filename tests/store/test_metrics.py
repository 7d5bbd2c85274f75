"""Metrics queries: they use indexes whatever the size of the tables, and return the right values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tenuto.postgres.database import Database
from tenuto.store.reports import metrics, metrics_by_name
from tests.store.test_query_plans import FILL, nodes

# For each statement the tables that it must not scan, with the indexes of which it must use one.
WAYS: dict[str, dict[str, set[str]]] = {
    "count_queued_by_queue": {"tasks": {"tasks_to_take", "tasks_to_take_by_key"}},
    "count_running_by_queue": {"tasks": {"tasks_held"}},
    "count_scheduled": {"tasks": {"tasks_to_come"}},
    "count_waiting": {"tasks": {"tasks_of_execution", "tasks_of_batch"}},
    "count_open_dead_letters": {
        "dead_letters": {
            "dead_letters_open",
            "dead_letters_one_open",
            "dead_letters_by_age",
            "dead_letters_open_by_name",
        }
    },
    "count_open_executions": {"executions": {"executions_active", "executions_one_active"}},
    "count_due_definitions": {"schedules": {"schedules_due"}, "manifests": {"manifests_due"}},
    "find_most_overdue_schedule": {"schedules": {"schedules_due"}},
    "misses_scheduler": {"schedules": {"schedules_due"}, "manifests": {"manifests_due"}},
    "list_services": {"workers": {"workers_one_alive_per_name"}},
}
WITHOUT_TABLES = {"ping", "list_repairs", "list_unknown_jobs", "summarise_recent_attempts"}
VALUES = {
    "list_unknown_jobs": (metrics.UNKNOWN_JOB_SAMPLE,),
    "summarise_recent_attempts": (metrics.RECENT_WINDOW,),
}

PAST = """
INSERT INTO tenuto.activities (id, task_id, attempt, status, final, kind, name, queue, priority, created_at, run_at,
    claimed_at, started_at, ended_at, fence, failures, losses, input, initiator_type, initiator_name)
SELECT id, id, 1, CASE WHEN n % 10 = 0 THEN 'failed' ELSE 'completed' END, true, 'job', 'bake', 'default', 0, at, at,
       at, at + interval '1 s', at + interval '3 s', 1, 0, 0, '{}', 'system', 'test'
FROM (
    SELECT n, now() - interval '1 s' * (60000 - n) AS at,
           (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || '7'
            || substr(md5(n::text), 1, 19))::uuid AS id
    FROM generate_series(1, 60000) AS n
) AS many
"""


BY_NAME: dict[str, dict[str, set[str]]] = {
    "count_tasks_by_job": {"tasks": {"tasks_to_take"}},
    "list_schedule_figures": {"executions": {"executions_of_schedule"}},
    "count_open_executions": {"executions": {"executions_active", "executions_one_active"}},
    "count_recent_executions": {"executions": {"executions_ended"}},
}
BY_NAME_WITHOUT_TABLES = {"list_manifest_figures", "count_enabled_definitions"}
BY_NAME_VALUES: dict[str, tuple[Any, ...]] = {
    "count_tasks_by_job": (metrics_by_name.QUEUED_SAMPLE, metrics_by_name.MAX_QUEUES),
    "list_schedule_figures": (50,),
    "count_recent_executions": (metrics_by_name.RECENT_EXECUTIONS_WINDOW, metrics_by_name.MAX_RECENT_EXECUTIONS),
}


async def plan(connection: Any, statement: str, values: Sequence[Any]) -> list[dict[str, Any]]:
    text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) {statement}", *values)
    return list(nodes(json.loads(text)))


@pytest.mark.parametrize("state", ["empty", "full"])
async def test_metrics_queries_use_indexes(state: str, db: Database) -> None:
    assert {name for name, _ in metrics.SQL} == WAYS.keys() | WITHOUT_TABLES
    assert {name for name, _ in metrics_by_name.SQL} == BY_NAME.keys() | BY_NAME_WITHOUT_TABLES
    statements = [(name, getattr(metrics.SQL, name), VALUES.get(name, ()), tables) for name, tables in WAYS.items()]
    statements += [
        (name, getattr(metrics_by_name.SQL, name), BY_NAME_VALUES.get(name, ()), tables)
        for name, tables in BY_NAME.items()
    ]
    astray = []
    async with db.connection() as connection:
        if state == "full":
            await connection.execute(FILL)
        await connection.execute("ANALYZE")
        async with connection.transaction():
            await connection.execute(metrics.SET_SHORT_TIMEOUTS)
            for name, statement, values, tables in statements:
                scans = await plan(connection, statement, values)
                used = {str(node["Index Name"]) for node in scans if "Index Name" in node}
                walked = {node.get("Relation Name") for node in scans if "Seq Scan" in node["Node Type"]}
                astray += [(name, table, used) for table, ways in tables.items() if not ways & used or table in walked]
    assert astray == []


async def test_recent_attempts_are_found_without_reading_old_partitions(db: Database) -> None:
    async with db.connection() as connection:
        await connection.execute(PAST)
        await connection.execute("VACUUM ANALYZE tenuto.activities")
        async with connection.transaction():
            await connection.execute(metrics.SET_SHORT_TIMEOUTS)
            text = await connection.fetchval(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {metrics.SQL.summarise_recent_attempts}",
                metrics.RECENT_WINDOW,
            )
            pages = await connection.fetchval(
                "SELECT sum(pg_relation_size(inhrelid)) / 8192 FROM pg_inherits"
                " WHERE inhparent = 'tenuto.activities'::regclass"
            )
        (top, *_) = nodes(json.loads(text))
        touched = top["Shared Hit Blocks"] + top["Shared Read Blocks"]
        assert touched < pages / 4, f"{touched} of {pages} pages"
    found = await metrics.load_metrics(db)
    passed = await db.fetch_value("SELECT extract(epoch FROM clock_timestamp() - max(run_at)) FROM tenuto.activities")
    recent = {each.state: each for each in found.recent}
    # One per second, up to three seconds after the last; one less for every second that has passed since.
    assert 62 - passed <= recent["completed"].attempt_count + recent["failed"].attempt_count <= 63
    assert recent["failed"].run_seconds == 2.0 * recent["failed"].attempt_count
    assert (recent["failed"].max_run_seconds, recent["failed"].max_start_delay_seconds) == (2.0, 1.0)


async def test_metrics_of_an_empty_installation_are_zero(db: Database) -> None:
    found = await metrics.load_metrics(db)
    assert (found.queued, found.running, found.services, found.repairs, found.recent) == ([], [], [], [], [])
    assert (found.scheduled_count, found.waiting_count, found.open_dead_letter_count) == (0, 0, 0)
    assert found.executions == metrics.OpenExecutions(0, 0)
    assert found.due == [metrics.DueDefinitions("schedule", 0, 0.0), metrics.DueDefinitions("manifest", 0, 0.0)]
