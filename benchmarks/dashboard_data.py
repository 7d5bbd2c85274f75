"""The data set of `dashboard`: a large installation, created with a few statements in about a minute.

By default it has 1,000,000 activities over three months and 500 names, 100,000 open tasks, 500 schedules with 20,000
executions, one of them with 2,000 steps in a group, 5,000 dead letters with 12 kinds of failure, 300 batches, 20,000
one-shots, 200 bulk operations and 50 named logs with 100,000 entries. Schedules and a manifest are created through
the public API and copied; the other rows are made by statements, because their creation is not measured. The ids carry
their instants, as those of the product do.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import asyncpg

from benchmarks.measure import progress
from tenuto import Step, Tenuto, at, cron, every
from tenuto.model.triggers import Trigger
from tenuto.model.work.rollups import BUCKET_RETENTION, BUCKET_SECONDS
from tenuto.settings import load_settings
from tenuto.store import partitions

NAME_COUNT, MANIFEST_COUNT, FAILURE_COUNT = 500, 20, 12
RARE_NAME, WIDE_SCHEDULE = "rare_job", "Wide schedule"
WIDE_STEPS, WIDE_GROUPS = 200, 20
HUGE_SCHEDULE, HUGE_STEPS = "Huge schedule", 2000
"""All its steps are in one group."""
APART_SCHEDULES = [WIDE_SCHEDULE, HUGE_SCHEDULE]
"""They are not copied, and have one execution each."""
LOG_COUNT, LONG_LOG = 50, "log-1"
HISTORY_DAYS = 60
EXECUTION_DAYS = 14
CHART_TIME = timedelta(days=8)
"""The longest chart covers seven days; earlier activities are not added to its buckets."""


@dataclass(frozen=True)
class DataSize:
    """Numbers of rows."""

    activities: int = 1_000_000
    tasks: int = 100_000
    schedules: int = 500
    executions: int = 20_000
    dead_letters: int = 5_000
    batches: int = 300
    one_shots: int = 20_000
    bulk_operations: int = 200
    log_entries: int = 100_000

    def divided(self, by: int) -> DataSize:
        """Return a smaller data set, for trials."""
        return DataSize(
            self.activities // by,
            self.tasks // by,
            max(20, self.schedules // by),
            self.executions // by,
            self.dead_letters // by,
            max(10, self.batches // by),
            self.one_shots // by,
            max(10, self.bulk_operations // by),
            max(LOG_COUNT * 20, self.log_entries // by),
        )


@dataclass(frozen=True)
class Landmarks:
    """Objects of the data set that pages show."""

    wide_execution: UUID
    huge_execution: UUID
    execution: UUID
    dead_letter: UUID
    batch: UUID
    activity: UUID
    bulk_operation: UUID


# Ids in the order of their instants, different for each kind.
_ID_FUNCTION = """
CREATE FUNCTION pg_temp.id(kind text, at timestamptz, number bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(md5(kind || number), 1, 3)
            || '8' || substr(md5(kind || number), 4, 15))::uuid
$$
"""
_WORKER = """
INSERT INTO tenuto.workers (id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at,
                            silence_limit)
SELECT pg_temp.id('worker', now(), n), 'box-' || n, 'worker', 'box-' || n, 'boot', n, '0',
       '{default,mail,ldap,reports}', 300, now(), now(), '1 day'
FROM generate_series(1, 4) AS n
"""
_SCHEDULES = """
INSERT INTO tenuto.schedules (id, name, description, enabled, trigger, plan, overlap, misfire, version, origin,
                              created_at, updated_at, last_run_at, next_run_at, planned)
SELECT pg_temp.id('schedule', created_at, n), name || ' ' || n, '', true, trigger, plan, overlap, misfire, 1, origin,
       created_at, updated_at, now(), now() + (n % 1440) * interval '1 minute', true
FROM (SELECT *, row_number() OVER (ORDER BY name) - 1 AS k, count(*) OVER () AS kinds FROM tenuto.schedules
      WHERE name <> ALL ($2::text[])) AS template
