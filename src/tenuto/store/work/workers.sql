-- name: lock_live_process_by_name
-- Return and lock the live process with this name, and how long its leases run, so that two new processes do not
-- decide at once.
SELECT id, host, boot, pid, seen_at, clock_timestamp() - seen_at AS silent_for,
       (SELECT max(lease_until) - clock_timestamp()
        FROM tenuto.tasks
        WHERE state = 'running' AND worker_id = workers.id AND lease_until > clock_timestamp()) AS leased_for
FROM tenuto.workers
WHERE service = $1 AND name = $2 AND ended_at IS NULL
FOR UPDATE;

-- name: register_process
-- Register a new process.
INSERT INTO tenuto.workers (
    id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at, silence_limit, jobs, kinds
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, clock_timestamp(), clock_timestamp(), $10, $11, $12)
ON CONFLICT (id) DO NOTHING;

-- name: record_declarations
-- Record the schedules and manifests that the app of a process declares.
UPDATE tenuto.workers
SET declared_schedules = $2, declared_manifests = $3
WHERE id = $1;

-- name: mark_ended
-- Mark a process as ended by itself. It can no longer claim tasks.
UPDATE tenuto.workers
SET ended_at = clock_timestamp()
WHERE id = $1 AND ended_at IS NULL;

-- name: mark_proven_ended
-- Mark a process as ended whose end is proven, because another process got the lock of its name.
UPDATE tenuto.workers
SET lost_transaction_id = pg_current_xact_id()::text::bigint, ended_at = clock_timestamp()
WHERE id = $1 AND ended_at IS NULL;

-- name: mark_silent_ended
-- Mark a silent process as ended, without proof. Its end is its last heartbeat, which distinguishes it from proven
-- ends.
UPDATE tenuto.workers
SET lost_transaction_id = pg_current_xact_id()::text::bigint,
    ended_at = seen_at -- guard: workers.silent_worker_ends_at_last_heartbeat
WHERE id = $1 AND ended_at IS NULL;

-- name: record_heartbeat
-- Store a heartbeat. Returns nothing if another process marked this one as ended.
UPDATE tenuto.workers
SET seen_at = clock_timestamp()
WHERE id = $1 AND ended_at IS NULL -- guard: workers.dead_worker_heartbeat
RETURNING clock_timestamp() AS now;

-- name: update_handlers
-- Store the jobs and step kinds that a worker knows.
UPDATE tenuto.workers
SET jobs = $2, kinds = $3
WHERE id = $1;

-- name: update_slots
-- Store how many attempts a worker can run at the same time by now; 0 while its cluster does not answer.
UPDATE tenuto.workers
SET slots = $2
WHERE id = $1;

-- name: mark_draining
-- Record that a process claims no more tasks.
UPDATE tenuto.workers
SET draining_at = coalesce(draining_at, clock_timestamp())
WHERE id = $1;

-- name: drain_worker
-- Ask a live worker to claim no more tasks, and notify it. The first actor and reason stay.
WITH drained AS (
    UPDATE tenuto.workers
    SET draining_at = clock_timestamp(),
        drained_by = $2,
        drain_reason = $3
    WHERE name = $1 AND service = 'worker' AND ended_at IS NULL AND draining_at IS NULL
    RETURNING id
)
SELECT id, pg_notify('tenuto', 'drain ' || id)
FROM drained;

-- name: resume_worker
-- Let a worker that an operator drained claim tasks again, and notify it.
WITH resumed AS (
    UPDATE tenuto.workers
    SET draining_at = NULL,
        drained_by = NULL,
        drain_reason = NULL
    WHERE name = $1 AND service = 'worker' AND ended_at IS NULL AND drained_by IS NOT NULL
    RETURNING id
)
SELECT id, pg_notify('tenuto', 'drain ' || id)
FROM resumed;

-- name: is_draining
-- Return whether a process must claim no more tasks.
SELECT draining_at IS NOT NULL AS is_draining
FROM tenuto.workers
WHERE id = $1;

-- name: has_live_worker
-- Return whether a live worker has this name.
SELECT EXISTS (SELECT FROM tenuto.workers WHERE name = $1 AND service = 'worker' AND ended_at IS NULL) AS found;

-- name: find_ended_holders
-- Return processes that are proven dead and still hold tasks. Processes that were ended because they were silent are
-- excluded: they may have claimed a task since, and keep it until its lease expires.
SELECT DISTINCT held.worker_id AS id
FROM tenuto.tasks AS held
JOIN tenuto.workers ON workers.id = held.worker_id
WHERE held.state = 'running' AND workers.ended_at <> workers.seen_at -- guard: workers.silent_worker_keeps_leases
LIMIT $1;

-- name: end_silent_processes
-- Mark processes as ended (see mark_silent_ended) that are silent and hold nothing, except the caller's own $2.
UPDATE tenuto.workers
SET lost_transaction_id = pg_current_xact_id()::text::bigint,
    ended_at = seen_at -- guard: workers.silent_worker_ends_at_last_heartbeat
WHERE ended_at IS NULL
  AND seen_at < clock_timestamp() - $1::interval
  AND id <> ALL ($2::uuid[])
  -- guard: workers.holder_stays_registered
  AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE state = 'running' AND worker_id = workers.id)
