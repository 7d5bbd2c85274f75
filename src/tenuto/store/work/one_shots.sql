-- name: load_state
-- Return whether a one-shot with this id is open or ended; no value if none exists.
SELECT 'open' AS standing
FROM tenuto.tasks
WHERE id = $1 AND origin = 'once'
UNION ALL
SELECT 'ended'
FROM tenuto.activities
WHERE id = $1 AND origin = 'once'
  AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = $1)
LIMIT 1;

-- name: list_attempts
-- Return all attempts at a one-shot, oldest first, with the actor of its cancellation request.
SELECT attempt.task_id, attempt.attempt, attempt.status AS state, attempt.reason, attempt.final, attempt.name,
       attempt.created_at, attempt.run_at, attempt.started_at, attempt.ended_at,
       (SELECT workers.name FROM tenuto.workers WHERE workers.id = attempt.worker_id) AS worker,
       attempt.input, attempt.output, attempt.error, attempt.progress, coalesce(attempt.tags, '{}') AS tags,
       attempt.initiator_name, task.cancel_at, task.cancel_name
FROM (
    SELECT task_id, attempt, status, reason, final, name, created_at, run_at, started_at, ended_at, worker_id, input,
           output, error, progress, tags, initiator_name
    FROM tenuto.all_activities
    WHERE id = $1 AND attempt = 1 AND origin = 'once'
    UNION ALL
    SELECT task_id, attempt, status, reason, final, name, created_at, run_at, started_at, ended_at, worker_id, input,
           output, error, progress, tags, initiator_name
    FROM tenuto.all_activities
    WHERE task_id = $1 AND attempt > 1 AND origin = 'once'
) AS attempt
LEFT JOIN tenuto.tasks AS task ON task.id = $1
ORDER BY attempt.attempt;

-- name: list_open
-- Return open one-shots without a cancellation request that meet a filter, next one first, after a cursor and before
-- an instant. The requested instant of a retried one-shot is in its first activity. The filter is one condition, so
-- that the planner keeps the index in the order of the list.
SELECT id, name AS prompt_type, state AS runtime_status, run_at, attempt, created_at, initiator_name AS created_by,
       coalesce(tags, '{}') AS tags, CASE WHEN state = 'running' THEN began_at END AS started_at,
       CASE WHEN attempt = 1 THEN run_at ELSE coalesce(
           (SELECT first.run_at FROM tenuto.activities AS first WHERE first.id = tasks.id), run_at
       ) END AS exec_at
FROM tenuto.tasks
WHERE origin = 'once' AND cancel_at IS NULL -- guard: one_shots.cancelled_is_not_listed
  AND (run_at, id) > ($1::timestamptz, $2::uuid)
  AND run_at < coalesce($3::timestamptz, 'infinity')
  AND CASE WHEN /* filter */ true THEN true ELSE false END
ORDER BY run_at, id
LIMIT $4;

-- name: count_open
-- Count open one-shots that meet a filter, up to a limit.
SELECT count(*) AS count
FROM (
    SELECT
    FROM tenuto.tasks
    WHERE origin = 'once' AND cancel_at IS NULL
      AND (/* filter */ true)
    LIMIT $1
) AS found;

-- name: list_ended
-- Return ended one-shots that meet a filter, newest first, below a cursor.
SELECT id AS activity_id, task_id AS id, name AS prompt_type, status AS runtime_status, reason, run_at, created_at,
       started_at, ended_at, attempt, initiator_name AS created_by, coalesce(tags, '{}') AS tags, output, error,
       CASE WHEN attempt = 1 THEN run_at ELSE coalesce(
           (SELECT first.run_at FROM tenuto.activities AS first WHERE first.id = activities.task_id), run_at
       ) END AS exec_at
FROM tenuto.activities
WHERE origin = 'once'
  AND id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
  AND CASE WHEN NOT final THEN false WHEN /* filter */ true THEN true ELSE false END
ORDER BY activities.id DESC
LIMIT $2;

-- name: count_ended
-- Count ended one-shots that meet a filter, up to a limit.
SELECT count(*) AS count
FROM (SELECT FROM tenuto.activities WHERE origin = 'once' AND final AND (/* filter */ true) LIMIT $1) AS found;

-- name: find_ids_by_prefix
-- Return up to three ids of one-shots in a range, for a prefix that a user entered.
(SELECT id FROM tenuto.tasks WHERE origin = 'once' AND id BETWEEN $1 AND $2 ORDER BY id LIMIT 3)
UNION
(SELECT task_id FROM tenuto.activities
 WHERE origin = 'once' AND attempt = 1 AND id BETWEEN $1 AND $2 ORDER BY id LIMIT 3)
ORDER BY id
LIMIT 3;

-- name: use_hash_joins
-- Disable nested loops for the rest of the transaction: with thousands of ids, each would be searched in the whole
-- list.
SELECT set_config('enable_nestloop', 'off', true);

-- name: lock_unclaimed
-- Return and lock some unclaimed one-shots after a cursor, so that no worker claims them. One-shots that were
-- claimed, ended or cancelled while this statement waited are not returned.
SELECT {claimed_task_without_input}
FROM tenuto.tasks
WHERE origin = 'once' AND cancel_at IS NULL AND worker_id IS NULL -- guard: one_shots.cancel_all_locks_running_last
  AND (run_at, id) > ($1, $2)
ORDER BY run_at, id
LIMIT $3
FOR UPDATE;

-- name: lock_open
-- Return and lock some open one-shots in any state, so that no worker claims, ends or retries them. One-shots that
-- ended or were cancelled while this statement waited are not returned.
SELECT {claimed_task_without_input}
FROM tenuto.tasks
WHERE origin = 'once' AND cancel_at IS NULL
ORDER BY run_at, id
LIMIT $1
FOR UPDATE;

-- name: request_cancellation
-- Request cancellation of running one-shots that the caller has locked, and notify their workers.
WITH asked AS (
    UPDATE tenuto.tasks
    SET cancel_at = $2,
        cancel_type = $3,
        cancel_id = $4,
        cancel_name = $5
    WHERE id = ANY ($1::uuid[]) AND state = 'running'
    RETURNING worker_id
)
SELECT pg_notify('tenuto', 'cancel ' || worker_id::text)
FROM (SELECT DISTINCT worker_id FROM asked) AS workers;

-- name: find_stopped_at
-- Return which of these one-shots were ended or cancelled at exactly this instant, that is, by the request with this
-- instant.
SELECT id
FROM tenuto.tasks
WHERE id = ANY ($1::uuid[]) AND cancel_at = $2
UNION ALL
SELECT task_id
FROM tenuto.activities
WHERE final AND ended_at = $2 AND reason = 'requested'
  AND (id = ANY ($1::uuid[]) OR (task_id = ANY ($1::uuid[]) AND attempt > 1));