JOIN generate_series(1, $1::integer) AS n ON n % kinds = k
"""
_MANIFESTS = """
INSERT INTO tenuto.manifests (id, external_id, name, enabled, definition, job, schedule_type, version, origin,
                              created_at, updated_at, planned)
SELECT pg_temp.id('manifest', created_at, n), external_id || '-' || n, name, true, definition, job, schedule_type, 1,
       origin, created_at, updated_at, true
FROM tenuto.manifests, generate_series(1, $1::integer) AS n
"""
_ACTIVITIES = """
INSERT INTO tenuto.activities (
    id, task_id, attempt, status, reason, final, kind, name, queue, priority, created_at, run_at, claimed_at,
    started_at, ended_at, fence, worker_id, failures, losses, input, output, error, tags, initiator_type,
    initiator_name
)
SELECT id, id, 1, CASE WHEN n % 50 = 0 THEN 'failed' ELSE 'completed' END, CASE WHEN n % 50 = 0 THEN 'error' END, true,
       'job', CASE WHEN $4 + n <= 3 * 1000 AND n % 1000 = 0 THEN $5 ELSE 'job-' || (n * 7919) % $6::bigint END,
       (ARRAY['default', 'mail', 'ldap', 'reports'])[1 + n % 4], 0, at, at, at, at + interval '20 ms',
       at + (1 + n % 40) * interval '250 ms', 1, worker, 0, 0, '{"number": 17}', '{"rows": 12}',
       CASE WHEN n % 50 = 0 THEN '{"type": "ConnectionError", "message": "the server does not respond"}'::jsonb END,
       CASE WHEN n % 10 = 0 THEN ARRAY['nightly'] END, 'system', 'bench'
FROM (
    SELECT n, made.at, pg_temp.id('activity', made.at, $4 + n) AS id, pg_temp.id('worker', now(), 1) AS worker
    FROM generate_series(1, $1::bigint) AS n
    CROSS JOIN LATERAL (SELECT $2::timestamptz + n * $3::interval AS at) AS made
) AS given
"""
# Waiting tasks are steps of later groups; the newest executions are shown by pages and have none.
_TASKS = """
WITH older AS (SELECT array_agg(id) AS ids FROM (SELECT id FROM tenuto.executions ORDER BY id DESC OFFSET 10) AS found)
INSERT INTO tenuto.tasks (id, activity_id, state, queue, rank, run_at, kind, name, input, created_at, fence, worker_id,
                          lease_until, claimed_at, began_at, initiator_type, initiator_name, execution_id, group_index,
                          step_index)
SELECT id, id, state, (ARRAY['default', 'mail', 'ldap', 'reports'])[1 + n % 4], 0,
       CASE state WHEN 'scheduled' THEN now() + n * interval '1 s' ELSE at END, 'job',
       'job-' || (n * 7919) % $2::bigint, '{"number": 17}', at, (state = 'running')::integer,
       CASE WHEN state = 'running' THEN pg_temp.id('worker', now(), 1 + n % 4) END,
       CASE WHEN state = 'running' THEN now() + interval '1 day' END, CASE WHEN state = 'running' THEN at END,
       CASE WHEN state = 'running' THEN at END, 'system', 'bench',
       CASE WHEN state = 'waiting' THEN (SELECT ids[1 + n % cardinality(ids)] FROM older) END,
       CASE WHEN state = 'waiting' THEN 1 END, CASE WHEN state = 'waiting' THEN n END
FROM (
    SELECT n, at, pg_temp.id('task', at, n) AS id,
           CASE WHEN n % 100 = 0 THEN 'running' WHEN n % 100 < 5 THEN 'waiting' WHEN n % 100 < 10 THEN 'scheduled'
                ELSE 'queued' END AS state
    FROM (SELECT n, now() - ($1 - n) * interval '36 ms' AS at FROM generate_series(1, $1::bigint) AS n) AS given
) AS made
"""
# The newest execution of each hundredth schedule is active.
_EXECUTIONS = """
INSERT INTO tenuto.executions (id, schedule_id, schedule_name, version, origin, state, alone, plan, current_group,
                               total_groups, total_steps, failed_steps, error, due_at, started_at, ended_at,
                               initiator_type, initiator_name)
