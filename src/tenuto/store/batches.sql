-- name: insert
-- A batch comes to be; one with the same key is left alone.
INSERT INTO tenuto.batches (
    id, key, manifest_id, external_id, name, created_at, initiator_type, initiator_id, initiator_name
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: by_key
-- The batch with a key.
SELECT *
FROM tenuto.batches
WHERE key = $1;

-- name: lock
-- A batch, held until the transaction ends: parts come in one at a time, and none while it is being cancelled.
SELECT *
FROM tenuto.batches
WHERE id = $1
FOR UPDATE;

-- name: part_is_in
-- One more part of a batch has come in.
UPDATE tenuto.batches
SET total = total + $2, duplicates = duplicates + $3, digest = coalesce($4, digest)
WHERE id = $1;

-- name: complete
-- The last part has come in.
UPDATE tenuto.batches
SET complete_at = coalesce(complete_at, $2)
WHERE id = $1;

-- name: batch
-- One batch with what has become of its items so far.
SELECT batch.*,
       (SELECT coalesce(json_object_agg(state, number), '{}') FROM (
            SELECT state, count(*) AS number FROM tenuto.tasks WHERE batch_id = batch.id GROUP BY state
        ) AS open) AS open,
       (SELECT coalesce(json_object_agg(status, number), '{}') FROM (
            SELECT status, count(*) AS number FROM tenuto.activities
            WHERE batch_id = batch.id AND final GROUP BY status
        ) AS past) AS past,
       (SELECT count(*) FROM tenuto.dead_letters WHERE batch_id = batch.id AND status = 'retried') AS retried,
       (SELECT max(ended_at) FROM tenuto.activities
        WHERE batch_id = batch.id AND final AND batch.complete_at IS NOT NULL
          AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE tasks.batch_id = batch.id)) AS ended_at
FROM tenuto.batches AS batch
WHERE batch.id = $1;

-- name: ended_lately
-- How many items of a batch ended within the last so many seconds.
SELECT count(*)
FROM tenuto.activities
WHERE batch_id = $1 AND final AND ended_at > $2;

-- name: list_batches
-- Batches, the newest first, below a key.
SELECT id, key, manifest_id, external_id, name, total, duplicates, complete_at, created_at, paused_at, paused_by,
       cancelled_at, cancelled_by, initiator_name,
       (SELECT count(*) FROM tenuto.tasks WHERE batch_id = batches.id) AS open,
       (SELECT count(*) FROM tenuto.activities
        WHERE batch_id = batches.id AND final AND status IN ('failed', 'completed_with_error')) -
       (SELECT count(*) FROM tenuto.dead_letters WHERE batch_id = batches.id AND status = 'retried') AS failed
FROM tenuto.batches
WHERE ($1::uuid IS NULL OR id < $1)
  AND ($2::text IS NULL OR external_id = $2)
ORDER BY id DESC
LIMIT $3;

-- name: items
-- The items of a batch with what has become of each, by their task's id, after a key. A page of each kind is read in order.
(
    SELECT task_id, id AS activity_id, item_key, status, reason, attempt, input, output, error, started_at, ended_at
    FROM tenuto.activities
    WHERE batch_id = $1
      AND final
      AND task_id > coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
      AND ($3::text IS NULL OR status = $3)
      -- one that was run again is told of by its new task
      AND NOT EXISTS (
          SELECT FROM tenuto.dead_letters
          WHERE dead_letters.task_id = activities.task_id AND dead_letters.status = 'retried'
          OFFSET 0
      )
    ORDER BY task_id
    LIMIT $4
)
UNION ALL
(
    SELECT id, activity_id, item_key, CASE state WHEN 'running' THEN 'in_progress' ELSE state END, NULL, attempt, input,
           NULL, NULL, claimed_at, NULL
    FROM tenuto.tasks
    WHERE batch_id = $1
      AND id > coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
      AND ($3::text IS NULL OR CASE state WHEN 'running' THEN 'in_progress' ELSE state END = $3)
    ORDER BY id
    LIMIT $4
)
ORDER BY task_id
LIMIT $4;

-- name: no_claims
-- No claim of items is under way until the transaction ends: what has begun is seen, and nothing begins behind our back.
-- Who stalls in it is thrown out, as in a claim.
SELECT set_config('idle_in_transaction_session_timeout', '2000', true),
       pg_advisory_xact_lock(hashtext('tenuto limits'));

-- name: pause
-- What has not begun of a batch stays back; what runs goes on to its end. Workers that have some of it standing by hear of it.
UPDATE tenuto.batches
SET paused_at = $2, paused_by = $3
WHERE id = $1 AND paused_at IS NULL AND cancelled_at IS NULL
RETURNING id, pg_notify('tenuto', 'limits') AS paused;

