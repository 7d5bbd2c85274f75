-- fragment: attempt
-- An attempt with its texts.
id, task_id, attempt, status AS state, reason, final, kind, name, queue, priority, created_at, run_at, claimed_at,
started_at, ended_at, fence, worker_id, failures AS failure_count, losses AS loss_count, input, output, error, log,
progress, unique_key, limit_key, tags, initiator_type, initiator_id, initiator_name, correlation_id, parent_id,
execution_id, group_index, step_index, manifest_id, batch_id, item_key, origin,
(SELECT workers.name FROM tenuto.workers WHERE workers.id = worker_id) AS worker

-- fragment: listed_attempt
-- An attempt as lists show it.
id, task_id, attempt, status AS state, reason, final, kind, name, queue, priority, created_at, run_at, claimed_at,
started_at, ended_at, worker_id, failures AS failure_count, losses AS loss_count, error, tags, initiator_type,
initiator_id, initiator_name, correlation_id,
(SELECT workers.name FROM tenuto.workers WHERE workers.id = worker_id) AS worker

-- fragment: listed_task
-- An open task as lists show it.
id, activity_id, state, queue, -rank AS priority, run_at, kind, name, attempt,
failures AS failure_count, losses AS loss_count, created_at,
claimed_at, lease_until, worker_id, progress, unique_key, limit_key, tags, cancel_at, cancel_name,
initiator_type, initiator_id, initiator_name, correlation_id,
(SELECT workers.name FROM tenuto.workers WHERE workers.id = worker_id) AS worker

-- name: list_partitions
-- Return the names of the partitions.
SELECT child.relname AS name
FROM pg_inherits
JOIN pg_class AS child ON child.oid = pg_inherits.inhrelid
WHERE pg_inherits.inhparent = 'tenuto.activities'::regclass
ORDER BY child.relname;

-- name: list_partitions_of_table
-- Return the names of the partitions of table $2 in schema $1.
SELECT child.relname AS name
FROM pg_inherits
JOIN pg_class AS child ON child.oid = inhrelid
JOIN pg_class AS parent ON parent.oid = inhparent
JOIN pg_namespace ON pg_namespace.oid = parent.relnamespace
WHERE nspname = $1 AND parent.relname = $2
ORDER BY child.relname;

-- name: load_names_of_default_partition
-- Return the names of the partition key and of the default partition of table $2 in schema $1, quoted.
SELECT quote_ident(attname) AS key, partdefid::regclass::text AS default
FROM pg_partitioned_table
JOIN pg_class ON pg_class.oid = partrelid
JOIN pg_namespace ON pg_namespace.oid = relnamespace
JOIN pg_attribute ON attrelid = partrelid AND attnum = partattrs[0]
WHERE nspname = $1 AND relname = $2 AND partdefid <> 0;

-- name: lock_partitions
-- Serialise the creation and removal of partitions, with a short lock timeout: all other transactions would wait
-- behind one that waits for a reader.
SELECT set_config('lock_timeout', '500ms', true), pg_advisory_xact_lock(hashtext('tenuto partitions'));

-- name: has_rows_in_default
-- Return whether the default partition contains ids of a range: then no partition can be created for it.
SELECT EXISTS (SELECT FROM tenuto.activities_old WHERE id >= $1 AND id < $2) AS taken;

-- name: allow_retention
-- Allow the deletion of activities in this transaction; only retention may do so.
SELECT set_config('tenuto.retention', 'on', true);

-- name: delete_old_default_rows
-- Delete a small batch of the oldest rows of the default partition.
DELETE FROM tenuto.activities_old
WHERE id = ANY (ARRAY(
    SELECT id
    FROM tenuto.activities_old
    WHERE ended_at < $1 -- guard: retention.recent_activities
    ORDER BY id
    LIMIT $2
))
RETURNING id;

-- name: load_activity
-- Return one activity: planned, running or ended.
SELECT {attempt}
FROM tenuto.all_activities
WHERE id = $1;

-- name: load_log
-- Return the log of one activity: planned, running or ended.
SELECT status AS state, ended_at, log
FROM tenuto.all_activities
WHERE id = $1;