SELECT pg_temp.id('execution', at, n), schedule.id, schedule.name, 1, 'trigger',
       CASE WHEN is_active THEN 'in_progress' WHEN n % 40 = 0 THEN 'failed' ELSE 'completed' END, false, schedule.plan,
       CASE WHEN is_active THEN 0 ELSE jsonb_array_length(schedule.plan) - 1 END, jsonb_array_length(schedule.plan), 2,
       (NOT is_active AND n % 40 = 0)::integer,
       CASE WHEN NOT is_active AND n % 40 = 0 THEN 'step 2 failed: the server does not respond' END,
       at, at, CASE WHEN NOT is_active THEN at + (20 + n % 300) * interval '1 s' END, 'system', 'bench'
FROM (
    SELECT n, now() - ($1 - n) * $2::interval - interval '10 s' AS at, n % 100 = 0 AND n > $1 - $3 AS is_active
    FROM generate_series(1, $1::bigint) AS n
) AS made
JOIN (SELECT *, row_number() OVER (ORDER BY name) AS k FROM tenuto.schedules WHERE name <> ALL ($4::text[])) AS schedule
  ON k = 1 + n % $3::bigint
ORDER BY n
"""
_LEDGER = """
INSERT INTO tenuto.occurrences (id, schedule_id, schedule_name, due_at, origin, decision, execution_id, decided_at,
                                decided_by)
SELECT pg_temp.id('occurrence', due_at, row_number() OVER (ORDER BY id)), schedule_id, schedule_name, due_at,
       'trigger', 'fired', id, due_at, 'bench'
FROM tenuto.executions
"""
_WIDE_EXECUTION = """
INSERT INTO tenuto.executions (id, schedule_id, schedule_name, version, origin, state, alone, plan, current_group,
                               total_groups, total_steps, due_at, started_at, ended_at, initiator_type, initiator_name)
SELECT $1, id, name, 1, 'manual', 'completed', false, plan, jsonb_array_length(plan) - 1, jsonb_array_length(plan), $3,
       now() - interval '1 h', now() - interval '1 h', now() - interval '30 min', 'system', 'bench'
FROM tenuto.schedules
WHERE name = $2
"""
# Each fifth step failed once and was tried again.
_WIDE_STEPS = """
INSERT INTO tenuto.activities (
    id, task_id, attempt, status, reason, final, kind, name, queue, priority, created_at, run_at, claimed_at,
    started_at, ended_at, fence, worker_id, failures, losses, input, error, initiator_type, initiator_name,
    execution_id, group_index, step_index
)
SELECT pg_temp.id('step' || attempt, at + (attempt - 1) * interval '5 s', n + $4),
       pg_temp.id('step1', at, n + $4), attempt,
       CASE WHEN attempt = last THEN 'completed' ELSE 'failed' END, CASE WHEN attempt < last THEN 'error' END,
       attempt = last, 'job', 'step', 'default', 0, at, at + (attempt - 1) * interval '5 s',
       at + (attempt - 1) * interval '5 s', at + (attempt - 1) * interval '5 s' + interval '100 ms',
       at + (attempt - 1) * interval '5 s' + interval '4 s', attempt, pg_temp.id('worker', now(), 1 + n % 4),
       attempt - 1, 0, '{}',
       CASE WHEN attempt < last
            THEN '{"type": "ConnectionError", "message": "the server does not respond"}'::jsonb END,
       'system', 'bench', $1, n / $3, n % $3
FROM (
    SELECT n, now() - interval '1 h' + n / $3 * interval '20 s' AS at, CASE WHEN n % 5 = 0 THEN 2 ELSE 1 END AS last
    FROM generate_series(0, $2::bigint - 1) AS n
) AS given
CROSS JOIN LATERAL generate_series(1, last) AS attempt
"""
_DEAD_LETTERS = """
INSERT INTO tenuto.dead_letters (id, manifest_id, external_id, item, task_id, activity_id, dead_lettered_at, reason,
                                 fingerprint, attempts, input, name)
