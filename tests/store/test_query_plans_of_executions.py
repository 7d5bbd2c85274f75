"""Plans of the statements that advance executions and fire schedules (S8: a hand-over takes milliseconds).

As in `test_query_plans`: a cached plan must be right for empty tables and for a hundred thousand open executions, so
every scan needs an index condition.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tenuto.postgres.database import Connection, Database
from tenuto.store.definitions.schedules import SQL as SCHEDULES
from tenuto.store.work.executions import SQL as EXECUTIONS
from tests.store.test_query_plans import nodes, plan_of

pytestmark = pytest.mark.slow

STATEMENTS = {**dict(EXECUTIONS), **dict(SCHEDULES)}

# For each statement the indexes that it must use.
HOT = {
    "lock_executions": {"executions_pkey"},
    "list_finished_groups": {"executions_pkey", "tasks_of_execution"},
    "start_groups": {"executions_pkey", "tasks_of_execution"},
    "end_executions": {"executions_pkey", "tasks_suspended", "occurrences_queued"},
    "hold_steps_of_paused": {"tasks_of_execution", "executions_pkey"},
    "lock_unclaimed_steps": {"tasks_of_execution"},
    "list_execution_trees": {"executions_pkey", "tasks_of_execution", "executions_of_step"},
    "lock_definition": {"schedules_name_key"},
    "lock_due_schedules": {"schedules_due"},
    "load_run_blockers": {"executions_active", "occurrences_queued", "occurrences_once"},
    "list_active_executions": {"executions_active"},
    "record_firings": {"schedules_pkey"},
    "load_first_queued_run": {"occurrences_queued"},
}
# Small tables, which may be scanned.
BESIDES = {"queues", "workers"}

FILL = """
INSERT INTO tenuto.executions (id, schedule_id, schedule_name, version, origin, state, alone, plan, current_group,
                               total_groups, total_steps, due_at, started_at, ended_at, initiator_type, initiator_name)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, gen_random_uuid(), 'Nightly', 1, 'trigger',
       CASE WHEN ended THEN 'completed' ELSE 'in_progress' END, true, '[]', 0, 4, 6, now(), now(),
       CASE WHEN ended THEN now() END, 'system', 'test'
FROM (SELECT n, n > 100 AND n % 2 = 0 AS ended FROM generate_series({first}, {last}) AS n) AS many;

INSERT INTO tenuto.tasks (id, activity_id, state, queue, rank, run_at, kind, name, input, policy, created_at,
                          initiator_type, initiator_name, execution_id, group_index, step_index)
SELECT id, id, CASE WHEN step = 0 THEN 'queued' ELSE 'waiting' END, 'default', 0, now(), 'job', 'bake', '{{}}', '{{}}',
       now(), 'system', 'test', ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, step, step
FROM (SELECT gen_random_uuid() AS id, n, step
      FROM generate_series({first}, {last}) AS n, generate_series(0, 3) AS step) AS many;

INSERT INTO tenuto.schedules (id, name, description, enabled, trigger, plan, overlap, misfire, version, origin,
                              created_at, updated_at, next_run_at, planned)
SELECT gen_random_uuid(), 'schedule ' || n, '', true, '{{}}', '[]', 'skip', '{{}}', 1, 'hand', now(), now(),
       now() + n * interval '1 h', true
FROM generate_series({first}, {last}) AS n;

INSERT INTO tenuto.occurrences (id, schedule_id, schedule_name, due_at, origin, decision, turn, execution_id,
                                decided_at, decided_by)
SELECT gen_random_uuid(), gen_random_uuid(), 'Nightly', now(), 'trigger',
       CASE WHEN queued THEN 'queued' ELSE 'fired' END, CASE WHEN queued THEN 'overlap' END,
       CASE WHEN NOT queued THEN gen_random_uuid() END, now(), 'test'
