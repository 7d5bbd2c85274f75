"""Plans of the statements of manifests, batches and dead letters: by index, never by a scan of a whole table."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tenuto.ids import new_id
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling import manifest_manager
from tenuto.store.definitions.manifests import SQL as MANIFESTS
from tenuto.store.work.batches import SQL as BATCHES
from tenuto.store.work.dead_letters import SQL as DEAD_LETTERS
from tenuto.store.work.tasks import SQL as TASKS
from tests.store.test_query_plans import plan_of, touched
from tests.support.tasks import Register
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

# For each statement the tables that it must not scan, and the indexes that it must use.
LED: dict[str, tuple[str, set[str], set[str]]] = {
    "lock_due_manifests": (MANIFESTS.lock_due_manifests, {"manifests"}, {"manifests_due"}),
    "load_next_due_at": (MANIFESTS.load_next_due_at, {"manifests"}, {"manifests_due"}),
    "lock_unplanned_manifests": (MANIFESTS.lock_unplanned_manifests, {"manifests"}, {"manifests_to_plan"}),
    "load_run_blockers": (MANIFESTS.load_run_blockers, {"tasks", "dead_letters"}, {"tasks_one_run_per_manifest"}),
    "record_runs": (MANIFESTS.record_runs, {"manifests"}, {"manifests_pkey"}),
    "record_successes": (MANIFESTS.record_successes, {"manifests"}, {"manifests_pkey", "manifests_after"}),
    "lock_manifests_and_dependents": (
        MANIFESTS.lock_manifests_and_dependents,
        {"manifests"},
        {"manifests_pkey", "manifests_after"},
    ),
    "find_overrun_runs": (MANIFESTS.find_overrun_runs, {"tasks"}, {"tasks_held"}),
    "load_batch": (BATCHES.load_batch, {"tasks", "batches"}, {"tasks_of_batch", "batches_pkey"}),
    "list_batch_items": (BATCHES.list_batch_items, {"tasks"}, {"tasks_of_batch"}),
    "hold_batch_items": (BATCHES.hold_batch_items, {"tasks"}, {"tasks_pkey"}),
    "lock_unclaimed_items": (BATCHES.lock_unclaimed_items, {"tasks"}, set()),
    "claim_under_limits": (
        TASKS.claim_limited_tasks,
        {"tasks", "batches", "manifests"},
        {"tasks_to_take_by_key", "batches_pkey", "manifests_pkey"},
    ),
    "claim_without_cap": (
        TASKS.claim_uncapped_tasks,
        {"tasks", "batches", "manifests"},
        {"tasks_to_take_by_key", "batches_pkey", "manifests_pkey"},
    ),
    "lock_limits": (TASKS.lock_limits, {"tasks", "manifests"}, {"tasks_to_take_by_key", "manifests_pkey"}),
}  # fmt: skip

MANIFESTS_ALL_OVER = """
INSERT INTO tenuto.manifests (id, external_id, name, enabled, definition, job, schedule_type, depends_on, version,
                              origin, created_at, updated_at, next_run_at, planned)
SELECT gen_random_uuid(), 'm' || n, 'm' || n, true,
       jsonb_build_object('external_id', 'm' || n, 'job', 'bake', 'schedule_type', 'interval',
                          'trigger', jsonb_build_object('kind', 'interval', 'every', 3600)),
       'bake', 'interval', CASE WHEN n % 10 = 0 THEN 'm' || n - 1 END, 1, 'test', now(), now(),
       now() + CASE WHEN n <= {due} THEN interval '-1 minute' ELSE n * interval '1 minute' END, true
FROM generate_series(1, {many}) AS n
"""


async def insert_manifests(connection: Connection, many: int, due: int = 100) -> None:
    await connection.execute(MANIFESTS_ALL_OVER.format(many=many, due=due))
    await connection.execute("ANALYZE tenuto.manifests")


@pytest.mark.parametrize("state", ["never analysed", "full"])
async def test_manifest_statement_uses_index_with_any_statistics(state: str, db: Database) -> None:
    astray: dict[str, Any] = {}
    async with db.connection() as connection:
        if state == "full":
            await insert_manifests(connection, 5000)
        for name, (statement, tables, wanted) in LED.items():
            plan = await plan_of(connection, name, statement)
            through = {
                node["Relation Name"]
                for node in plan
                if node["Node Type"].startswith("Seq Scan") and node.get("Relation Name") in tables
            }
            by = {node["Index Name"] for node in plan if "Index Name" in node}
            if through or not wanted <= by:
                astray[name] = (through, by)
    assert astray == {}


LETTERS_ALL_OVER = """
INSERT INTO tenuto.dead_letters (id, manifest_id, external_id, item, task_id, activity_id, dead_lettered_at, reason,
                                 fingerprint, attempts, input)
SELECT gen_random_uuid(), gen_random_uuid(), 'm', '', gen_random_uuid(), gen_random_uuid(), now(), 'r', 'f', 1, '{}'
FROM generate_series(1, 20000)
"""


async def test_dead_letter_queries_read_only_matching_rows(db: Database) -> None:
    """The repair reads recent failures, a resolution its dead letters, a poll the dead letter of each manifest."""
    since, no_ids = "'01972000-0000-7000-8000-000000000000'", "ARRAY[gen_random_uuid()]"
    async with db.connection() as connection:
        await connection.execute(LETTERS_ALL_OVER)
        await connection.execute("VACUUM ANALYZE tenuto.dead_letters")
        assert await touched(connection, MANIFESTS.load_run_blockers, no_ids) < 20
        assert await touched(connection, DEAD_LETTERS.lock_open_dead_letters, no_ids) < 20
        assert await touched(connection, DEAD_LETTERS.find_missing_dead_letters, since, "now()", "100") < 50


FAILURES_ALL_OVER = """
INSERT INTO tenuto.activities (id, task_id, attempt, status, final, kind, name, queue, priority, created_at, run_at,
    claimed_at, started_at, ended_at, fence, failures, losses, input, initiator_type, initiator_name, manifest_id,
    item_key)
