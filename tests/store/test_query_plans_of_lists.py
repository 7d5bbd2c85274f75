"""Plans of lists: a page is read in index order, so that its cost does not depend on the number of rows.

With the default settings of clients other than workers.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from tenuto.ids import new_id, new_ids
from tenuto.model.filters import Filter
from tenuto.postgres.database import Database
from tenuto.store.definitions.manifests import SQL as MANIFESTS
from tenuto.store.definitions.schedules import SQL as SCHEDULES
from tenuto.store.filter_sql import ACTIVITIES as FILTERED_ACTIVITIES
from tenuto.store.filter_sql import EXECUTIONS as FILTERED_EXECUTIONS
from tenuto.store.filter_sql import TASKS as FILTERED_TASKS
from tenuto.store.filter_sql import FilterTable
from tenuto.store.reports.changed_objects import SQL as EVENTS
from tenuto.store.work.activities import SQL as ACTIVITIES
from tenuto.store.work.batches import SQL as BATCHES
from tenuto.store.work.executions import SQL as EXECUTIONS
from tenuto.store.work.executions import count_executions_of_each
from tests.store.test_query_plans import plan_of, touched

pytestmark = pytest.mark.slow

MANY = 20_000
PAGE = 50


def quoted(id: UUID) -> str:
    return f"'{id}'::uuid"


# --- executions ------------------------------------------------------------------------------------------------------

STARTED_BY_STEPS = """
INSERT INTO tenuto.executions (id, schedule_id, schedule_name, version, origin, state, alone, plan, current_group,
                               total_groups, total_steps, due_at, started_at, ended_at, initiator_type, initiator_name,
                               parent_task_id)
SELECT gen_random_uuid(), gen_random_uuid(), 'Nightly', 1, 'step', state, false, '[]', 0, 1, 1, now(), now(),
       CASE WHEN state <> 'in_progress' THEN now() END, 'system', 'test', gen_random_uuid()
FROM (SELECT CASE WHEN n > 3 THEN 'completed' ELSE 'in_progress' END AS state
      FROM generate_series(1, {many}) AS n) AS many
"""


@pytest.mark.parametrize("generic", [False, True])
async def test_search_for_abandoned_executions_reads_only_open_ones(url: str, generic: bool) -> None:
    database = await Database.open(url, generic_plans=generic)
    try:
        async with database.connection() as connection:
            await connection.execute(STARTED_BY_STEPS.format(many=MANY))
            await connection.execute("VACUUM ANALYZE tenuto.executions")
            assert await touched(connection, EXECUTIONS.find_abandoned_executions, "100") < 20
    finally:
        await database.close()


ENDED_EXECUTIONS = """
INSERT INTO tenuto.executions (id, schedule_id, schedule_name, version, origin, state, alone, plan, current_group,
                               total_groups, total_steps, due_at, started_at, ended_at, initiator_type, initiator_name)
SELECT id, ('00000000-0000-7000-8000-' || lpad(to_hex(n % 50), 12, '0'))::uuid, 'Nightly', 1, 'trigger',
       CASE WHEN n % 1000 = 0 THEN 'failed' WHEN n % 1000 = 1 THEN 'cancelled' WHEN n % 1000 = 2 THEN 'in_progress'
       ELSE 'completed' END, false, '[]', 0, 1, 1, now(), now(), CASE WHEN n % 1000 <> 2 THEN now() END, 'system',
       'test'
FROM unnest($1::uuid[]) WITH ORDINALITY AS new (id, n)
"""
RARE_STATES = ("failed", "cancelled", "in_progress")
MANIFEST_RUNS = """
INSERT INTO tenuto.activities (id, task_id, attempt, status, final, kind, name, queue, priority, created_at, run_at,
                               claimed_at, started_at, ended_at, fence, failures, losses, input, initiator_type,
                               initiator_name, manifest_id)
SELECT id, id, 1, 'completed', true, 'job', 'bake', 'default', 0, now(), now(), now(), now(), now(), 1, 0, 0, '{}',
       'system', 'test', ('00000000-0000-7000-8000-' || lpad(to_hex(n % 50), 12, '0'))::uuid