-- name: list_attempts
-- Return all attempts at a task, oldest first.
SELECT {attempt}
FROM tenuto.all_activities
WHERE id = $1
UNION ALL
SELECT {attempt}
FROM tenuto.all_activities
WHERE task_id = $1 AND attempt > 1
ORDER BY attempt;

-- name: has_task_ended
-- Return whether the last attempt at a task was final. Polled often: reads no large column.
SELECT final
FROM (
    SELECT attempt, final
    FROM tenuto.all_activities
    WHERE id = $1
    UNION ALL
    SELECT attempt, final
    FROM tenuto.all_activities
    WHERE task_id = $1 AND attempt > 1
) AS attempts
ORDER BY attempt DESC
LIMIT 1;

-- name: list_activities
-- Return ended activities that meet a filter, newest first, below a cursor.
SELECT {listed_attempt}
FROM tenuto.activities
WHERE id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
  AND (/* filter */ true)
ORDER BY id DESC
LIMIT $2;

-- name: count_activities
-- Count ended activities that meet a filter, up to a limit.
SELECT count(*) AS count
FROM (SELECT FROM tenuto.activities WHERE (/* filter */ true) LIMIT $1) AS found;

-- name: list_children
-- Return tasks and activities that an activity enqueued while it ran, oldest first, after a cursor.
SELECT {listed_attempt}
FROM tenuto.all_activities
WHERE parent_id = $1
  AND ($2::uuid IS NULL OR id > $2)
ORDER BY id
LIMIT $3;

-- name: list_job_statistics
-- Return statistics of attempts that ended since an instant, by job, most frequent first: counts by outcome, waiting
-- and running time in seconds.
SELECT kind, name, count(*) AS attempt_count,
       count(*) FILTER (WHERE status IN ('completed', 'completed_with_warning')) AS done_count,
       count(*) FILTER (WHERE status IN ('failed', 'completed_with_error')) AS failed_count,
       count(*) FILTER (WHERE status = 'cancelled') AS cancelled_count,
       count(*) FILTER (WHERE final) AS ended_count,
       avg(extract(epoch FROM started_at - run_at))::float8 AS wait_mean_seconds,
       avg(extract(epoch FROM ended_at - started_at))::float8 AS duration_mean_seconds,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM ended_at - started_at)::float8)
           AS duration_p50_seconds,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM ended_at - started_at)::float8)
           AS duration_p95_seconds,
       max(ended_at) AS last_ended_at
FROM tenuto.activities
WHERE ended_at >= $1
  AND ($2::text IS NULL OR name = $2)
GROUP BY kind, name
ORDER BY attempt_count DESC, kind, name
LIMIT $3;

-- name: list_tasks
-- Return open tasks that meet a filter, newest first, below a cursor. The index by name does not contain running tasks,
-- so both parts of the table are read.
SELECT {listed_task}
FROM (
    (SELECT *
     FROM tenuto.tasks
     WHERE worker_id IS NULL
       AND id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
       AND (/* filter */ true)
     ORDER BY id DESC
     LIMIT $2)
    UNION ALL
    (SELECT *
     FROM tenuto.tasks
     WHERE state = 'running'
       AND id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
       AND (/* filter */ true)
     ORDER BY id DESC
     LIMIT $2)
) AS tasks
ORDER BY id DESC
LIMIT $2;

-- name: list_running_tasks
-- Return running tasks that meet a filter, newest first, below a cursor. They are few and usually older than the queued
-- ones: OFFSET 0 keeps the planner from looking for them among all tasks, newest first.
SELECT {listed_task}
FROM (SELECT * FROM tenuto.tasks WHERE state = 'running' AND (/* filter */ true) OFFSET 0) AS running
WHERE id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
ORDER BY id DESC
LIMIT $2;

-- name: list_queued_tasks
-- Return queued tasks that meet a filter, by queue and in the order of claim_tasks, after a cursor. The index of claims
-- provides the order of tasks without a limit key; the others are sorted.
SELECT {listed_task}
FROM (
    (SELECT *
     FROM tenuto.tasks
     WHERE state = 'queued' AND limit_key IS NULL
       AND (queue, rank, run_at, id) > ($1::text, $2::smallint, $3::timestamptz, $4::uuid)
       AND (/* filter */ true)
     ORDER BY queue, rank, run_at, id
     LIMIT $5)
    UNION ALL
    (SELECT *
     FROM tenuto.tasks
     WHERE state = 'queued' AND limit_key IS NOT NULL
       AND (queue, rank, run_at, id) > ($1::text, $2::smallint, $3::timestamptz, $4::uuid)
       AND (/* filter */ true)
     ORDER BY queue, rank, run_at, id
     LIMIT $5)
) AS queued
ORDER BY queue, rank, run_at, id
LIMIT $5;