SELECT id, id, 1, 'failed', n % 1000 = 0, 'job', 'bake', 'default', 0, at, at, at, at, at, 1, 1, 0, '{}', 'system',
       'test', '01972000-0000-7000-8000-000000000001', 'item'
FROM (
    SELECT n, now() - interval '5 minutes' AS at,
           (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || '7'
            || substr(md5(n::text), 1, 19))::uuid AS id
    FROM generate_series(1, 50000) AS n
) AS many
"""
LETTER_OF_THE_ITEM = """
INSERT INTO tenuto.dead_letters (id, manifest_id, external_id, item, task_id, activity_id, dead_lettered_at, reason,
                                 fingerprint, attempts, input, status, resolved_at, resolved_type, resolved_name)
SELECT gen_random_uuid(), '01972000-0000-7000-8000-000000000001', 'm', 'item', gen_random_uuid(), gen_random_uuid(),
       now(), 'r', 'f', 1, '{}', 'acknowledged', now(), 'system', 'test'
"""


@pytest.mark.slow
async def test_search_for_missing_dead_letters_reads_only_final_failures(db: Database) -> None:
    """Also few dead letters for each: fifty of fifty thousand, whose items have left a later dead letter."""
    since = "'01972000-0000-7000-8000-000000000000'"
    async with db.connection() as connection:
        await connection.execute(FAILURES_ALL_OVER)
        await connection.execute(LETTERS_ALL_OVER)
        await connection.execute(LETTER_OF_THE_ITEM)
        await connection.execute("VACUUM ANALYZE tenuto.activities, tenuto.dead_letters")
        assert (
            await connection.fetch(DEAD_LETTERS.find_missing_dead_letters, UUID(since.strip("'")), db.clock.now(), 100)
            == []
        )
        assert await touched(connection, DEAD_LETTERS.find_missing_dead_letters, since, "now()", "100") < 50 * 8


@pytest.mark.slow
async def test_poll_reads_only_due_manifests(db: Database, url: str) -> None:
    pages = []
    async with db.connection() as connection:
        for many in (1000, 100_000):
            await connection.execute("TRUNCATE tenuto.manifests")
            await insert_manifests(connection, many, due=20)
            await connection.execute("VACUUM ANALYZE tenuto.manifests")
            pages.append(await touched(connection, MANIFESTS.lock_due_manifests, "now()", "100", "'{}'", "'{}'"))
        await connection.execute("SELECT pg_stat_force_next_flush()")
        await connection.execute("SELECT pg_stat_reset_single_table_counters('tenuto.manifests'::regclass)")
    assert pages[1] < pages[0] * 3, pages
    own = await Database.open(url, generic_plans=True)
    try:
        result = await manifest_manager.poll_manifests(own, own.clock.now(), "test")
    finally:
        await own.close()  # a connection reports its statistics at the latest when it closes
    assert result.enqueued == 20
    read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relid = 'tenuto.manifests'::regclass"

    async def count_read_rows() -> int:
        read_count: int = await db.fetch_value(read)
        return read_count if read_count >= result.enqueued else 0  # several connections report one after the other

    assert await eventually(count_read_rows) < 1000


KNOWN = "'{\"bake\": null}', '{\"sql\": null}'"
ITEMS = """
INSERT INTO tenuto.tasks (id, activity_id, state, queue, rank, kind, name, input, policy, limit_key, limit_max,
                          manifest_id, batch_id, initiator_type, initiator_name)
SELECT id, id, 'queued', 'default', 0, 'job', 'bake', '{{}}', '{{}}', 'batch:{batch}', 100000, '{manifest}', '{batch}',
       'system', 'test'
FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, {many})) AS many
"""


@pytest.mark.slow
async def test_cost_of_a_claim_is_independent_of_the_batch_size(db: Database, register_worker: Register) -> None:
    worker, pages = await register_worker(), []
    async with db.connection() as connection:
        await insert_manifests(connection, 1)
        manifest, batch = await connection.fetchval("SELECT id FROM tenuto.manifests"), new_id()
        values = (
            f"'{worker}', interval '30 s', ARRAY['default'], 10, ARRAY['default'], ARRAY['batch:{batch}'], '{{}}',"
            f" {KNOWN}, '{{}}', ARRAY['manifest {manifest}', 'all manifests']"
        )
        statements = {
            TASKS.claim_limited_tasks: f"{values}, 10",
            TASKS.claim_uncapped_tasks: f"{values}, ARRAY['{batch}'::uuid]",
        }
        await connection.execute(
            "INSERT INTO tenuto.batches (id, manifest_id, external_id, created_at, initiator_type, initiator_name)"
            f" VALUES ('{batch}', '{manifest}', 'm1', now(), 'system', 'test')"
        )
        for many in (1000, 49_000):
            await connection.execute(ITEMS.format(batch=batch, manifest=manifest, many=many))
            await connection.execute("VACUUM ANALYZE tenuto.tasks")
            pages.append([await touched(connection, *claim) for claim in statements.items()])
        await connection.execute("UPDATE tenuto.batches SET paused_at = now()")
        pages.append([await touched(connection, *claim) for claim in statements.items()])
    for few, many, paused in zip(*pages, strict=True):
        assert many < few * 2, pages
        assert paused < few, pages