FROM unnest($1::uuid[]) WITH ORDINALITY AS new (id, n)
"""
OWNERS = [UUID(int=(0x7000_8000 << 48) + number) for number in range(3)]
"""Schedules or manifests of `ENDED_EXECUTIONS` and `MANIFEST_RUNS`, out of 50."""
OUTCOME_COUNT = 20


async def test_count_of_executions_by_a_rare_state_reads_only_its_index(database: Database) -> None:
    async with database.connection() as connection:
        await connection.execute(ENDED_EXECUTIONS, new_ids(MANY))
        await connection.execute("VACUUM ANALYZE tenuto.executions")
        for state in RARE_STATES:
            filter = Filter(FILTERED_EXECUTIONS.schema).where(state=state)
            statement, *values = FILTERED_EXECUTIONS.add_filter(EXECUTIONS.count_executions, filter, "10001")
            assert await touched(connection, statement, *values) < 40, state
    filters = [Filter(FILTERED_EXECUTIONS.schema).where(state=state) for state in RARE_STATES]
    assert [each.count for each in await count_executions_of_each(database, filters)] == [MANY // 1000] * 3


@pytest.mark.parametrize("plan", ["custom", "generic"])
@pytest.mark.parametrize(
    ("fill_statement", "table", "statement"),
    [
        (ENDED_EXECUTIONS, "executions", EXECUTIONS.list_recent_outcomes),
        (MANIFEST_RUNS, "activities", MANIFESTS.list_recent_outcomes),
    ],
    ids=["schedules", "manifests"],
)
async def test_recent_outcomes_are_read_from_the_end_of_an_index(
    database: Database, fill_statement: str, table: str, statement: str, plan: str
) -> None:
    async with database.connection() as connection:
        await connection.execute(fill_statement, new_ids(MANY))
        await connection.execute(f"VACUUM ANALYZE tenuto.{table}")
        await connection.execute(f"SET plan_cache_mode = force_{plan}_plan")
        assert len(await connection.fetch(statement, OWNERS, OUTCOME_COUNT)) == len(OWNERS) * OUTCOME_COUNT
        wanted = f"ARRAY[{', '.join(map(quoted, OWNERS))}]"
        # Each owner has 400 rows, on nearly as many pages.
        assert await touched(connection, statement, wanted, str(OUTCOME_COUNT)) < 3 * len(OWNERS) * OUTCOME_COUNT


# --- the items of a batch --------------------------------------------------------------------------------------------

ENDED = """
INSERT INTO tenuto.activities (id, task_id, attempt, status, final, kind, name, queue, priority, created_at, run_at,
                               claimed_at, started_at, ended_at, fence, failures, losses, input, initiator_type,
                               initiator_name, batch_id)
SELECT id, id, 1, 'completed', true, 'job', 'bake', 'default', 0, now(), now(), now(), now(), now(), 1, 0, 0, '{}',
       'system', 'test', $2
FROM unnest($1::uuid[]) AS id
"""
OPEN = """
INSERT INTO tenuto.tasks (id, activity_id, input, name, batch_id, initiator_type, initiator_name)
SELECT id, id, '{}', 'bake', $2, 'system', 'test'
FROM unnest($1::uuid[]) AS id
"""


@pytest.mark.parametrize("plan", ["custom", "generic"])
@pytest.mark.parametrize(("statement", "table"), [(ENDED, "activities"), (OPEN, "tasks")])
async def test_cost_of_a_page_of_batch_items_is_independent_of_its_position(
    database: Database, statement: str, table: str, plan: str
) -> None:
    batch, ids, letters = new_id(), new_ids(MANY), new_ids(1000)
    async with database.connection() as connection:
        await connection.execute(statement, ids, batch)
        await connection.execute(
            "INSERT INTO tenuto.dead_letters (id, manifest_id, external_id, item, task_id, activity_id, reason,"
            " attempts, dead_lettered_at, fingerprint, input)"
            " SELECT id, id, 'm', '', id, id, 'r', 1, now(), 'f', '{}' FROM unnest($1::uuid[]) AS id",
            letters,
        )
        await connection.execute(f"VACUUM ANALYZE tenuto.{table}, tenuto.dead_letters")
        await connection.execute(f"SET plan_cache_mode = force_{plan}_plan")
        for after in ("NULL", quoted(ids[MANY // 2]), quoted(ids[-2])):
            pages = await touched(connection, BATCHES.list_batch_items, quoted(batch), after, "NULL", str(PAGE))
            assert pages < 6 * PAGE, after


# --- the ledger ------------------------------------------------------------------------------------------------------

DECIDED = """
INSERT INTO tenuto.occurrences (id, schedule_id, schedule_name, due_at, origin, decision, decided_at, decided_by)
SELECT gen_random_uuid(), ('00000000-0000-7000-8000-' || lpad(to_hex(n % 50), 12, '0'))::uuid, 'Nightly',
       now() - n / 50 * interval '1 minute', 'trigger', 'skipped', now(), 'test'
