"""Plans of the hot statements under the settings of a worker's connection (W3: cost independent of the backlog).

A plan is cached for the life of a connection, so it must use indexes while the table is empty and when it is full, and
never scan the whole of `tasks`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tenuto.postgres.database import Connection, Database
from tenuto.store.work.activities import SQL as ACTIVITIES
from tenuto.store.work.tasks import LIMIT_KEYS_PER_CLAIM
from tenuto.store.work.tasks import SQL as TASKS
from tests.support.tasks import Register

pytestmark = pytest.mark.slow

# For each statement the sets of indexes of which it must use one.
HOT = {
    "claim_tasks": [{"tasks_to_take"}],
    "claim_limited_tasks": [{"tasks_to_take", "tasks_to_take_by_key", "tasks_held"}],
    "finish_tasks": [{"tasks_pkey"}],
    "retry_tasks": [{"tasks_pkey"}],
    "renew_leases": [{"tasks_pkey"}, {"tasks_held"}],
    "return_tasks_to_queue": [{"tasks_pkey"}, {"tasks_held"}],
    "promote_due_tasks": [{"tasks_to_come"}],
    "lock_expired_tasks": [{"tasks_held"}],
    "lock_tasks_of_worker": [{"tasks_held"}],
    "list_cancel_requests": [{"tasks_held"}],
    "has_recoverable_tasks": [{"tasks_held"}],
}

FILL = """
INSERT INTO tenuto.tasks (id, activity_id, state, queue, rank, run_at, kind, name, input, policy, created_at, worker_id,
                          lease_until, claimed_at, limit_key, limit_max, initiator_type, initiator_name)
SELECT id, id, state, 'queue ' || n % 3, n % 5, now(), 'job', 'bake', '{}', '{}', now(),
       CASE WHEN state = 'running' THEN gen_random_uuid() END, CASE WHEN state = 'running' THEN now() END,
       CASE WHEN state = 'running' THEN now() END, CASE WHEN n % 7 = 0 THEN 'key ' || n % 2 END,
       CASE WHEN n % 7 = 0 THEN 3 END, 'system', 'test'
FROM (SELECT gen_random_uuid() AS id, n,
             CASE WHEN n % 100 = 0 THEN 'running' WHEN n % 10 = 0 THEN 'scheduled' ELSE 'queued' END AS state
      FROM generate_series(1, 50000) AS n) AS many