FROM (SELECT n % 2 = 0 AS queued FROM generate_series({first}, {last}) AS n) AS many;
"""
TABLES = ("executions", "tasks", "schedules", "occurrences")


async def fill(connection: Connection, first: int, last: int) -> None:
    await connection.execute(FILL.format(first=first, last=last))


@pytest.mark.parametrize("state", ["never analysed", "no task left", "full"])
async def test_execution_statement_uses_index_with_any_statistics(state: str, db: Database) -> None:
    astray: dict[str, Any] = {}
    async with db.connection() as connection:
        if state != "never analysed":
            await fill(connection, 1, 10_000)
            if state == "no task left":
                await connection.execute("DELETE FROM tenuto.tasks")
            await connection.execute(f"VACUUM (ANALYZE) {', '.join(f'tenuto.{table}' for table in TABLES)}")
        for name, wanted in HOT.items():
            plan = await plan_of(connection, name, STATEMENTS[name])
            by_index = {node["Index Name"] for node in plan if "Index Name" in node}
            whole = [_scanned_name(node) for node in plan if _is_full_scan(node)]
            # Without statistics any selective index is acceptable.
            if whole or (state != "never analysed" and not wanted <= by_index):
                astray[name] = {"over the whole": whole, "by index": by_index}
    assert astray == {}


def _is_full_scan(node: dict[str, Any]) -> bool:
    if node["Node Type"] == "Seq Scan":
        return node["Relation Name"] not in BESIDES
    return "Index Name" in node and "Index Cond" not in node and node.get("Relation Name") not in BESIDES


def _scanned_name(node: dict[str, Any]) -> str:
    return f"{node['Node Type']} {node.get('Index Name', '')} {node.get('Relation Name', '')}"


async def test_next_due_instant_is_the_first_index_entry(db: Database) -> None:
    async with db.connection() as connection:
        await fill(connection, 1, 5_000)
        await connection.execute("VACUUM (ANALYZE) tenuto.schedules")
        plan = await explain_analyze(connection, "load_next_due_at", "'{}', '{}'")
    (scan,) = [node for node in plan if node.get("Index Name") == "schedules_due"]
    assert scan["Actual Rows"] == 1


_IDS = ", ".join(f"'00000000-0000-7000-8000-{number:012x}'" for number in range(1, 51))
FEW = f"ARRAY[{_IDS}]::uuid[]"
MOVING = {
    "lock_executions": FEW,
    "list_finished_groups": FEW,
    "start_groups": f"{FEW}, array_fill(1, ARRAY[50]), array_fill(0, ARRAY[50]), now(), NULL, NULL, '{{}}', 0, NULL,"
    " NULL",
    "end_executions": f"{FEW}, array_fill('completed'::text, ARRAY[50]), array_fill(0, ARRAY[50]),"
    " array_fill(NULL::text, ARRAY[50]), now()",
    "hold_steps_of_paused": FEW,
    "lock_unclaimed_steps": FEW,
    "list_execution_trees": FEW,
    "lock_due_schedules": "now(), 100, '{}', '{}'",
    "load_run_blockers": FEW,
}


async def test_cost_of_advancing_is_independent_of_the_number_of_executions(db: Database) -> None:
    """With plans made while the tables were empty."""
    touched: dict[str, list[int]] = {name: [] for name in MOVING}
    async with db.connection() as connection:
        for table in TABLES:  # an ANALYZE would discard the plans
            await connection.execute(f"ALTER TABLE tenuto.{table} SET (autovacuum_enabled = off)")
        for name, values in MOVING.items():
            await explain_analyze(connection, name, values)
        for first, last in ((1, 100), (101, 20_000)):
            await fill(connection, first, last)
            for name, values in MOVING.items():
                (top, *_) = await explain_analyze(connection, name, values)
                touched[name].append(top["Shared Hit Blocks"] + top["Shared Read Blocks"])
    # An index has one more level then; a full scan would read thousands of pages.
    grown = {name: (small, large) for name, (small, large) in touched.items() if large > small * 4 + 100}
    assert grown == {}


async def explain_analyze(connection: Connection, name: str, values: str) -> list[dict[str, Any]]:
    """Execute a statement with its cached plan, roll back, and return what it did."""
    kept = await connection.fetchval("SELECT EXISTS (SELECT FROM pg_prepared_statements WHERE name = $1)", name)
    if not kept:
        await connection.execute(f"PREPARE {name} AS {STATEMENTS[name]}")
    transaction = connection.transaction()
    await transaction.start()
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {name}({values})")
    await transaction.rollback()
    return list(nodes(json.loads(text)))
