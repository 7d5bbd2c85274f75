"""How the hot statements reach their rows, under the settings of a worker's connection (W3: flat with any backlog).

A plan is kept for the life of a connection, so it must be right while the table is empty and still right when it is
full: by index, and never over the whole of `tasks`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tenuto.postgres.database import Connection, Database
from tenuto.store.activities import SQL as ACTIVITIES
from tenuto.store.tasks import KEYS_PER_CLAIM
from tenuto.store.tasks import SQL as TASKS
from tests.support.tasks import Register

# Each with the indexes that may lead to its rows: all of one set.
HOT = {
    "claim": [{"tasks_to_take"}],
    "claim_under_limits": [{"tasks_to_take", "tasks_to_take_by_key", "tasks_held"}],
    "end_tasks": [{"tasks_pkey"}],
    "repeat_tasks": [{"tasks_pkey"}],
    "renew": [{"tasks_pkey"}, {"tasks_held"}],
    "put_back": [{"tasks_pkey"}, {"tasks_held"}],
    "promote": [{"tasks_to_come"}],
    "expired": [{"tasks_held"}],
    "held_by": [{"tasks_held"}],
    "cancellations": [{"tasks_held"}],
    "anything_slipped": [{"tasks_held"}],
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
    """The generic plan, as the worker's own settings make it."""
    parameters = len(set(re.findall(r"\$\d+", statement)))
    arguments = f"({', '.join(['NULL'] * parameters)})" if parameters else ""
    await connection.execute(f"PREPARE {name} AS {statement}")
    text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE {name}{arguments}")
    await connection.execute(f"DEALLOCATE {name}")
    return list(nodes(json.loads(text)))


async def touched(connection: Connection, statement: str, *values: str) -> int:
    """How many pages a statement looks at."""
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
async def test_a_hot_statement_goes_by_index_whatever_the_planner_believes(state: str, db: Database) -> None:
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


@pytest.mark.parametrize("name", ["end_tasks", "repeat_tasks"])
@pytest.mark.parametrize("state", ["never analysed", "full"])
async def test_outcomes_find_their_tasks_by_hash_not_each_by_looking_at_all(
    state: str, name: str, db: Database
) -> None:
    """For a table known to be empty the planner knows better, until it is analysed with something in it."""
    async with db.connection() as connection:
        await fill(connection, state)
        plan = await plan_of(connection, name, getattr(TASKS, name))
    pairing = [
        node for node in plan if "task.fence = outcome.fence" in str(node.get("Hash Cond") or node.get("Join Filter"))
    ]
    assert [node["Node Type"] for node in pairing] == ["Hash Join"]


async def test_a_claim_is_not_sorted_it_is_read_in_order(db: Database) -> None:
    async with db.connection() as connection:
        await fill(connection, "full")
        plan = await plan_of(connection, "claim", TASKS.claim)
    (scan,) = [node for node in plan if node.get("Index Name") == "tasks_to_take"]
    assert scan["Node Type"] == "Index Scan"
    assert "ROW(" in scan["Index Cond"], "the bound is part of the index condition"


@pytest.mark.parametrize("name", ["activity", "attempts_of_task", "is_over"])
async def test_a_look_up_by_activity_id_touches_one_month(name: str, db: Database) -> None:
    """At run time the partitions that cannot hold the id are left out."""
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


async def test_under_a_kept_plan_the_other_months_are_never_executed(db: Database) -> None:
    async with db.connection() as connection:
        await connection.execute(f"PREPARE look_up AS {ACTIVITIES.activity}")
        text = await connection.fetchval(
            "EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE look_up('01972000-0000-7000-8000-000000000000')"
        )
    scans = [node for node in nodes(json.loads(text)) if str(node.get("Relation Name", "")).startswith("activities")]
    assert len([node for node in scans if node["Actual Loops"] > 0]) == 1


MANY_KEYS = """
INSERT INTO tenuto.tasks (id, activity_id, state, queue, rank, kind, name, input, policy, limit_key, limit_max,
                          initiator_type, initiator_name)
SELECT id, id, 'queued', 'default', 0, 'job', 'bake', '{}', '{}', 'key ' || n, 1, 'system', 'test'
FROM (SELECT gen_random_uuid() AS id, n FROM generate_series($1::integer, $2::integer) AS n) AS many
"""


async def test_a_claim_under_limits_costs_the_same_under_a_thousand_keys_and_under_twenty_thousand(
    db: Database, register_worker: Register
) -> None:
    worker, touched = await register_worker(), []
    async with db.connection() as connection:
        for first, last in ((1, 1000), (1001, 20_000)):
            await connection.execute(MANY_KEYS.replace("$1::integer", str(first)).replace("$2::integer", str(last)))
            await connection.execute("VACUUM ANALYZE tenuto.tasks")
            values = f"'{worker}', interval '30 s', ARRAY['default'], 10, ARRAY['key 5'], {KEYS_PER_CLAIM}, '{{}}'"
            await connection.execute(f"PREPARE take AS {TASKS.claim_under_limits}")
            text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE take({values})")
            await connection.execute("DEALLOCATE take")
            (top, *_) = nodes(json.loads(text))
            touched.append(top["Shared Hit Blocks"] + top["Shared Read Blocks"])
    assert touched[1] < touched[0] * 2, touched