SELECT pg_temp.id('dead_letter', at, n), manifest.id, manifest.external_id, 'item ' || n,
       pg_temp.id('dead_lettered', at, n), pg_temp.id('dead_lettered', at, n), at,
       'ConnectionError: the server ' || n % $2 || ' does not respond',
       md5('failure' || n % $2), 3, '{"number": 17}', manifest.job
FROM (SELECT n, now() - ($1 - n) * interval '1 minute' AS at FROM generate_series(1, $1::bigint) AS n) AS given
JOIN (SELECT *, row_number() OVER (ORDER BY external_id) - 1 AS k FROM tenuto.manifests) AS manifest
  ON k = n % $3::bigint
"""
_BATCHES = """
INSERT INTO tenuto.batches (id, manifest_id, external_id, name, total, created_at, complete_at, initiator_type,
                            initiator_name)
SELECT pg_temp.id('batch', at, n), manifest.id, manifest.external_id, 'batch ' || n, 0, at, at, 'system', 'bench'
FROM (SELECT n, now() - ($1 - n) * interval '1 hour' AS at FROM generate_series(1, $1::bigint) AS n) AS given
JOIN (SELECT *, row_number() OVER (ORDER BY external_id) - 1 AS k FROM tenuto.manifests) AS manifest
  ON k = n % $2::bigint
"""
# Each thousandth one is running.
_ONE_SHOTS = """
INSERT INTO tenuto.tasks (id, activity_id, state, queue, rank, run_at, kind, name, input, created_at, fence, worker_id,
                          lease_until, claimed_at, began_at, initiator_type, initiator_name, origin, tags)
SELECT id, id, CASE WHEN is_running THEN 'running' ELSE 'scheduled' END, 'default', 0,
       CASE WHEN is_running THEN at ELSE now() + n * interval '20 s' END, 'step', 'log.append',
       '{"log": "log-1", "message": "Hello"}', at, is_running::integer,
       CASE WHEN is_running THEN pg_temp.id('worker', now(), 1) END,
       CASE WHEN is_running THEN now() + interval '1 day' END, CASE WHEN is_running THEN at END,
       CASE WHEN is_running THEN at END, 'user', 'ana', 'once', CASE WHEN n % 10 = 0 THEN ARRAY['reminder'] END
FROM (
    SELECT n, at, n % 1000 = 0 AS is_running, pg_temp.id('one-shot', at, n) AS id
    FROM (SELECT n, now() - ($1 - n) * interval '10 s' AS at FROM generate_series(1, $1::bigint) AS n) AS given
) AS made
"""
# Each tenth one is still running; the newest one lists failed items.
_BULK_OPERATIONS = """
INSERT INTO tenuto.bulk_operations (id, kind, filter, description, until, reason, state, total, succeeded, failed,
                                    skipped, arrived, created_at, processed_at, ended_at, actor_type, actor_name)
SELECT pg_temp.id('operation', at, n), 'task.cancel', 'name:job-7', 'open tasks with name job-7', at, 'not needed',
       CASE WHEN n % 10 = 9 THEN 'running' ELSE 'ended' END, 1000, 400, 100, 0, 0, at, at + interval '20 s',
       CASE WHEN n % 10 <> 9 THEN at + interval '20 s' END, 'user', 'ana'
FROM (SELECT n, now() - ($1 - n) * interval '1 hour' AS at FROM generate_series(1, $1::bigint) AS n) AS given
"""
_BULK_OPERATION_ITEMS = """
INSERT INTO tenuto.bulk_operation_items (operation_id, item_id, outcome, code, message)
SELECT $1::uuid, pg_temp.id('item', now(), n), 'failed', 'task.not_found', 'the task has ended'
FROM generate_series(1, 100) AS n
"""
_LOG_ENTRIES = """
INSERT INTO tenuto.log_entries (log, at, message, fields, key)
SELECT 'log-' || CASE WHEN n % 2 = 0 THEN 1 ELSE n % $2::bigint END, now() - ($1 - n) * interval '1 s',
       'shelf ' || n || ' counted', '{"shelves": 12}', pg_temp.id('entry', now(), n)