RETURNING id;

-- name: delete_ended_processes
-- Delete processes that ended long ago.
DELETE FROM tenuto.workers
WHERE ended_at < $1;

-- name: list_workers
-- Return processes, newest first, with the number of their tasks and when the last lease of these ends.
SELECT id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at, draining_at, drained_by,
       drain_reason, ended_at, clock_timestamp() - seen_at AS silent_seconds, jobs, kinds, tenuto.process_state(workers) AS state,
       held.running_count, held.recovered_at
FROM tenuto.workers
CROSS JOIN LATERAL (
    SELECT count(*) AS running_count, max(lease_until) AS recovered_at
    FROM tenuto.tasks
    WHERE state = 'running' AND worker_id = workers.id
) AS held
WHERE $1 OR ended_at IS NULL
ORDER BY started_at DESC, id
LIMIT $2;

-- name: count_repair
-- Count a repair.
INSERT INTO tenuto.repairs (net, count, last_at)
VALUES ($1, $2, clock_timestamp())
ON CONFLICT (net) DO UPDATE SET count = repairs.count + excluded.count, last_at = excluded.last_at;

-- name: list_repairs
-- Return the number of repairs of each kind.
SELECT net AS repair, count, last_at
FROM tenuto.repairs
ORDER BY net
LIMIT 100;

-- name: limit_queue
-- Limit how many tasks of a queue run at once; null removes the limit. A pause stays.
INSERT INTO tenuto.queues (name, max_running)
VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET max_running = excluded.max_running
WHERE queues.max_running IS DISTINCT FROM excluded.max_running
RETURNING name;

-- name: limit_queue_rate
-- Limit how many tasks of a queue start per period; null removes the limit. Its parked tasks are released at once, and wait
-- again if there is no token.
WITH changed AS (
    INSERT INTO tenuto.queues (name, rate_limit)
    VALUES ($1, $2)
    ON CONFLICT (name) DO UPDATE SET rate_limit = excluded.rate_limit
    WHERE queues.rate_limit IS DISTINCT FROM excluded.rate_limit
    RETURNING name
), bucket AS (
    UPDATE tenuto.rate_buckets
    SET rate_limit = $2,
        next_at = least(next_at, clock_timestamp() + tenuto.rate_interval($2)),
        release_at = clock_timestamp()
    WHERE scope = 'queue ' || $1::text AND EXISTS (SELECT FROM changed)
    RETURNING scope
)
SELECT name, (SELECT count(*) FROM bucket) AS bucket_count
FROM changed;

-- name: delete_unused_buckets
-- Delete the buckets of rate limits that are full and for which no task is parked.
DELETE FROM tenuto.rate_buckets
WHERE release_at IS NULL AND next_at < clock_timestamp() - interval '2 hours' -- a burst fills within one hour
RETURNING scope;

-- name: pause_queue
-- Pause a queue. The first actor and reason stay.
INSERT INTO tenuto.queues (name, paused_at, paused_by, reason)
VALUES ($1, clock_timestamp(), $2, $3)
ON CONFLICT (name) DO UPDATE
SET paused_at = excluded.paused_at,
    paused_by = excluded.paused_by,
    reason = excluded.reason
WHERE queues.paused_at IS NULL
RETURNING name;

-- name: resume_queue
-- Resume a queue. Its limit stays.
UPDATE tenuto.queues
SET paused_at = NULL,
    paused_by = NULL,
    reason = NULL
WHERE name = $1
  AND paused_at IS NOT NULL
RETURNING name;

-- name: list_queues
-- Return all queues that have settings or open tasks, with task counts and the jobs that no live worker knows.
WITH unknown AS MATERIALIZED (
    SELECT queue, name FROM tenuto.unknown_jobs(1000)
)
SELECT coalesce(queues.name, counted.queue) AS name, queues.max_running, queues.paused_at, queues.paused_by,
       queues.reason, coalesce(counted.queued, 0) AS queued_count, coalesce(counted.scheduled, 0) AS scheduled_count,
       coalesce(counted.running, 0) AS running_count, counted.oldest_due_at,
       (SELECT count(*)
        FROM tenuto.workers
        WHERE workers.service = 'worker'
          AND tenuto.process_state(workers) = 'alive'
          AND coalesce(queues.name, counted.queue) = ANY (workers.queues)) AS worker_count,
       ARRAY(
           SELECT unknown.name FROM unknown WHERE unknown.queue = counted.queue ORDER BY unknown.name
       ) AS unknown_jobs,
       queues.rate_limit
FROM tenuto.queues
FULL JOIN (
    SELECT queue,
           count(*) FILTER (WHERE state = 'queued') AS queued,
           count(*) FILTER (WHERE state = 'scheduled') AS scheduled,
           count(*) FILTER (WHERE state = 'running') AS running,
           min(run_at) FILTER (WHERE state = 'queued') AS oldest_due_at
    FROM tenuto.tasks
    GROUP BY queue
) AS counted ON counted.queue = queues.name
ORDER BY 1
LIMIT $1;