FROM generate_series(1, {many}) AS n
"""


@pytest.mark.parametrize("plan", ["custom", "generic"])
async def test_page_of_the_ledger_is_read_in_index_order(database: Database, plan: str) -> None:
    async with database.connection() as connection:
        await connection.execute(DECIDED.format(many=MANY))
        await connection.execute("VACUUM ANALYZE tenuto.occurrences")
        await connection.execute(f"SET plan_cache_mode = force_{plan}_plan")
        middle = "SELECT due_at::text FROM tenuto.occurrences ORDER BY due_at LIMIT 1 OFFSET 5000"
        at = f"'{await connection.fetchval(middle)}'"
        for before, below in (("NULL", "NULL"), (at, "NULL"), (at, quoted(new_id()))):
            pages = await touched(connection, SCHEDULES.list_ledger_entries, "NULL", before, "NULL", str(PAGE), below)
            assert pages < 2 * PAGE, (before, below)


# --- what watchers ask -----------------------------------------------------------------------------------------------


async def test_event_feed_queries_use_indexes_except_queue_counts(db: Database) -> None:
    through: dict[str, set[str]] = {}
    async with db.connection() as connection:
        for name, statement in EVENTS:
            for node in await plan_of(connection, name, statement):
                by_nothing = node.get("Index Name", "_pkey").endswith("_pkey") and "Index Cond" not in node
                if by_nothing and "Relation Name" in node and not node["Node Type"].startswith("Bitmap"):
                    through.setdefault(name, set()).add(node["Relation Name"])
    assert through == {"load_queues_and_workers": {"tasks"}}


# --- rare names ------------------------------------------------------------------------------------------------------

MANY_NAMES = """
INSERT INTO tenuto.activities (id, task_id, attempt, status, final, kind, name, queue, priority, created_at, run_at,
                               claimed_at, started_at, ended_at, fence, failures, losses, input, initiator_type,
                               initiator_name)
SELECT id, id, 1, 'completed', true, 'job', CASE WHEN n <= 3 THEN 'rare_job' ELSE 'job' || n % 500 END, 'default', 0,
       now(), now(), now(), now(), now(), 1, 0, 0, '{}', 'system', 'test'
FROM unnest($1::uuid[]) WITH ORDINALITY AS new (id, n)
"""
OPEN_NAMES = """
INSERT INTO tenuto.tasks (id, activity_id, state, queue, rank, kind, policy, input, name, initiator_type,
                          initiator_name)
SELECT id, id, 'queued', 'default', 0, 'job', '{}', '{}', CASE WHEN n <= 3 THEN 'rare_job' ELSE 'job' || n % 500 END,
       'system', 'test'
FROM unnest($1::uuid[]) WITH ORDINALITY AS new (id, n)
"""


@pytest.mark.parametrize("plan", ["custom", "generic"])
@pytest.mark.parametrize(
    ("fill_statement", "table", "statement", "given"),
    [
        (MANY_NAMES, FILTERED_ACTIVITIES, ACTIVITIES.list_activities, ["NULL", "50"]),
        (MANY_NAMES, FILTERED_ACTIVITIES, ACTIVITIES.count_activities, ["10001"]),
        (OPEN_NAMES, FILTERED_TASKS, ACTIVITIES.list_tasks, ["NULL", "50"]),
    ],
    ids=["activities", "count of activities", "tasks"],
)
async def test_list_by_a_rare_name_reads_only_its_rows(
    database: Database, fill_statement: str, table: FilterTable, statement: str, given: list[str], plan: str
) -> None:
    filtered, *values = table.add_filter(statement, Filter(table.schema).where(name="rare_job"), *given)
    assert values[-1] == "rare_job"
    async with database.connection() as connection:
        await connection.execute(fill_statement, new_ids(MANY))
        await connection.execute(f"VACUUM ANALYZE {table.relation}")
        await connection.execute(f"SET plan_cache_mode = force_{plan}_plan")
        assert await touched(connection, filtered, *given, "'rare_job'") < 40
