-- now() instead of clock_timestamp() throughout: only a value that is stable within a statement can use an index.

-- name: count_queued_by_queue
-- Count the queued tasks of each queue, and how long the oldest has been due. Two branches, because tasks with a
-- limit key have their own index. With the number of live workers of the queue.
SELECT queue, sum(waiting)::bigint AS count,
       greatest(0, extract(epoch FROM now() - min(oldest)))::double precision AS oldest_seconds,
       (SELECT count(*)
        FROM tenuto.workers
        WHERE service = 'worker' AND tenuto.process_state(workers) = 'alive' AND free.queue = ANY (queues)
       ) AS worker_count
FROM (
    SELECT queue, count(*) AS waiting, min(run_at) AS oldest
    FROM tenuto.tasks
    WHERE state = 'queued' AND limit_key IS NULL
    GROUP BY queue
    UNION ALL
    SELECT queue, count(*), min(run_at)
    FROM tenuto.tasks
    WHERE state = 'queued' AND limit_key IS NOT NULL
    GROUP BY queue
) AS free
GROUP BY queue
ORDER BY count DESC, queue
LIMIT 200;

-- name: count_running_by_queue
-- Count the running tasks of each queue with a live lease and with an expired one.
SELECT queue,
       count(*) FILTER (WHERE lease_until > now()) AS live_count,
       count(*) FILTER (WHERE lease_until <= now()) AS overdue_count
FROM tenuto.tasks
WHERE state = 'running'
GROUP BY queue
ORDER BY live_count DESC, queue
LIMIT 200;

-- name: count_scheduled
-- Count scheduled tasks, including due ones that were not promoted yet.
SELECT count(*) AS scheduled
FROM tenuto.tasks
WHERE state = 'scheduled' AND (parked_for IS NULL OR parked_for IS NOT NULL); -- both indexes

-- name: count_waiting
-- Count tasks that wait for a step group, an execution or a paused batch. Waiting tasks belong to an execution or a
-- paused batch, so only those are read.
SELECT (
    SELECT count(*)
    FROM tenuto.tasks
    WHERE execution_id IS NOT NULL AND state = 'waiting'
) + (
    SELECT count(*)
    FROM tenuto.batches
    CROSS JOIN LATERAL (
        SELECT
        FROM tenuto.tasks
        WHERE tasks.batch_id = batches.id AND tasks.state = 'waiting' AND tasks.batch_id IS NOT NULL
    ) AS held
    WHERE batches.paused_at IS NOT NULL
) AS waiting;

-- name: count_open_dead_letters
-- Count open dead letters.
SELECT count(*) AS open
FROM tenuto.dead_letters
WHERE status = 'awaiting_intervention';

-- name: count_open_executions
-- Count open executions, and how many of them are paused.
SELECT count(*) AS in_progress_count, count(paused_at) AS paused_count
FROM tenuto.executions
WHERE ended_at IS NULL;

-- name: count_due_definitions
-- Count due schedules and manifests, and the largest delay of each.
SELECT 'schedule' AS kind, count(*) AS due_count,
       coalesce(extract(epoch FROM now() - min(next_run_at)), 0)::double precision AS late_seconds
FROM tenuto.schedules
WHERE enabled AND next_run_at IS NOT NULL AND next_run_at <= now()
UNION ALL
SELECT 'manifest', count(*),
       coalesce(extract(epoch FROM now() - min(next_run_at)), 0)::double precision
FROM tenuto.manifests
WHERE enabled AND next_run_at IS NOT NULL AND next_run_at <= now();

-- name: find_most_overdue_schedule
-- Return the most overdue schedule.
SELECT name, extract(epoch FROM now() - next_run_at)::double precision AS late_seconds
FROM tenuto.schedules
WHERE enabled AND next_run_at IS NOT NULL AND next_run_at <= now()
ORDER BY next_run_at, id
LIMIT 1;

-- name: misses_scheduler
-- Return whether work is planned that only a scheduler starts, schedulers were registered, and none is alive.
SELECT (
    EXISTS (SELECT FROM tenuto.schedules WHERE enabled AND next_run_at IS NOT NULL)
    OR EXISTS (SELECT FROM tenuto.manifests WHERE enabled AND next_run_at IS NOT NULL)
) AND EXISTS (SELECT FROM tenuto.workers WHERE service = 'scheduler')
  AND NOT EXISTS (
    SELECT
    FROM tenuto.workers
    WHERE service = 'scheduler' AND tenuto.process_state(workers) = 'alive'
) AS misses_scheduler;

-- name: list_services
-- Return for each kind of service the number of processes, the slots of those that claim tasks, and the time since
-- the latest heartbeat.
SELECT service,
       count(*) FILTER (WHERE tenuto.process_state(workers) IN ('alive', 'draining')) AS alive_count,
       count(*) FILTER (WHERE tenuto.process_state(workers) = 'dead') AS dead_count,
       coalesce(sum(slots) FILTER (WHERE tenuto.process_state(workers) = 'alive'), 0) AS slots,
       extract(epoch FROM now() - max(seen_at))::double precision AS heartbeat_age_seconds
FROM tenuto.workers
WHERE ended_at IS NULL
GROUP BY service
ORDER BY service
LIMIT 10;

-- name: list_unknown_jobs
-- Return the jobs and step kinds that no live worker of their queue knows, among the first $1 due tasks of each queue.
SELECT queue, kind, name, task_count, oldest_due_at
FROM tenuto.unknown_jobs($1::integer)
ORDER BY task_count DESC, queue, kind, name
LIMIT 100;

-- name: list_repairs
-- Return the number of repairs of each kind since the schema was created.
SELECT net AS repair, count
FROM tenuto.repairs
ORDER BY net
LIMIT 100;

-- name: summarise_recent_attempts
-- Summarise attempts that ended within the last $1: number, duration and start delay. The BRIN index leads to the few
-- recent pages.
SELECT status AS state, coalesce(reason, '') AS reason, count(*) AS attempt_count,
       coalesce(sum(extract(epoch FROM ended_at - started_at)), 0)::double precision AS run_seconds,
       coalesce(max(extract(epoch FROM ended_at - started_at)), 0)::double precision AS max_run_seconds,
       greatest(0, coalesce(max(extract(epoch FROM started_at - run_at)), 0))::double precision AS max_start_delay_seconds
FROM tenuto.activities
WHERE ended_at > now() - $1::interval
GROUP BY status, activities.reason
ORDER BY status, activities.reason
LIMIT 100;

-- name: ping
-- Check that the database answers.
SELECT 1;
