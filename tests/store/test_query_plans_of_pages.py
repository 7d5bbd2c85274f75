"""Plans of the statements behind pages of the dashboard on large tables: what is shown is found by an index."""

from __future__ import annotations

import json
from datetime import timedelta

from tenuto.model.filter_keys import ACTIVITY_KEYS, TASK_KEYS
from tenuto.model.filters import Filter
from tenuto.postgres.database import Database
from tenuto.store import partitions
from tenuto.store.definitions import schedules
from tenuto.store.filter_sql import ACTIVITIES as ACTIVITY_TABLE
from tenuto.store.filter_sql import MAX_EXACT_COUNT
from tenuto.store.filter_sql import TASKS as TASK_TABLE
from tenuto.store.work import activities
from tenuto.store.work.activities import SQL as ACTIVITIES
from tests.store.test_query_plans import FILL, nodes, touched
from tests.support.repetition_counts import times

FAILED = """
INSERT INTO tenuto.activities (id, task_id, attempt, status, final, kind, name, queue, priority, created_at, run_at,
                               ended_at, fence, failures, losses, input, initiator_type, initiator_name)
SELECT id, id, 1, CASE WHEN n % 4 = 0 THEN 'failed' ELSE 'completed' END, true, 'job', 'bake', 'default', 0, now(),
       now(), now(), 1, 0, 0, to_jsonb(repeat('x', 300)), 'system', 'test'
FROM (SELECT gen_random_uuid() AS id, n FROM generate_series(1, 20000) AS n) AS many
"""


async def test_running_tasks_of_a_queue_are_found_without_reading_the_queued_ones(db: Database) -> None:
    async with db.connection() as connection:
        await connection.execute(FILL)
        await connection.execute("ANALYZE tenuto.tasks")
        statement = ACTIVITIES.list_running_tasks.replace("/* filter */ true", "queue = 'queue 1'")
        pages = await touched(connection, statement, "NULL", "20")
        whole: int = await connection.fetchval("SELECT relpages FROM pg_class WHERE oid = 'tenuto.tasks'::regclass")
    assert pages < whole / 3


async def test_list_of_running_tasks_equals_the_list_of_all_of_them(db: Database) -> None:
    async with db.connection() as connection:
        await connection.execute(FILL)
        expected = [
            row["id"]
            for row in await connection.fetch(
                "SELECT id FROM tenuto.tasks WHERE state = 'running' AND queue = 'queue 1' ORDER BY id DESC LIMIT 20"
            )
        ]
    filter = Filter(TASK_KEYS).where(state="running", queue="queue 1")
    found = await activities.list_tasks(db, filter, limit=20)
    assert [each.id for each in found] == expected
    rest = await activities.list_tasks(db, filter, below=expected[4], limit=15)
    assert [each.id for each in rest] == expected[5:]
    assert await activities.list_tasks(db, Filter(TASK_KEYS).where(worker="nobody"), limit=5) == []


async def test_failed_activities_are_counted_by_their_index_alone(db: Database) -> None:
    async with db.connection() as connection:
        await connection.execute(FAILED)
        await connection.execute("VACUUM ANALYZE tenuto.activities")
        filter = Filter(ACTIVITY_KEYS).where(state="failed")
        statement, *values = ACTIVITY_TABLE.add_filter(ACTIVITIES.count_activities, filter, MAX_EXACT_COUNT + 1)
        pages = await touched(connection, statement, *map(str, values))
    assert pages < 200
    assert (await activities.count_activities(db, filter)).count == 5000


ACTIVITIES_OF_MONTHS = """
INSERT INTO tenuto.activities (id, task_id, attempt, status, final, kind, name, queue, priority, created_at, run_at,
                               ended_at, fence, failures, losses, input, initiator_type, initiator_name)
SELECT id, id, 1, 'completed', true, 'job', CASE WHEN n <= 3 THEN 'rare_job' ELSE 'job-' || n % 500 END, 'default', 0,
       at, at, at, 1, 0, 0, '{"number": 17}', 'system', 'test'
FROM (
    SELECT n, at, (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 3)
                   || '8' || substr(md5(n::text), 4, 15))::uuid AS id
    FROM (SELECT n, now() - ($1 - n) * $2::interval AS at FROM generate_series(1, $1::bigint) AS n) AS given
) AS made
"""


