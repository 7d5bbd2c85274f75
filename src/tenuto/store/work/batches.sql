-- name: insert_batch
-- Insert a batch, unless its key exists.
INSERT INTO tenuto.batches (
    id, key, manifest_id, external_id, name, created_at, initiator_type, initiator_id, initiator_name
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: load_batch_by_key
-- Return a batch by key.
SELECT id, key, manifest_id, external_id, name, total AS item_count, duplicates AS duplicate_count, digest, complete_at,
       created_at, paused_at, paused_by, cancelled_at, cancelled_by, initiator_type, initiator_id, initiator_name
FROM tenuto.batches
WHERE key = $1;

-- name: lock_batch
-- Lock a batch: parts are added one at a time, and none while the batch is being cancelled.
SELECT id, key, manifest_id, external_id, name, total AS item_count, duplicates AS duplicate_count, digest, complete_at,
       created_at, paused_at, paused_by, cancelled_at, cancelled_by, initiator_type, initiator_id, initiator_name
FROM tenuto.batches
WHERE id = $1
FOR UPDATE;

-- name: add_batch_part
-- Record that a part of a batch was added.
UPDATE tenuto.batches
SET total = total + $2, duplicates = duplicates + $3, digest = coalesce($4, digest)
WHERE id = $1;

-- name: complete_submission
-- Record that the last part of a batch was added.
UPDATE tenuto.batches
SET complete_at = coalesce(complete_at, $2)
WHERE id = $1;

-- name: load_batch
-- Return a batch with the outcomes of its items.
SELECT id, key, manifest_id, external_id, name, total AS item_count, duplicates AS duplicate_count, digest, complete_at,
       created_at, paused_at, paused_by, cancelled_at, cancelled_by, initiator_type, initiator_id, initiator_name,
       (SELECT coalesce(json_object_agg(state, number), '{}') FROM (
            SELECT state, count(*) AS number FROM tenuto.tasks WHERE batch_id = batch.id GROUP BY state
        ) AS open) AS open_counts,
       (SELECT coalesce(json_object_agg(status, number), '{}') FROM (
            SELECT status, count(*) AS number FROM tenuto.activities
            WHERE batch_id = batch.id AND final GROUP BY status
        ) AS past) AS ended_counts,
       (SELECT count(*) FROM tenuto.dead_letters WHERE batch_id = batch.id AND status = 'retried') AS retried_count,
       (SELECT max(ended_at) FROM tenuto.activities
        WHERE batch_id = batch.id AND final AND batch.complete_at IS NOT NULL
          AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE tasks.batch_id = batch.id)) AS ended_at
FROM tenuto.batches AS batch
WHERE batch.id = $1;

-- name: count_ended_since
-- Count the items of a batch that ended since an instant.
SELECT count(*)
FROM tenuto.activities
WHERE batch_id = $1 AND final AND ended_at > $2;

-- name: list_batches
-- Return batches that meet a filter, newest first, below a cursor.
SELECT id, key, manifest_id, external_id, name, total AS item_count, duplicates AS duplicate_count, complete_at,
       created_at, paused_at, paused_by, cancelled_at, cancelled_by, initiator_name,
       (SELECT count(*) FROM tenuto.tasks WHERE batch_id = batches.id) AS open_count,
       (SELECT count(*) FROM tenuto.activities
        WHERE batch_id = batches.id AND final AND status IN ('failed', 'completed_with_error')) -
       (SELECT count(*) FROM tenuto.dead_letters WHERE batch_id = batches.id AND status = 'retried') AS failed_count
FROM tenuto.batches
WHERE id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
  AND (/* filter */ true)
ORDER BY id DESC
LIMIT $2;

-- name: count_batches
-- Count batches that meet a filter, up to a limit.
SELECT count(*) AS count
FROM (SELECT FROM tenuto.batches WHERE (/* filter */ true) LIMIT $1) AS found;

-- name: list_batch_items
-- Return the items of a batch with their outcomes, by task id, after a cursor. One page of each kind is read in
-- order.
(
    SELECT task_id, id AS activity_id, item_key, status AS state, reason, attempt, input, output, error, started_at, ended_at
    FROM tenuto.activities
    WHERE batch_id = $1
      AND final
      AND task_id > coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
      AND ($3::text IS NULL OR status = $3)
      -- a retried item is represented by its new task
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
    SELECT id, activity_id, item_key, state, NULL, attempt, input,
           NULL, NULL, claimed_at, NULL
    FROM tenuto.tasks
    WHERE batch_id = $1
      AND id > coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
      AND ($3::text IS NULL OR state = $3)
    ORDER BY id
    LIMIT $4
)
ORDER BY task_id
LIMIT $4;

-- name: lock_limits
-- Wait for claims of runs of the manifest of a batch and block new ones until the transaction ends: claimed items are
-- visible, and no item is claimed in between. The same lock as in lock_limits of tasks. A stalled session is terminated,
-- as in a claim.
SELECT set_config('idle_in_transaction_session_timeout', '2000', true),
       -- guard: batches.cancel_waits_for_limited_claims
       pg_advisory_xact_lock({limit_lock_kind}, {limit_lock_number})
