-- name: record_checkpoint
-- Store the results of steps, each of the task $1, fence $2 and worker $3. Only the worker that holds a task may store its
-- results, and a stored result stays. The locks, in one order, keep other workers from claiming the tasks before this is
-- committed. Steps that end at the same time share the statement and its commit (benchmark workflows).
INSERT INTO tenuto.chain_steps (task_id, name, output, fence, ended_at)
SELECT held.id, held.name, held.output, held.fence, clock_timestamp()
FROM (
    SELECT tasks.id, tasks.fence, given.name, given.output
    FROM unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::text[], $5::jsonb[])
             AS given (id, fence, worker_id, name, output)
    JOIN tenuto.tasks ON tasks.id = given.id
    WHERE tasks.id = ANY ($1::uuid[])
      AND tasks.fence = given.fence -- guard: chains.fence
      AND tasks.worker_id = given.worker_id -- guard: chains.worker
      AND tasks.state = 'running'
      AND tasks.lease_until > clock_timestamp() -- guard: chains.expired_lease
    ORDER BY tasks.id
    FOR SHARE OF tasks -- guard: chains.row_lock
) AS held
ON CONFLICT (task_id, name) DO UPDATE
SET output = chain_steps.output -- guard: chains.first_result
RETURNING task_id, name, output;

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
-- Return the finished steps of a task and the last sleep of each, and the waits of a workflow, for display.
SELECT CASE WHEN name ~ '^sleep in [0-9.]+$' THEN substr(name, 10) || ' ctx.sleep' ELSE name END AS name,
       fence, ended_at,
       CASE WHEN name LIKE 'sleep in %' THEN (output ->> 'until')::timestamptz END AS sleep_ends_at,
       CASE WHEN name LIKE 'sleep in %' THEN NULL ELSE coalesce(output -> 'value', output -> 'stop', output -> 'failure') END AS output,
       name NOT LIKE 'sleep in %' AND output ? 'stop' AS stopped,
       name NOT LIKE 'sleep in %' AND output ? 'failure' AS failed,
       NULL::uuid AS child_id
FROM tenuto.chain_steps
WHERE task_id = $1
  AND name NOT LIKE 'failure of attempt %'
UNION ALL
SELECT CASE
           WHEN name LIKE 'tenuto.child %' THEN format('%s ctx.run(%s)', step, substr(name, 14))
           ELSE step || ' ctx.wait_for_event'
       END,
       NULL, ended_at, NULL,
       CASE WHEN name LIKE 'tenuto.child %' THEN coalesce(nullif(payload -> 'output', 'null'), payload -> 'error') ELSE payload END,
       false,
       coalesce(outcome = 'timed_out', false)
       OR (name LIKE 'tenuto.child %' AND payload ->> 'status' NOT IN ('completed', 'completed_with_warning')),
       CASE WHEN name LIKE 'tenuto.child %' THEN key::uuid END
FROM tenuto.event_waits
WHERE task_id = $1 AND step ~ '^[0-9.]+$'
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