-- name: hold_back
-- Some of what has not begun yet of a paused batch.
UPDATE tenuto.tasks
SET state = 'waiting'
WHERE id = ANY (ARRAY(
    SELECT id
    FROM tenuto.tasks
    WHERE batch_id = $1 AND state IN ('queued', 'scheduled')
    ORDER BY id
    LIMIT $2
    FOR UPDATE
))
RETURNING id;

-- name: resume
-- A paused batch goes on.
UPDATE tenuto.batches
SET paused_at = NULL, paused_by = NULL
WHERE id = $1 AND paused_at IS NOT NULL AND cancelled_at IS NULL
RETURNING id;

-- name: release
-- Some of what was held back of a batch.
WITH released AS (
    UPDATE tenuto.tasks
    SET state = CASE WHEN run_at > $3 THEN 'scheduled' ELSE 'queued' END
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM tenuto.tasks
        WHERE batch_id = $1 AND state = 'waiting'
        ORDER BY id
        LIMIT $2
        FOR UPDATE
    ))
    RETURNING id, state, queue
), woken AS (
    SELECT pg_notify('tenuto', CASE state WHEN 'queued' THEN 'limited ' ELSE 'scheduled ' END || queue)
    FROM (SELECT DISTINCT state, queue FROM released) AS words
)
SELECT id, (SELECT count(*) FROM woken) AS woken
FROM released;

-- name: cancel
-- A batch is cancelled: nothing more of it comes in or begins. As above: who is told to stop hears of it later.
UPDATE tenuto.batches
SET cancelled_at = $2, cancelled_by = $3, complete_at = coalesce(complete_at, $2), paused_at = NULL, paused_by = NULL
WHERE id = $1 AND cancelled_at IS NULL
RETURNING id, pg_notify('tenuto', 'limits') AS cancelled;

-- name: for_many
-- Thousands of ids at once are joined as a whole for the rest of the transaction, as in a worker's session: one by one,
-- each would be looked for in the list of all.
SELECT set_config('enable_nestloop', 'off', true);

-- name: not_begun
-- Some tasks of a batch that nobody holds, as who ends them needs to see them.
SELECT id, activity_id, fence, worker_id, kind, name, input, policy, attempt, failures, losses, queue,
       -rank AS priority, run_at, initiator_type, initiator_id, initiator_name, correlation_id, tags, execution_id,
       manifest_id, batch_id
FROM tenuto.tasks
WHERE batch_id = $1 AND state <> 'running'
ORDER BY id
LIMIT $2
FOR UPDATE;

-- name: ask_to_stop
-- The running tasks of a batch are asked to stop, and their workers hear of it.
WITH asked AS (
    UPDATE tenuto.tasks
    SET cancel_at = coalesce(cancel_at, clock_timestamp()),
        cancel_type = coalesce(cancel_type, $2),
        cancel_id = CASE WHEN cancel_at IS NULL THEN $3 ELSE cancel_id END,
        cancel_name = coalesce(cancel_name, $4)
    WHERE batch_id = $1 AND state = 'running'
    RETURNING worker_id
)
SELECT count(pg_notify('tenuto', 'cancel ' || worker_id::text))
FROM (SELECT DISTINCT worker_id FROM asked) AS holders;

-- name: share
-- Batches that nobody may pause, resume or cancel until the transaction ends; which of them are paused or cancelled.
SELECT id, paused_at IS NOT NULL AS paused, cancelled_at IS NOT NULL AS cancelled
FROM tenuto.batches
WHERE id = ANY ($1::uuid[])
ORDER BY id
FOR SHARE;

-- name: hold_these
-- What would be tried again, of batches that are paused, waits for them to be resumed.
UPDATE tenuto.tasks
SET state = 'waiting'
WHERE id = ANY ($1::uuid[])
  AND batch_id = ANY ($2::uuid[])
  AND state IN ('queued', 'scheduled');

-- name: forget
-- A small batch of the batches that were complete before the cut-off and of which nothing is left: no item, no record of
-- one, no letter.
DELETE FROM tenuto.batches
WHERE id = ANY (ARRAY(
    SELECT id
    FROM tenuto.batches
    WHERE complete_at < $1
      AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE tasks.batch_id = batches.id)
      AND NOT EXISTS (SELECT FROM tenuto.activities WHERE activities.batch_id = batches.id AND final)
      AND NOT EXISTS (SELECT FROM tenuto.dead_letters WHERE dead_letters.batch_id = batches.id)
    ORDER BY id
    LIMIT $2
))
RETURNING id;

-- name: find_batches
-- Ids that begin with what a person typed.
SELECT id
FROM tenuto.batches
WHERE id BETWEEN $1 AND $2
ORDER BY id
LIMIT 3;
