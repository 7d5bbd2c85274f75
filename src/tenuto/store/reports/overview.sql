-- name: list_queue_figures
-- Return queues with settings or with queued or running tasks. Each branch reads one partial index.
SELECT coalesce(queues.name, counted.queue) AS name, queues.max_running, queues.paused_at, queues.paused_by,
       queues.reason, coalesce(counted.queued, 0)::bigint AS queued_count, counted.oldest_due_at,
       coalesce(counted.running, 0)::bigint AS running_count, queues.rate_limit
FROM tenuto.queues
FULL JOIN (
    SELECT queue, sum(queued) AS queued, min(oldest_due_at) AS oldest_due_at, sum(running) AS running
    FROM (
        SELECT queue, count(*) AS queued, min(run_at) AS oldest_due_at, 0 AS running
        FROM tenuto.tasks
        WHERE state = 'queued' AND limit_key IS NULL
        GROUP BY queue
        UNION ALL
        SELECT queue, count(*), min(run_at), 0
        FROM tenuto.tasks
        WHERE state = 'queued' AND limit_key IS NOT NULL
        GROUP BY queue
        UNION ALL
        SELECT queue, 0, NULL, count(*) FILTER (WHERE NOT standby)
        FROM tenuto.tasks
        WHERE state = 'running'
        GROUP BY queue
    ) AS parts
    GROUP BY queue
) AS counted ON counted.queue = queues.name
ORDER BY coalesce(counted.queued, 0) + coalesce(counted.running, 0) DESC, 1
LIMIT $1;

-- name: list_queue_obstacles
-- Return of some queues what keeps their tasks from being claimed: a pause, a reached limit, no live worker.
SELECT wanted.name, queues.paused_by, queues.reason AS pause_reason, queues.paused_at, queues.max_running,
       CASE WHEN queues.max_running IS NULL THEN 0 ELSE (
           SELECT count(*) FROM tenuto.tasks
           WHERE state = 'running' AND NOT standby AND queue = wanted.name AND lease_until > clock_timestamp()
       ) END AS running_count,
       EXISTS (
           SELECT
           FROM tenuto.workers
           WHERE service = 'worker' AND draining_at IS NULL AND wanted.name = ANY (workers.queues)
             AND tenuto.process_state(workers) = 'alive'
       ) AS is_served
FROM unnest($1::text[]) AS wanted (name)
LEFT JOIN tenuto.queues ON queues.name = wanted.name
ORDER BY wanted.name;

-- name: count_open_work
-- Count active executions, due or running tasks, open dead letters and one-shots, each up to $1 rows by index-only
-- scans, the live workers, and up to $2 batches with open items by a loose index scan.
WITH RECURSIVE open_batches AS (
    (SELECT batch_id, 1 AS number FROM tenuto.tasks WHERE batch_id IS NOT NULL ORDER BY batch_id LIMIT 1)
    UNION ALL
    SELECT (SELECT later.batch_id
            FROM tenuto.tasks AS later
            WHERE later.batch_id > open_batches.batch_id
            ORDER BY later.batch_id
            LIMIT 1),
           open_batches.number + 1
    FROM open_batches
    WHERE open_batches.batch_id IS NOT NULL
      AND open_batches.number <= $2
)
SELECT (SELECT count(batch_id) FROM open_batches) AS batch_count,
       (SELECT count(*) FROM (SELECT FROM tenuto.executions WHERE ended_at IS NULL LIMIT $1) AS found) AS execution_count,
       (SELECT count(*)
        FROM (
            (SELECT FROM tenuto.tasks WHERE state = 'running' LIMIT $1)
            UNION ALL
            (SELECT FROM tenuto.tasks WHERE state = 'queued' AND limit_key IS NULL LIMIT $1)
            UNION ALL
            (SELECT FROM tenuto.tasks WHERE state = 'queued' AND limit_key IS NOT NULL LIMIT $1)
            LIMIT $1
        ) AS found) AS task_count,
       (SELECT count(*)
        FROM (SELECT FROM tenuto.dead_letters WHERE status = 'awaiting_intervention' LIMIT $1) AS found) AS dead_letter_count,
       (SELECT count(*) FROM (SELECT FROM tenuto.tasks WHERE origin = 'once' LIMIT $1) AS found) AS one_shot_count,
       (SELECT count(*)
        FROM tenuto.workers
        WHERE service = 'worker' AND ended_at IS NULL AND tenuto.process_state(workers) <> 'dead') AS worker_count;

-- name: load_queue_settings
-- Return the limits and the pause of a queue.
SELECT max_running, paused_at, paused_by, reason, rate_limit FROM tenuto.queues WHERE name = $1;

-- name: count_new_tasks
-- Count the newest tasks by queue, open or ended, and since when they were created. Ids contain the creation time, so
-- the primary keys lead to them; a branch reads at most $2 rows, and then the span is shorter.
WITH open_tasks AS (
    SELECT queue, created_at
    FROM tenuto.tasks
    WHERE id >= $1
    ORDER BY id DESC
    LIMIT $2
), ended_tasks AS (
    SELECT queue, created_at
    FROM tenuto.activities
    WHERE id >= $1 AND attempt = 1
    ORDER BY id DESC
    LIMIT $2
), span AS (
    SELECT greatest(
               $3::timestamptz,
               (SELECT min(created_at) FROM open_tasks HAVING count(*) = $2),
               (SELECT min(created_at) FROM ended_tasks HAVING count(*) = $2)
           ) AS since
)
SELECT queue, count(*) AS count, min(span.since) AS since
FROM (SELECT queue, created_at FROM open_tasks UNION ALL SELECT queue, created_at FROM ended_tasks) AS created
CROSS JOIN span
WHERE created_at >= span.since
GROUP BY queue
ORDER BY queue
LIMIT 1000;