-- name: count_tasks
-- Count open tasks that meet a filter, up to a limit. Each branch has the filter and the limit, because rows of a union
-- are read with all columns.
SELECT count(*) AS count
FROM (
    (SELECT FROM tenuto.tasks WHERE worker_id IS NULL AND (/* filter */ true) LIMIT $1)
    UNION ALL
    (SELECT FROM tenuto.tasks WHERE state = 'running' AND (/* filter */ true) LIMIT $1)
    LIMIT $1
) AS found;

-- name: count_tasks_by_state
-- Like count_tasks, for filters that name nothing but the state: each branch is a scan of one partial index alone, and
-- those of other states are not executed.
SELECT count(*) AS count
FROM (
    (SELECT FROM tenuto.tasks WHERE state = 'queued' AND limit_key IS NULL AND (/* filter */ true) LIMIT $1)
    UNION ALL
    (SELECT FROM tenuto.tasks WHERE state = 'queued' AND limit_key IS NOT NULL AND (/* filter */ true) LIMIT $1)
    UNION ALL
    (SELECT FROM tenuto.tasks WHERE state = 'running' AND (/* filter */ true) LIMIT $1)
    UNION ALL
    (SELECT FROM tenuto.tasks WHERE state = 'scheduled' AND (/* filter */ true) LIMIT $1)
    UNION ALL
    (
        SELECT
        FROM tenuto.tasks
        WHERE state = 'waiting'
          AND (execution_id IS NOT NULL OR batch_id IS NOT NULL OR waits_for IS NOT NULL)
          AND (/* filter */ true)
        LIMIT $1
    )
    LIMIT $1
) AS found;

-- name: load_task
-- Return one open task with all columns.
SELECT id, activity_id, state, queue, -rank AS priority, run_at, kind, name, input, policy, attempt,
       failures AS failure_count, losses AS loss_count, created_at, claimed_at, lease_until, fence, worker_id, progress, unique_key, limit_key, limit_max, tags,
       cancel_at, cancel_name, initiator_type, initiator_id, initiator_name, correlation_id, parent_id,
       (SELECT workers.name FROM tenuto.workers WHERE workers.id = worker_id) AS worker
FROM tenuto.tasks
WHERE id = $1;

-- name: find_ids_by_prefix
-- Return up to three ids in a range, for a prefix that a user entered. Each branch has a limit, because a short
-- prefix matches many ids.
(SELECT id FROM tenuto.tasks WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT 3)
UNION
(SELECT activity_id FROM tenuto.tasks WHERE attempt > 1 AND activity_id BETWEEN $1 AND $2 ORDER BY activity_id LIMIT 3)
UNION
(SELECT id FROM tenuto.activities WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT 3)
ORDER BY id
LIMIT 3;

-- name: count_outcomes
-- Count the outcomes of all tasks with a tag, of one initiator, or both: succeeded, failed, open, ended twice.
WITH past AS (
    SELECT task_id, status, reason, final
    FROM tenuto.activities
    WHERE ($1::text IS NULL OR tags @> ARRAY[$1])
      AND ($2::text IS NULL OR initiator_id = $2)
)
SELECT count(*) AS attempt_count,
       count(*) FILTER (WHERE final AND status IN ('completed', 'completed_with_warning')) AS done_count,
       count(*) FILTER (WHERE final AND status NOT IN ('completed', 'completed_with_warning')) AS failed_count,
       count(*) FILTER (WHERE reason = 'lost') AS lost_attempt_count,
       (SELECT count(*)
        FROM tenuto.tasks
        WHERE ($1::text IS NULL OR tags @> ARRAY[$1])
          AND ($2::text IS NULL OR initiator_id = $2)) AS open_count,
       count(*) FILTER (WHERE final) - count(DISTINCT task_id) FILTER (WHERE final) AS doubled_count
FROM past;
