-- name: record_checkpoint
-- Store the result of a chain step. Only the worker that holds the task may store it, and a stored result stays. The
-- lock keeps other workers from claiming the task before this is committed.
INSERT INTO tenuto.chain_steps (task_id, name, output, fence, ended_at)
SELECT tasks.id, $4, $5, tasks.fence, clock_timestamp()
FROM tenuto.tasks
WHERE tasks.id = $1
  AND tasks.fence = $2 -- guard: chains.fence
  AND tasks.worker_id = $3 -- guard: chains.worker
  AND tasks.state = 'running'
  AND tasks.lease_until > clock_timestamp() -- guard: chains.expired_lease
FOR SHARE -- guard: chains.row_lock
ON CONFLICT (task_id, name) DO UPDATE
SET output = chain_steps.output -- guard: chains.first_result
RETURNING output;

-- name: record_sleep
-- Store the $5-th sleep of a step, fenced like record_checkpoint. One row per step: a row for this sleep or a later
-- one stays.
INSERT INTO tenuto.chain_steps (task_id, name, output, fence, ended_at)
SELECT tasks.id, $4, $6, tasks.fence, clock_timestamp()
FROM tenuto.tasks
WHERE tasks.id = $1
  AND tasks.fence = $2 -- guard: chains.fence
  AND tasks.worker_id = $3 -- guard: chains.worker
  AND tasks.state = 'running'
  AND tasks.lease_until > clock_timestamp() -- guard: chains.expired_lease
FOR SHARE -- guard: chains.row_lock
ON CONFLICT (task_id, name) DO UPDATE
SET output = CASE
        -- guard: chains.sleep_starts_once
        WHEN (chain_steps.output ->> 'number')::integer < $5::integer THEN excluded.output
        ELSE chain_steps.output
    END
RETURNING output;

-- name: load_checkpoints
-- Return the stored step results of a task, its sleeps and, with their events, its waits. A workflow has at most 10,000.
SELECT name, output
FROM tenuto.chain_steps
WHERE task_id = $1
UNION ALL
SELECT 'wait in ' || step, to_jsonb(name)
FROM tenuto.event_waits
WHERE task_id = $1
ORDER BY name
LIMIT 25000;

-- name: list_steps_and_sleeps
-- Return the finished steps of a task and the last sleep of each, for display.
SELECT name, fence, ended_at,
       CASE WHEN name LIKE 'sleep in %' THEN (output ->> 'until')::timestamptz END AS sleep_ends_at,
       CASE WHEN name LIKE 'sleep in %' THEN NULL ELSE coalesce(output -> 'value', output -> 'stop', output -> 'failure') END AS output,
       name NOT LIKE 'sleep in %' AND output ? 'stop' AS stopped
FROM tenuto.chain_steps
WHERE task_id = $1
  AND name NOT LIKE 'failure of attempt %'
ORDER BY ended_at, name
LIMIT 1000;

-- name: copy_checkpoints
-- Copy the step results of the old tasks $1 to the new tasks $2. Past sleeps stay over. Of a workflow that has handled the
-- failure of a step, only what was stored before is copied: the new task runs the step again.
INSERT INTO tenuto.chain_steps (task_id, name, output, fence, ended_at)
SELECT pair.new, steps.name, steps.output, 0, steps.ended_at
FROM unnest($1::uuid[], $2::uuid[]) AS pair (old, new)
JOIN tenuto.chain_steps AS steps ON steps.task_id = pair.old
WHERE steps.task_id = ANY ($1::uuid[])
  AND steps.name NOT LIKE 'failure of attempt %'
  AND NOT EXISTS (
      SELECT
      FROM tenuto.chain_steps AS failed
      WHERE failed.task_id = pair.old
        AND failed.name NOT LIKE 'failure of attempt %'
        AND failed.output ? 'failure'
        AND failed.ended_at <= steps.ended_at -- guard: workflows.retry_before_failure
  )
ON CONFLICT (task_id, name) DO NOTHING
RETURNING task_id;

-- name: delete_orphaned_checkpoints
-- Delete a small batch of step results whose task no longer exists.
DELETE FROM tenuto.chain_steps
WHERE (task_id, name) IN (
    SELECT task_id, name
    FROM tenuto.chain_steps
    WHERE ended_at < $1
      AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = task_id) -- guard: retention.steps_of_open_tasks
    ORDER BY ended_at
    LIMIT $2
)
RETURNING task_id;