"""


def nodes(plan: Any) -> Iterator[dict[str, Any]]:
    if isinstance(plan, dict):
        if "Node Type" in plan:
            yield plan
        for value in plan.values():
            yield from nodes(value)
    elif isinstance(plan, list):
        for value in plan:
            yield from nodes(value)


async def plan_of(connection: Connection, name: str, statement: str) -> list[dict[str, Any]]:
    """Return the generic plan under the settings of a worker."""
    parameters = len(set(re.findall(r"\$\d+", statement)))
    arguments = f"({', '.join(['NULL'] * parameters)})" if parameters else ""
    await connection.execute(f"PREPARE {name} AS {statement}")
    text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE {name}{arguments}")
    await connection.execute(f"DEALLOCATE {name}")
    return list(nodes(json.loads(text)))


async def touched(connection: Connection, statement: str, *values: str) -> int:
    """Return how many pages a statement reads."""
    await connection.execute(f"PREPARE looked AS {statement}")
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE looked({', '.join(values)})")
    await connection.execute("DEALLOCATE looked")
    (top, *_) = nodes(json.loads(text))
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])


async def fill(connection: Connection, state: str) -> None:
    if state == "full":
        await connection.execute(FILL)
    if state != "never analysed":
        await connection.execute("ANALYZE tenuto.tasks")


@pytest.mark.parametrize("state", ["never analysed", "empty", "full"])
async def test_hot_statement_uses_index_with_any_statistics(state: str, db: Database) -> None:
    by_index: dict[str, set[str]] = {}
    over_the_whole_table = []
    async with db.connection() as connection:
        await fill(connection, state)
        for name in HOT:
            for node in await plan_of(connection, name, getattr(TASKS, name)):
                if node["Node Type"].startswith("Seq Scan") and node.get("Relation Name") == "tasks":
                    over_the_whole_table.append(name)
                if "Index Name" in node:
                    by_index.setdefault(name, set()).add(node["Index Name"])
    assert over_the_whole_table == []
    astray = {name: by_index.get(name) for name, ways in HOT.items() if not any(way <= by_index[name] for way in ways)}
    assert astray == {}


@pytest.mark.parametrize("name", ["finish_tasks", "retry_tasks"])
@pytest.mark.parametrize("state", ["never analysed", "empty", "full"])
async def test_finish_joins_outcomes_and_tasks_by_hash(state: str, name: str, db: Database) -> None:
    async with db.connection() as connection:
        await fill(connection, state)
        plan = await plan_of(connection, name, getattr(TASKS, name))
    conditions = [str(node.get("Hash Cond") or node.get("Join Filter")) for node in plan]
    pairing = [
        node["Node Type"]
        for node, condition in zip(plan, conditions, strict=True)
        if "task.fence = outcome.fence" in condition or "outcome.fence = task.fence" in condition
    ]
    assert pairing == ["Hash Join"]


async def test_claim_reads_the_index_in_order_without_sort(db: Database) -> None:
    async with db.connection() as connection:
        await fill(connection, "full")
        plan = await plan_of(connection, "claim_tasks", TASKS.claim_tasks)
    (scan,) = [node for node in plan if node.get("Index Name") == "tasks_to_take"]
    assert scan["Node Type"] == "Index Scan"
    assert "ROW(" in scan["Index Cond"], "the bound is part of the index condition"


@pytest.mark.parametrize("name", ["load_activity", "list_attempts", "has_task_ended"])
async def test_activity_lookup_reads_one_partition(name: str, db: Database) -> None:
    """At run time the other partitions are pruned."""
    task_id = "01972000-0000-7000-8000-000000000000"
    arguments = (task_id,)
    async with db.connection() as connection:
        await connection.execute("SET plan_cache_mode = force_custom_plan")
        text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) {getattr(ACTIVITIES, name)}", *arguments)
    scanned = {
        node["Relation Name"]
        for node in nodes(json.loads(text))
        if str(node.get("Relation Name", "")).startswith("activities") and f"(id = '{task_id}'" in str(node)
    }
    assert len(scanned) == 1


async def test_generic_plan_does_not_execute_other_partitions(db: Database) -> None:
    async with db.connection() as connection:
        await connection.execute(f"PREPARE look_up AS {ACTIVITIES.load_activity}")
        text = await connection.fetchval(
            "EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE look_up('01972000-0000-7000-8000-000000000000')"
        )
    scans = [node for node in nodes(json.loads(text)) if str(node.get("Relation Name", "")).startswith("activities")]
    assert len([node for node in scans if node["Actual Loops"] > 0]) == 1


KNOWN = "'{\"bake\": null}', '{\"sql\": null}'"
MANY_TASKS = """
INSERT INTO tenuto.tasks (id, activity_id, state, queue, rank, kind, name, input, policy, initiator_type,
                          initiator_name)
