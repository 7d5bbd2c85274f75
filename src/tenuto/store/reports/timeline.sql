-- name: list_timeline_groups
-- Return the steps of an execution by group and state of their last attempt.
SELECT group_index, state, count(*) AS step_count, min(first_started_at) AS first_started_at,
       max(ended_at) AS last_ended_at, min(seconds) AS shortest_seconds, max(seconds) AS longest_seconds
FROM (
    SELECT DISTINCT ON (step_index) group_index, status AS state, ended_at,
           min(started_at) OVER (PARTITION BY step_index) AS first_started_at,
           extract(epoch FROM ended_at - started_at)::float8 AS seconds
    FROM tenuto.all_activities
    WHERE execution_id = $1
    ORDER BY step_index, attempt DESC
) AS steps
GROUP BY group_index, state
ORDER BY group_index, state;

-- name: list_timeline_attempts
-- Return past and open attempts of steps in ranges of positions of the plan.
SELECT step_index, id AS activity_id, task_id, attempt, status AS state, reason, run_at AS due_at, claimed_at,
       started_at, ended_at, progress, error ->> 'message' AS message,
       (SELECT workers.name FROM tenuto.workers WHERE workers.id = worker_id) AS worker
FROM tenuto.all_activities
WHERE execution_id = $1
  AND group_index = ANY ($2::integer[])
  AND EXISTS (SELECT FROM unnest($3::integer[], $4::integer[]) AS step_window (low, high) WHERE step_index BETWEEN low AND high)
ORDER BY step_index, attempt
LIMIT $5;

-- name: list_recent_executions
-- Return the latest other executions of a schedule that have ended.
SELECT id, state, extract(epoch FROM ended_at - started_at)::float8 AS seconds
FROM tenuto.executions
WHERE schedule_id = $1
  AND id <> $2
  AND ended_at IS NOT NULL
ORDER BY id DESC
LIMIT $3;

-- name: list_step_durations
-- Return the durations of successful runs of steps in executions, latest first, by position in the plan.
SELECT step_index, kind, name AS target,
       (array_agg(extract(epoch FROM ended_at - started_at)::float8 ORDER BY execution_id DESC))[1:$4::integer] AS seconds
FROM tenuto.activities
WHERE execution_id = ANY ($1::uuid[])
  AND status IN ('completed', 'completed_with_warning')
  AND started_at IS NOT NULL
  AND EXISTS (SELECT FROM unnest($2::text[], $3::text[]) AS step (kind, target) WHERE step.kind = activities.kind AND step.target = name)
GROUP BY step_index, kind, name
ORDER BY step_index, kind, name
LIMIT 20000;

-- name: list_children_of_steps
-- Return the executions that steps have started, latest first.
SELECT DISTINCT ON (parent_task_id) parent_task_id AS task_id, id AS execution_id
FROM tenuto.executions
WHERE parent_task_id = ANY ($1::uuid[])
ORDER BY parent_task_id, id DESC;