FROM generate_series(1, $1::bigint) AS n
"""
_AUDIT = """
INSERT INTO tenuto.audit (id, at, actor_type, actor_name, source, action, target, reason)
SELECT pg_temp.id('audit', at, n), at, 'user', (ARRAY['ana', 'ben'])[1 + n % 2], 'web', 'queue.pause', 'queue:mail',
       'server down'
FROM (SELECT n, now() - ($1 - n) * interval '5 minutes' AS at FROM generate_series(1, $1::bigint) AS n) AS given
"""
# The buckets of the charts, as a scheduler would have added them; waits and durations are in one bin each.
_ROLLUPS = """
INSERT INTO tenuto.activity_rollups (bucket_seconds, dimension, label, bucket_at, completed, warnings, errors, failed,
                                     cancelled, wait_bins, run_bins)
SELECT $1::integer, dimension, label, date_bin($1::integer * interval '1 s', ended_at, '2000-01-01 00:00:00+00'),
       count(*) FILTER (WHERE status = 'completed'), 0, 0, count(*) FILTER (WHERE status = 'failed'), 0,
       array_fill(0, ARRAY[14]) || count(*)::integer, array_fill(0, ARRAY[38]) || count(*)::integer
FROM tenuto.activities
CROSS JOIN LATERAL (VALUES ('all', ''), ('queue', queue), ('name', name)) AS divided (dimension, label)
WHERE id >= pg_temp.id('', now() - $2::interval, 0)
GROUP BY dimension, label, 4
"""
_ROLLUPS_ADDED = """
INSERT INTO tenuto.rollup_progress (next_transaction_id, in_progress, since)
VALUES (pg_snapshot_xmax(pg_current_snapshot())::text::bigint, '{}', now())
ON CONFLICT (singleton) DO UPDATE SET next_transaction_id = excluded.next_transaction_id, since = excluded.since
"""
_LANDMARKS = """
SELECT $1::uuid, $2::uuid,
       (SELECT id FROM tenuto.executions WHERE id NOT IN ($1, $2) ORDER BY id DESC LIMIT 1),
       (SELECT id FROM tenuto.dead_letters ORDER BY id DESC LIMIT 1),
       (SELECT id FROM tenuto.batches ORDER BY id DESC LIMIT 1),
       (SELECT id FROM tenuto.activities WHERE execution_id IS NULL ORDER BY id DESC LIMIT 1),
       (SELECT id FROM tenuto.bulk_operations WHERE state = 'ended' ORDER BY id DESC LIMIT 1)