async def test_c23_rare_name_is_found_in_the_oldest_of_many_activities_by_an_index(db: Database) -> None:
    """The three rows are the oldest ones, so a search from the newest would read everything."""
    count = times(60_000, in_a_proof=1_000_000)
    now = db.clock.now()
    for months in (2, 1, 0):
        await partitions.ensure_partitions(db, now - timedelta(days=30 * months))
    async with db.connection() as connection:
        await connection.execute(ACTIVITIES_OF_MONTHS, count, timedelta(days=60) / count, timeout=300)
        await connection.execute("VACUUM (ANALYZE) tenuto.activities", timeout=300)
        filter = Filter(ACTIVITY_KEYS).where(name="rare_job")
        whole: int = await connection.fetchval(
            "SELECT sum(relpages) FROM pg_partition_tree('tenuto.activities') JOIN pg_class ON pg_class.oid = relid"
        )
        for statement, first in ((ACTIVITIES.list_activities, ("NULL", 50)), (ACTIVITIES.count_activities, (10_001,))):
            text, *values = ACTIVITY_TABLE.add_filter(statement, filter, *first)
            given = [f"'{value}'" if value == "rare_job" else str(value) for value in values]
            assert await touched(connection, text, *given) < 60 < whole / 10
            await connection.execute(f"PREPARE looked AS {text}")
            plan = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE looked({', '.join(given)})")
            await connection.execute("DEALLOCATE looked")
            scans = [each for each in nodes(json.loads(plan)) if "activities" in str(each.get("Relation Name", ""))]
            executed = [each for each in scans if each["Actual Loops"]]
            assert sum(each["Actual Rows"] for each in executed) == 3
            assert sum(each.get("Rows Removed by Filter", 0) for each in executed) == 0
    found = await activities.list_activities(db, filter, limit=50)
    assert [each.name for each in found] == ["rare_job"] * 3
    assert (await activities.count_activities(db, filter)).count == 3


async def test_tasks_are_counted_by_state_as_without_the_shorter_statement(db: Database) -> None:
    async with db.connection() as connection:
        await connection.execute(FILL)
        expected = {
            row["state"]: row["number"]
            for row in await connection.fetch("SELECT state, count(*) AS number FROM tenuto.tasks GROUP BY state")
        }
        await connection.execute("VACUUM ANALYZE tenuto.tasks")
    for state in ("queued", "running", "scheduled", "waiting"):
        filter = Filter(TASK_KEYS).where(state=state)
        found = await activities.count_tasks(db, filter)
        assert found.count == min(expected.get(state, 0), MAX_EXACT_COUNT)
        assert await activities.count_tasks_of_each(db, [filter]) == [found]
        both = await activities.count_tasks(db, filter.where(kind="job"))
        assert both == found, "with the general statement"


async def test_queued_tasks_are_counted_by_the_indexes_of_claims_alone(db: Database) -> None:
    async with db.connection() as connection:
        await connection.execute(FILL)
        await connection.execute("VACUUM ANALYZE tenuto.tasks")
        filter = Filter(TASK_KEYS).where(state="queued")
        statement, *values = TASK_TABLE.add_filter(ACTIVITIES.count_tasks_by_state, filter, MAX_EXACT_COUNT + 1)
        pages = await touched(connection, statement, *map(str, values))
        whole: int = await connection.fetchval("SELECT relpages FROM pg_class WHERE oid = 'tenuto.tasks'::regclass")
    assert pages < whole / 3


async def test_typical_durations_are_medians_of_recent_runs(db: Database) -> None:
    async with db.connection() as connection:
        await connection.execute(
            """
            INSERT INTO tenuto.schedules (id, name, description, enabled, trigger, plan, overlap, misfire, version,
                                          origin, created_at, updated_at)
            SELECT ('00000000-0000-7000-8000-00000000000' || n)::uuid, 'schedule ' || n, '', true, '{}', '[]', 'skip',
                   '{}', 1, 'code', now(), now()
            FROM generate_series(1, 2) AS n
            """
        )
        # The newest 20 of the first take 10 s, those before 99 s; cancelled ones are not counted.
        await connection.execute(
            """
            INSERT INTO tenuto.executions (id, schedule_id, schedule_name, version, origin, state, alone, plan,
                                           current_group, total_groups, total_steps, due_at, started_at, ended_at,
                                           initiator_type, initiator_name)
            SELECT ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, '00000000-0000-7000-8000-000000000001',
                   'an earlier name', 1, 'trigger', CASE WHEN n > 60 THEN 'cancelled' ELSE 'completed' END, false, '[]',
                   0, 1, 1, now(), now(), now() + CASE WHEN n > 40 THEN interval '10 s' ELSE interval '99 s' END,
                   'system', 'test'
            FROM generate_series(1, 70) AS n
            """
        )
    found = await schedules.load_typical_durations(db, db.clock.now().replace(year=2020))
    assert found == {"schedule 1": 10.0}


async def test_queued_tasks_are_listed_in_the_order_of_claims_by_the_index_of_claims(db: Database) -> None:
    filter = Filter(TASK_KEYS).where(queue="queue 1")
    async with db.connection() as connection:
        await connection.execute(FILL)
        order = "SELECT id FROM tenuto.tasks WHERE state = 'queued' AND queue = 'queue 1' ORDER BY rank, run_at, id"
        expected = [row["id"] for row in await connection.fetch(order)][:30]
        found = await activities.list_queued_tasks(db, filter, limit=10)
        last = found[-1]
        after = (last.queue, last.priority, last.run_at, last.id)
        found += await activities.list_queued_tasks(db, filter, after=after, limit=20)
        assert [each.id for each in found] == expected
        await connection.execute("DELETE FROM tenuto.tasks WHERE limit_key IS NOT NULL")  # these are sorted
        await connection.execute("VACUUM ANALYZE tenuto.tasks")
        first = "''", "-32768", "'-infinity'", "'00000000-0000-0000-0000-000000000000'", "20"
        pages = await touched(connection, ACTIVITIES.list_queued_tasks, *first)
        whole: int = await connection.fetchval("SELECT relpages FROM pg_class WHERE oid = 'tenuto.tasks'::regclass")
    assert pages < whole / 10