-- name: list_failures
-- Group open dead letters by kind of failure, most frequent first, with some of their manifests. They are counted by
-- manifest and job first, so that only these few rows are sorted.
WITH parts AS MATERIALIZED (
    SELECT fingerprint, external_id, name, count(*) AS count, min(dead_lettered_at) AS first_at,
           max(dead_lettered_at) AS last_at
    FROM tenuto.dead_letters
    WHERE status = 'awaiting_intervention'
    GROUP BY fingerprint, external_id, name
), groups AS (
    SELECT fingerprint, sum(count)::bigint AS dead_letter_count, min(first_at) AS first_at, max(last_at) AS last_at,
           coalesce((array_agg(DISTINCT external_id) FILTER (WHERE external_id <> ''))[1:5], '{}') AS external_ids,
           count(DISTINCT external_id) FILTER (WHERE external_id <> '') AS manifest_count,
           (array_agg(DISTINCT name))[1:5] AS names, count(DISTINCT name) AS job_count,
           (sum(sum(count)) OVER ())::bigint AS total_count
    FROM parts
    GROUP BY fingerprint
    ORDER BY sum(count) DESC, fingerprint
    LIMIT $1
)
SELECT groups.*, newest.reason
FROM groups
CROSS JOIN LATERAL (
    SELECT reason
    FROM tenuto.dead_letters
    WHERE status = 'awaiting_intervention' AND dead_letters.fingerprint = groups.fingerprint
    ORDER BY id DESC
    LIMIT 1
) AS newest
ORDER BY dead_letter_count DESC, fingerprint;

-- name: list_unresolved_executions
-- Return for each schedule the last execution that completed or failed, if it failed, newest first, with the execution
-- that is in progress.
SELECT failed.id, schedules.name AS schedule_name, failed.current_group, failed.total_groups AS group_count,
       failed.error, failed.ended_at,
       (SELECT id
        FROM tenuto.executions AS open
        WHERE open.schedule_id = schedules.id AND open.ended_at IS NULL
        ORDER BY id DESC
        LIMIT 1) AS running_id
FROM tenuto.schedules
CROSS JOIN LATERAL (
    SELECT id, state, current_group, total_groups, error, ended_at
    FROM tenuto.executions
    WHERE executions.schedule_id = schedules.id
      AND state IN ('completed', 'failed')
    ORDER BY id DESC
    LIMIT 1
) AS failed
WHERE failed.state = 'failed'
  AND failed.ended_at IS NOT NULL
ORDER BY failed.ended_at DESC, failed.id
LIMIT $1;

-- name: list_paused_objects
-- Return paused executions and batches, and disabled groups of manifests, latest first. Paused queues are in the figures
-- of queues.
SELECT 'execution' AS kind, id::text AS id, schedule_name AS name, paused_at, paused_by, NULL AS reason
FROM tenuto.executions
WHERE ended_at IS NULL AND paused_at IS NOT NULL
UNION ALL
SELECT 'batch', id::text, external_id, paused_at, paused_by, NULL
FROM tenuto.batches
WHERE paused_at IS NOT NULL
UNION ALL
SELECT 'manifest_group', name, name, changed_at, changed_by, NULL
FROM tenuto.manifest_groups
WHERE NOT enabled
ORDER BY paused_at DESC, id
LIMIT $1;

-- name: list_processes
-- Return the processes that have not ended, with the number of their tasks and when the last lease ends.
SELECT id, name, service, queues, slots, tenuto.process_state(workers) AS state,
       clock_timestamp() - seen_at AS silent_seconds, seen_at,
       coalesce(held.task_count, 0) AS running_count, held.lease_until AS recovered_at
FROM tenuto.workers
LEFT JOIN (
    SELECT worker_id, count(*) AS task_count, max(lease_until) AS lease_until
    FROM tenuto.tasks
    WHERE state = 'running'
    GROUP BY worker_id
) AS held ON held.worker_id = workers.id
WHERE ended_at IS NULL
ORDER BY service, name
LIMIT $1;

-- name: list_next_runs
-- Return the next runs of schedules and manifests, earliest first; runs that are late come first.
(
    SELECT 'schedule' AS kind, id, name, next_run_at AS due_at
    FROM tenuto.schedules
    WHERE enabled AND next_run_at IS NOT NULL
    ORDER BY next_run_at, id
    LIMIT $1
)
UNION ALL
(
    SELECT 'manifest', id, external_id, next_run_at
    FROM tenuto.manifests
    WHERE enabled AND next_run_at IS NOT NULL
    ORDER BY next_run_at, id
    LIMIT $1
)
ORDER BY due_at, kind, name
LIMIT $1;

-- name: list_recent_repairs
-- Return the repairs that were made since an instant, latest first.
SELECT net AS repair, count AS total_count, last_at
FROM tenuto.repairs
WHERE last_at >= $1
ORDER BY last_at DESC, net
LIMIT 100;

-- name: list_failed_operations
-- Return bulk operations that ended since an instant with failed items, latest first.
SELECT id, kind, description, total AS total_count, failed AS failed_count, state, ended_at, actor_name AS started_by
FROM tenuto.bulk_operations
WHERE ended_at >= $1
  AND failed > 0
ORDER BY ended_at DESC, id
LIMIT $2;

-- name: load_first_steps
-- Return whether a worker, a schedule or manifest, and an ended attempt exist.
SELECT EXISTS (SELECT FROM tenuto.workers WHERE service = 'worker') AS has_worker,
       EXISTS (SELECT FROM tenuto.schedules) OR EXISTS (SELECT FROM tenuto.manifests) AS has_definition,
       EXISTS (SELECT FROM tenuto.activities) AS has_run;