SELECT id, id, 'queued', 'default', 0, 'job', 'bake', '{}', '{}', 'system', 'test'
FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, $1::integer)) AS many
"""


async def test_cost_of_a_claim_of_known_jobs_is_independent_of_the_number_of_tasks(
    db: Database, register_worker: Register
) -> None:
    worker, pages = await register_worker(), []
    values = (
        f"'{worker}', interval '30 s', ARRAY['default'], 10, ARRAY[-2000]::smallint[], ARRAY[timestamptz '-infinity'],"
        f" ARRAY['00000000-0000-0000-0000-000000000000']::uuid[], '{{}}', {KNOWN}"
    )
    async with db.connection() as connection:
        for mode in ("force_generic_plan", "force_custom_plan"):
            await connection.execute(f"SET plan_cache_mode = {mode}")
            for count in (1000, 20_000):
                await connection.execute(MANY_TASKS.replace("$1::integer", str(count)))
                await connection.execute("VACUUM ANALYZE tenuto.tasks")
                pages.append(await touched(connection, TASKS.claim_tasks, values))
    assert max(pages) < pages[0] * 2, pages


@pytest.mark.parametrize("is_analysed", [False, True])
async def test_plans_made_while_the_table_was_empty_read_as_little_as_others(
    is_analysed: bool, db: Database, register_worker: Register
) -> None:
    """A worker plans its statements when it starts, often with an empty queue, and keeps the plans."""
    worker, pages = await register_worker(), []
    async with db.connection() as connection:
        if is_analysed:
            await connection.execute("ANALYZE tenuto.tasks")
        for is_empty in (True, False):
            await connection.execute(f"PREPARE claiming AS {TASKS.claim_tasks}")
            await connection.execute(f"PREPARE finishing AS {TASKS.finish_tasks}")
            for name, count in (("claiming", 10), ("finishing", 13)):
                await connection.execute(f"EXECUTE {name}({', '.join(['NULL'] * count)})")
            if is_empty:
                await connection.execute(MANY_TASKS.replace("$1::integer", "20000"))
            claiming = (
                f"claiming('{worker}', '30 s', '{{default}}', 500, '{{-2000}}', '{{-infinity}}',"
                f" '{{00000000-0000-0000-0000-000000000000}}', '{{}}', {KNOWN})"
            )
            text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {claiming}")
            (claimed, *_) = nodes(json.loads(text))
            held = await connection.fetch("SELECT id FROM tenuto.tasks WHERE state = 'running'")
            assert len(held) == 500
            ids = ",".join(str(row["id"]) for row in held)
            ones = "{" + ",".join("1" * 500) + "}"
            finishing = f"finishing('{worker}', '{{{ids}}}', '{ones}', NULL, '{ones}'{', NULL' * 8})"
            text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {finishing}")
            (finished, *_) = nodes(json.loads(text))
            assert await connection.fetchval("SELECT count(*) FROM tenuto.activities") == (500 if is_empty else 1000)
            pages.append([top["Shared Hit Blocks"] + top["Shared Read Blocks"] for top in (claimed, finished)])
            await connection.execute("DEALLOCATE claiming; DEALLOCATE finishing")
            await connection.execute("VACUUM ANALYZE tenuto.tasks")
    assert all(when_empty < later * 1.5 for when_empty, later in zip(*pages, strict=True)), pages


MANY_KEYS = """
INSERT INTO tenuto.tasks (id, activity_id, state, queue, rank, kind, name, input, policy, limit_key, limit_max,
                          initiator_type, initiator_name)
SELECT id, id, 'queued', 'default', 0, 'job', 'bake', '{}', '{}', 'key ' || n, 1, 'system', 'test'
FROM (SELECT gen_random_uuid() AS id, n FROM generate_series($1::integer, $2::integer) AS n) AS many
"""


async def test_cost_of_a_limited_claim_is_independent_of_the_number_of_keys(
    db: Database, register_worker: Register
) -> None:
    worker, pages = await register_worker(), []
    async with db.connection() as connection:
        for first, last in ((1, 1000), (1001, 20_000)):
            await connection.execute(MANY_KEYS.replace("$1::integer", str(first)).replace("$2::integer", str(last)))
            await connection.execute("VACUUM ANALYZE tenuto.tasks")
            lock_values = f"ARRAY['default'], ARRAY['key 5'], {LIMIT_KEYS_PER_CLAIM}, '{{}}'"
            locks = await connection.fetchrow(TASKS.lock_limits, ["default"], ["key 5"], LIMIT_KEYS_PER_CLAIM, [])
            assert locks is not None
            assert len(locks["keys"]) == LIMIT_KEYS_PER_CLAIM
            values = (
                f"'{worker}', interval '30 s', ARRAY['default'], 10, ARRAY{locks['queues_of_keys']},"
                f" ARRAY{locks['keys']}, '{{}}', {KNOWN}, ARRAY{locks['capped_scopes']}, '{{}}', 10"
            )
            pages.append(
                await touched(connection, TASKS.lock_limits, lock_values)
                + await touched(connection, TASKS.claim_limited_tasks, values)
            )
    assert pages[1] < pages[0] * 2, pages
