-- name: partitions
-- The partitions there are, by name.
SELECT child.relname AS name
FROM pg_inherits
JOIN pg_class AS child ON child.oid = pg_inherits.inhrelid
WHERE pg_inherits.inhparent = 'tenuto.activities'::regclass
ORDER BY child.relname;

-- name: lock_partitions
-- One process at a time makes or drops partitions, and none waits long behind a reader: everybody else would wait behind it.
SELECT set_config('lock_timeout', '500ms', true), pg_advisory_xact_lock(hashtext('tenuto partitions'));

-- name: youngest_in_default
-- Whether the default partition already holds ids of a range: then no partition can be made for it.
SELECT EXISTS (SELECT FROM tenuto.activities_old WHERE id >= $1 AND id < $2) AS taken;

-- name: allow_retention
-- Retention alone may delete activities, and only in its own transaction.
SELECT set_config('tenuto.retention', 'on', true);

-- name: delete_old
-- A small batch of the default partition's oldest records.
DELETE FROM tenuto.activities_old
WHERE id = ANY (ARRAY(
    SELECT id
    FROM tenuto.activities_old
    WHERE ended_at < $1
    ORDER BY id
    LIMIT $2
))
RETURNING id;

-- name: activity
-- One activity, whether it lies ahead, is in progress or is past.
SELECT *, (SELECT workers.name FROM tenuto.workers WHERE workers.id = worker_id) AS worker
FROM tenuto.all_activities
WHERE id = $1;

-- name: attempts_of_task
-- Every attempt at a task so far, the first one first.
SELECT *, (SELECT workers.name FROM tenuto.workers WHERE workers.id = worker_id) AS worker
FROM tenuto.all_activities
WHERE id = $1
UNION ALL
SELECT *, (SELECT workers.name FROM tenuto.workers WHERE workers.id = worker_id) AS worker
FROM tenuto.all_activities
WHERE task_id = $1 AND attempt > 1
ORDER BY attempt;

-- name: is_over
-- Whether the last attempt at a task so far was its last. Asked again and again: reads nothing that may be large.
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
-- Past activities, newest first, below a key; every filter may be left out.
SELECT id, task_id, attempt, status, reason, final, kind, name, queue, priority, created_at, run_at, claimed_at,
       started_at, ended_at, worker_id, failures, losses, error, tags, initiator_type, initiator_id, initiator_name,
       correlation_id, (SELECT workers.name FROM tenuto.workers WHERE workers.id = worker_id) AS worker
FROM tenuto.activities
WHERE ($1::uuid IS NULL OR id < $1)
  AND ($2::text IS NULL OR status = $2)
  AND ($3::text IS NULL OR name = $3)
  AND ($4::text IS NULL OR queue = $4)
  AND ($5::text IS NULL OR tags @> ARRAY[$5])
ORDER BY id DESC
LIMIT $6;

-- name: children
-- What was asked for by an activity while it ran, the first one first, after a key.
SELECT id, task_id, attempt, status, reason, final, kind, name, queue, priority, created_at, run_at, claimed_at,
       started_at, ended_at, worker_id, failures, losses, error, tags, initiator_type, initiator_id, initiator_name,
       correlation_id, (SELECT workers.name FROM tenuto.workers WHERE workers.id = worker_id) AS worker
FROM tenuto.all_activities
WHERE parent_id = $1
  AND ($2::uuid IS NULL OR id > $2)
ORDER BY id
LIMIT $3;

-- name: stats
-- What has ended since, by name, the most frequent first: how many attempts and how they ended, how long those that ran
-- waited for it and took, in seconds.
SELECT kind, name, count(*) AS attempts,
       count(*) FILTER (WHERE status IN ('completed', 'completed_with_warning')) AS done,
       count(*) FILTER (WHERE status IN ('failed', 'completed_with_error')) AS failed,
       count(*) FILTER (WHERE status = 'cancelled') AS cancelled,
       count(*) FILTER (WHERE final) AS ended,
       avg(extract(epoch FROM started_at - run_at))::float8 AS wait_mean,
       avg(extract(epoch FROM ended_at - started_at))::float8 AS duration_mean,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM ended_at - started_at)::float8) AS duration_p50,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM ended_at - started_at)::float8) AS duration_p95,
       max(ended_at) AS last_at
FROM tenuto.activities
WHERE ended_at >= $1
  AND ($2::text IS NULL OR name = $2)
GROUP BY kind, name
ORDER BY attempts DESC, kind, name
LIMIT $3;

-- name: list_tasks
-- Open tasks, newest first, below a key; every filter may be left out.
SELECT id, activity_id, state, queue, -rank AS priority, run_at, kind, name, attempt, failures, losses, created_at,
       claimed_at, lease_until, worker_id, progress, unique_key, limit_key, tags, cancel_at, cancel_name,
       initiator_type, initiator_id, initiator_name, correlation_id,
       (SELECT workers.name FROM tenuto.workers WHERE workers.id = worker_id) AS worker
FROM tenuto.tasks
WHERE ($1::uuid IS NULL OR id < $1)
  AND ($2::text IS NULL OR state = $2)
  AND ($3::text IS NULL OR name = $3)
  AND ($4::text IS NULL OR queue = $4)
  AND ($5::text IS NULL OR tags @> ARRAY[$5])
ORDER BY id DESC
LIMIT $6;

-- name: task
-- One open task with everything known of it.
SELECT id, activity_id, state, queue, -rank AS priority, run_at, kind, name, input, policy, attempt, failures, losses,
       created_at, claimed_at, lease_until, fence, worker_id, progress, unique_key, limit_key, limit_max, tags,
       cancel_at, cancel_name, initiator_type, initiator_id, initiator_name, correlation_id, parent_id,
       (SELECT workers.name FROM tenuto.workers WHERE workers.id = worker_id) AS worker
FROM tenuto.tasks
WHERE id = $1;

-- name: find_by_prefix
-- Ids that begin with what a person typed: the uuids between two bounds. Each arm stops early: a short prefix fits many.
(SELECT id FROM tenuto.tasks WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT 3)
UNION
(SELECT activity_id FROM tenuto.tasks WHERE attempt > 1 AND activity_id BETWEEN $1 AND $2 ORDER BY activity_id LIMIT 3)
UNION
(SELECT id FROM tenuto.activities WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT 3)
ORDER BY id
LIMIT 3;

-- name: outcome_counts
-- What became of all tasks with a tag, of one initiator, or both: how many ended well and badly, are open, ended twice.
WITH past AS (
    SELECT task_id, status, reason, final
    FROM tenuto.activities
    WHERE ($1::text IS NULL OR tags @> ARRAY[$1])
      AND ($2::text IS NULL OR initiator_id = $2)
)
SELECT count(*) AS attempts,
       count(*) FILTER (WHERE final AND status IN ('completed', 'completed_with_warning')) AS done,
       count(*) FILTER (WHERE final AND status NOT IN ('completed', 'completed_with_warning')) AS failed,
       count(*) FILTER (WHERE reason = 'lost') AS lost_attempts,
       (SELECT count(*)
        FROM tenuto.tasks
        WHERE ($1::text IS NULL OR tags @> ARRAY[$1])
          AND ($2::text IS NULL OR initiator_id = $2)) AS open,
       count(*) FILTER (WHERE final) - count(DISTINCT task_id) FILTER (WHERE final) AS doubled
FROM past;