FROM (SELECT 'manifest ' || manifest_id AS scope FROM tenuto.batches WHERE id = $1) AS manifest;

-- name: pause_batch
-- Pause a batch: unclaimed items wait, running items continue. Workers with standby items are notified.
UPDATE tenuto.batches
SET paused_at = $2, paused_by = $3
WHERE id = $1 AND paused_at IS NULL AND cancelled_at IS NULL
-- guard: batches.pause_notifies_workers
RETURNING id, pg_notify('tenuto', 'limits') AS paused;

-- name: hold_batch_items
-- Set some unclaimed items of a paused batch to waiting. When they are queued again, claims check the rate again.
UPDATE tenuto.tasks
SET state = 'waiting', parked_for = NULL
WHERE id = ANY (ARRAY(
    SELECT id
    FROM tenuto.tasks
    WHERE batch_id = $1 AND state IN ('queued', 'scheduled')
    ORDER BY id -- guard: batches.pause_waits_for_locked_items
    LIMIT $2
    FOR UPDATE -- guard: batches.pause_waits_for_locked_items
))
RETURNING id;

-- name: resume_batch
-- Resume a paused batch.
UPDATE tenuto.batches
SET paused_at = NULL, paused_by = NULL
WHERE id = $1 AND paused_at IS NOT NULL AND cancelled_at IS NULL
RETURNING id;

-- name: release_batch_items
-- Queue some held items of a batch.
WITH released AS (
    UPDATE tenuto.tasks
    SET state = CASE WHEN run_at > $3 THEN 'scheduled' ELSE 'queued' END, parked_for = NULL
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM tenuto.tasks
        WHERE batch_id = $1 AND state = 'waiting'
        ORDER BY id
        LIMIT $2
        FOR UPDATE
    ))
    RETURNING id, state, queue
), notified AS (
    SELECT pg_notify('tenuto', CASE state WHEN 'queued' THEN 'limited ' ELSE 'scheduled ' END || queue)
    FROM (SELECT DISTINCT state, queue FROM released) AS events
)
SELECT id, (SELECT count(*) FROM notified) AS notified
FROM released;

-- name: cancel_batch
-- Cancel a batch: no item is added or claimed any more. Workers are notified by request_cancellation.
UPDATE tenuto.batches
SET cancelled_at = $2, cancelled_by = $3, complete_at = coalesce(complete_at, $2), paused_at = NULL, paused_by = NULL
WHERE id = $1 AND cancelled_at IS NULL
-- guard: batches.cancel_notifies_workers
RETURNING id, pg_notify('tenuto', 'limits') AS cancelled;

-- name: use_hash_joins
-- Disable nested loops for the rest of the transaction, as in a worker's session: with thousands of ids, a
-- nested loop searches the whole list for each id.
SELECT set_config('enable_nestloop', 'off', true);

-- name: lock_unclaimed_items
-- Return and lock some unclaimed tasks of a batch.
SELECT {claimed_task}
FROM tenuto.tasks
WHERE batch_id = $1 AND state <> 'running'
ORDER BY id
LIMIT $2
FOR UPDATE;

-- name: request_cancellation
-- Request cancellation of the running tasks of a batch and notify their workers.
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

-- name: lock_batches_shared
-- Prevent these batches from being paused, resumed or cancelled until the transaction ends, and return whether each
-- is paused or cancelled.
SELECT id, paused_at IS NOT NULL AS is_paused, cancelled_at IS NOT NULL AS is_cancelled
FROM tenuto.batches
WHERE id = ANY ($1::uuid[])
ORDER BY id
-- guard: batches.lock_while_items_are_written
FOR SHARE;

-- name: hold_items_of_paused
-- Set retried and deferred items of paused batches to waiting.
UPDATE tenuto.tasks
SET state = 'waiting', parked_for = NULL
WHERE id = ANY ($1::uuid[])
  AND batch_id = ANY ($2::uuid[])
  AND state IN ('queued', 'scheduled');

-- name: delete_old_batches
-- Delete a small batch of batches that were complete before the cut-off and have no item, activity or dead letter
-- left.
DELETE FROM tenuto.batches
WHERE id = ANY (ARRAY(
    SELECT id
    FROM tenuto.batches
    WHERE complete_at < $1
      -- guard: retention.batch_with_open_items
      AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE tasks.batch_id = batches.id)
      AND NOT EXISTS (SELECT FROM tenuto.activities WHERE activities.batch_id = batches.id AND final)
      -- guard: retention.batch_with_dead_letters
      AND NOT EXISTS (SELECT FROM tenuto.dead_letters WHERE dead_letters.batch_id = batches.id)
    ORDER BY id
    LIMIT $2
))
RETURNING id;

-- name: find_batches
-- Return ids in a range, for a prefix that a user entered.
SELECT id
FROM tenuto.batches
WHERE id BETWEEN $1 AND $2
ORDER BY id
LIMIT 3;