"""
_TRIGGERS: tuple[Trigger, ...] = (
    cron("0 * * * *", zone="Europe/London"),
    cron("30 1 * * *", zone="Europe/London"),
    cron("*/15 8-18 * * mon-fri", zone="America/New_York"),
    at(["02:00", "14:30"], zone="Europe/Berlin"),
    every("30m"),
    every("6h"),
    cron("5 4 * * sun"),
    cron("*/5 * * * *"),
    at(["09:00"], days="mon,wed,fri", zone="Asia/Kolkata"),
    every("2h"),
)


def make_app(url: str, home: str | None = None) -> Tenuto:
    """Return the app whose schedules and jobs the data set is made of."""
    app = Tenuto(settings=load_settings(database=url, home=home, disabled_extensions=("identity",)))

    @app.job
    async def step(number: int = 0) -> int:
        """Return its argument."""
        return number

    @app.job
    async def bill(number: int) -> int:
        """Return its argument."""
        return number

    for number, trigger in enumerate(_TRIGGERS):
        app.schedule(f"Schedule {number}", trigger, [Step.job(step, name="Import"), Step.job(step, name="Export")])
    wide = WIDE_STEPS // WIDE_GROUPS
    groups = [
        [Step.job(step, group * wide + number, name=f"Step {group * wide + number}") for number in range(wide)]
        for group in range(WIDE_GROUPS)
    ]
    app.schedule(WIDE_SCHEDULE, cron("0 3 * * *"), groups)
    group = [Step.job(step, number, name=f"Step {number}") for number in range(HUGE_STEPS)]
    app.schedule(HUGE_SCHEDULE, cron("0 4 * * *"), [group])
    app.manifest("bills", bill, on_demand=True)
    return app


async def fill(url: str, size: DataSize) -> Landmarks:
    """Create the data set."""
    async with make_app(url) as app:
        database = await app.open()
        now = database.clock.now()
        for months in (2, 1, 0):
            await partitions.ensure_partitions(database, now - timedelta(days=30.5 * months))
        await app.schedules.deploy()
        await app.manifests.deploy()
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SET synchronous_commit TO off")
        await connection.execute(_ID_FUNCTION)
        landmarks = await _insert(connection, size)
        await connection.execute("VACUUM (ANALYZE)", timeout=600)
        await connection.execute("CHECKPOINT", timeout=300)
    finally:
        await connection.close()
    return landmarks


async def _insert(connection: asyncpg.Connection, size: DataSize) -> Landmarks:
    progress(f"creating {size.activities:,} activities and {size.tasks:,} open tasks")
    await connection.execute(_WORKER)
    found = await connection.fetchrow(
        "SELECT count(*) AS templates FROM tenuto.schedules WHERE name <> ALL ($1::text[])", APART_SCHEDULES
    )
    assert found is not None
    copied = size.schedules - len(APART_SCHEDULES)
    await connection.execute(_SCHEDULES, copied - found["templates"], APART_SCHEDULES)
    await connection.execute(_MANIFESTS, MANIFEST_COUNT - 1)
    apart = timedelta(days=HISTORY_DAYS) / size.activities
    began = await connection.fetchval("SELECT now() - $1::interval", timedelta(days=HISTORY_DAYS))
    step = 50_000
    for done in range(0, size.activities, step):
        count = min(step, size.activities - done)
        await connection.execute(
            _ACTIVITIES, count, began + done * apart, apart, done, RARE_NAME, NAME_COUNT, timeout=600
        )
    apart = timedelta(days=EXECUTION_DAYS) / size.executions
    await connection.execute(_EXECUTIONS, size.executions, apart, copied, APART_SCHEDULES, timeout=600)
    await connection.execute(_TASKS, size.tasks, NAME_COUNT, timeout=600)
    await connection.execute(_LEDGER)
    wide, huge = [
        await _insert_execution(connection, schedule, -number, steps, groups)
        for number, (schedule, steps, groups) in enumerate(
            ((WIDE_SCHEDULE, WIDE_STEPS, WIDE_GROUPS), (HUGE_SCHEDULE, HUGE_STEPS, 1))
        )
    ]
    await connection.execute(_DEAD_LETTERS, size.dead_letters, FAILURE_COUNT, MANIFEST_COUNT)
    await connection.execute(_BATCHES, size.batches, MANIFEST_COUNT)
    await connection.execute(_AUDIT, size.executions)
    await connection.execute(_ONE_SHOTS, size.one_shots)
    await connection.execute(_BULK_OPERATIONS, size.bulk_operations)
    await connection.execute(_LOG_ENTRIES, size.log_entries, LOG_COUNT)
    progress("adding the activities to the buckets of the charts")
    for seconds in BUCKET_SECONDS:
        await connection.execute(_ROLLUPS, seconds, BUCKET_RETENTION.get(seconds, CHART_TIME), timeout=600)
    await connection.execute(_ROLLUPS_ADDED)
    found = await connection.fetchrow(_LANDMARKS, wide, huge)
    assert found is not None
    landmarks = Landmarks(*found)
    await connection.execute(_BULK_OPERATION_ITEMS, landmarks.bulk_operation)
    return landmarks


async def _insert_execution(
    connection: asyncpg.Connection, schedule: str, number: int, step_count: int, group_count: int
) -> UUID:
    """Insert an ended execution with all its steps; ``number`` makes its id unique."""
    id: UUID = await connection.fetchval("SELECT pg_temp.id('execution', now() - interval '1 h', $1)", number)
    await connection.execute(_WIDE_EXECUTION, id, schedule, step_count)
    await connection.execute(_WIDE_STEPS, id, step_count, step_count // group_count, number * HUGE_STEPS)
    return id
