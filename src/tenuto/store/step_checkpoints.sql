-- name: record
-- A step of a chain has come to its end. Only the holder of its task may say so, for as long as he holds it, and what was
-- said stays. The lock keeps others from taking the task over before this is committed.
INSERT INTO tenuto.chain_steps (task_id, name, output, fence, ended_at)
SELECT tasks.id, $4, $5, tasks.fence, clock_timestamp()
FROM tenuto.tasks
WHERE tasks.id = $1
  AND tasks.fence = $2
  AND tasks.worker_id = $3
  AND tasks.state = 'running'
  AND tasks.lease_until > clock_timestamp()
FOR SHARE
ON CONFLICT (task_id, name) DO UPDATE
SET output = chain_steps.output
RETURNING output;

-- name: sleep
-- A step sleeps for the $5-th time, said by the holder as above. It is one row: where that one tells of this sleep, or of
-- a later one, it stays.
INSERT INTO tenuto.chain_steps (task_id, name, output, fence, ended_at)
SELECT tasks.id, $4, $6, tasks.fence, clock_timestamp()
FROM tenuto.tasks
WHERE tasks.id = $1
  AND tasks.fence = $2
  AND tasks.worker_id = $3
  AND tasks.state = 'running'
  AND tasks.lease_until > clock_timestamp()
FOR SHARE
ON CONFLICT (task_id, name) DO UPDATE
SET output = CASE
        WHEN (chain_steps.output ->> 'number')::integer < $5::integer THEN excluded.output
        ELSE chain_steps.output
    END
RETURNING output;

-- name: recorded
-- What the steps of a task have come to so far.
SELECT name, output
FROM tenuto.chain_steps
WHERE task_id = $1
  AND name NOT LIKE 'sleep in %'
ORDER BY name
LIMIT 1000;

-- name: told
-- The steps of a task that have ended, and the last sleep of each, for people.
SELECT name, fence, ended_at,
       CASE WHEN name LIKE 'sleep in %' THEN (output ->> 'until')::timestamptz END AS until,
       CASE WHEN name LIKE 'sleep in %' THEN NULL ELSE coalesce(output -> 'value', output -> 'stop') END AS output,
       name NOT LIKE 'sleep in %' AND output ? 'stop' AS stopped
FROM tenuto.chain_steps
WHERE task_id = $1
ORDER BY ended_at, name
LIMIT 1000;

-- name: carry_over
-- The new tasks $2 go on after the steps that the old ones $1 have come to. Sleeps that were over are over.
INSERT INTO tenuto.chain_steps (task_id, name, output, fence, ended_at)
SELECT pair.new, steps.name, steps.output, 0, steps.ended_at
FROM unnest($1::uuid[], $2::uuid[]) AS pair (old, new)
JOIN tenuto.chain_steps AS steps ON steps.task_id = pair.old
WHERE steps.task_id = ANY ($1::uuid[])
ON CONFLICT (task_id, name) DO NOTHING
RETURNING task_id;

-- name: forget
-- A small batch of steps whose task is no longer there.
DELETE FROM tenuto.chain_steps
WHERE (task_id, name) IN (
    SELECT task_id, name
    FROM tenuto.chain_steps
    WHERE ended_at < $1
      AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = task_id)
    ORDER BY ended_at
    LIMIT $2
)
RETURNING task_id;
