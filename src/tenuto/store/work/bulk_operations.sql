-- fragment: operation
-- A bulk operation with its counters.
id, kind, filter, description, until, reason, state, total AS item_count, succeeded AS succeeded_count,
failed AS failed_count, skipped AS skipped_count, arrived AS arrived_count, created_at, processed_at, ended_at,
aborted_by, actor_type, actor_id, actor_name, schedule_id, max_running, paused_at, paused_by

-- name: create_operation
-- Insert a bulk operation; its items follow in the same transaction. Nothing is inserted if it exists.
INSERT INTO tenuto.bulk_operations (
    id, kind, filter, description, until, reason, total, created_at, actor_type, actor_id, actor_name, schedule_id,
    max_running
)
VALUES ($1, $2, $3, $4, $5, $6, 0, $7, $8, $9, $10, $11, $12)
ON CONFLICT (id) DO NOTHING
RETURNING id;

-- name: set_total
-- Store the number of items; an operation without items ends at once.
UPDATE tenuto.bulk_operations
SET total = $2::bigint,
    state = CASE WHEN $2::bigint = 0 THEN 'ended' ELSE 'running' END,
    ended_at = CASE WHEN $2::bigint = 0 THEN created_at END,
    arrived = CASE WHEN $2::bigint = 0 THEN 0 END
WHERE id = $1
RETURNING pg_notify('tenuto', 'operations');

-- name: select_tasks
-- Store the open tasks that meet a filter and were created up to an instant as items.
INSERT INTO tenuto.bulk_operation_items (operation_id, item_id)
SELECT $1, id
FROM (
    SELECT * FROM tenuto.tasks WHERE worker_id IS NULL
    UNION ALL
    SELECT * FROM tenuto.tasks WHERE state = 'running'
) AS tasks
WHERE created_at <= $2::timestamptz -- guard: bulk_operations.frozen_selection
  AND (/* filter */ true)
LIMIT $3;

-- name: count_tasks
-- Count the open tasks that meet a filter and were created in a period, up to a limit.
SELECT count(*) AS count
FROM (
    SELECT FROM (
        SELECT * FROM tenuto.tasks WHERE worker_id IS NULL
        UNION ALL
        SELECT * FROM tenuto.tasks WHERE state = 'running'
    ) AS tasks
    WHERE created_at <= coalesce($1::timestamptz, 'infinity') AND created_at > coalesce($2::timestamptz, '-infinity')
      AND (/* filter */ true)
    LIMIT $3
) AS found;

-- name: select_one_shots
-- Store the open one-shots that meet a filter and were created up to an instant as items.
INSERT INTO tenuto.bulk_operation_items (operation_id, item_id)
SELECT $1, id
FROM tenuto.tasks
WHERE origin = 'once' AND cancel_at IS NULL
  AND created_at <= $2::timestamptz -- guard: bulk_operations.frozen_selection
  AND (/* filter */ true)
LIMIT $3;

-- name: count_one_shots
-- Count the open one-shots that meet a filter and were created in a period, up to a limit.
SELECT count(*) AS count
FROM (
    SELECT FROM tenuto.tasks
    WHERE origin = 'once' AND cancel_at IS NULL
      AND created_at <= coalesce($1::timestamptz, 'infinity') AND created_at > coalesce($2::timestamptz, '-infinity')
      AND (/* filter */ true)
    LIMIT $3
) AS found;

-- name: select_executions
-- Store the executions that meet a filter and were started up to an instant as items.
INSERT INTO tenuto.bulk_operation_items (operation_id, item_id)
SELECT $1, id
FROM tenuto.executions
WHERE started_at <= $2::timestamptz -- guard: bulk_operations.frozen_selection
  AND (/* filter */ true)
LIMIT $3;

-- name: count_executions
-- Count the executions that meet a filter and were started in a period, up to a limit.
SELECT count(*) AS count
FROM (
    SELECT FROM tenuto.executions
    WHERE started_at <= coalesce($1::timestamptz, 'infinity') AND started_at > coalesce($2::timestamptz, '-infinity')
      AND (/* filter */ true)
    LIMIT $3
) AS found;

-- name: select_schedules
-- Store the schedules that meet a filter and were created up to an instant as items.
INSERT INTO tenuto.bulk_operation_items (operation_id, item_id)
SELECT $1, id
FROM tenuto.schedules
WHERE created_at <= $2::timestamptz -- guard: bulk_operations.frozen_selection
  AND (/* filter */ true)
LIMIT $3;

-- name: count_schedules
-- Count the schedules that meet a filter and were created in a period, up to a limit.
SELECT count(*) AS count
FROM (
    SELECT FROM tenuto.schedules
    WHERE created_at <= coalesce($1::timestamptz, 'infinity') AND created_at > coalesce($2::timestamptz, '-infinity')
      AND (/* filter */ true)
    LIMIT $3
) AS found;

-- name: select_dead_letters
-- Store the open dead letters that meet a filter and were written up to an instant as items.
INSERT INTO tenuto.bulk_operation_items (operation_id, item_id)
SELECT $1, id
FROM tenuto.dead_letters
WHERE status = 'awaiting_intervention'
  AND dead_lettered_at <= $2::timestamptz -- guard: bulk_operations.frozen_selection
  AND (/* filter */ true)
LIMIT $3;

-- name: count_dead_letters
-- Count the open dead letters that meet a filter and were written in a period, up to a limit.
SELECT count(*) AS count
FROM (
    SELECT FROM tenuto.dead_letters
    WHERE status = 'awaiting_intervention'
      AND dead_lettered_at <= coalesce($1::timestamptz, 'infinity')
      AND dead_lettered_at > coalesce($2::timestamptz, '-infinity')
      AND (/* filter */ true)
    LIMIT $3
) AS found;

-- name: lock_next_operation
-- Return and lock the running operation that has waited longest for a chunk and that no scheduler processes now. A
-- backfill has something to do if one of its executions has ended, or if one more may start.
SELECT {operation}
FROM tenuto.bulk_operations AS operation
WHERE state = 'running'
  AND paused_at IS NULL -- guard: bulk_operations.paused
  AND (
      max_running IS NULL
      OR EXISTS (
          SELECT
          FROM tenuto.bulk_operation_items AS item
          LEFT JOIN tenuto.executions AS run ON run.id = item.item_id
          WHERE item.operation_id = operation.id
            AND item.started_at IS NOT NULL
            AND item.outcome IS NULL
            AND (run.id IS NULL OR run.ended_at IS NOT NULL)
      )
      OR NOT EXISTS (
          SELECT FROM tenuto.bulk_operation_items AS item WHERE item.operation_id = operation.id AND item.outcome IS NULL
      )
      OR EXISTS (
          SELECT
          FROM tenuto.bulk_operation_items AS item
          WHERE item.operation_id = operation.id AND item.outcome IS NULL AND item.started_at IS NULL
      )
      AND (
          SELECT count(*)
          FROM tenuto.bulk_operation_items AS item
          WHERE item.operation_id = operation.id AND item.started_at IS NOT NULL AND item.outcome IS NULL
      ) < max_running
  )
ORDER BY processed_at NULLS FIRST, id
LIMIT 1
-- guard: bulk_operations.one_processor
FOR UPDATE SKIP LOCKED;

-- name: list_pending_items
-- Return items of an operation that are not processed yet.
SELECT item_id
FROM tenuto.bulk_operation_items
WHERE operation_id = $1 AND outcome IS NULL
ORDER BY item_id
LIMIT $2;

-- name: insert_instants
-- Store the due instants of a backfill as items; the ids are those of the future executions.
INSERT INTO tenuto.bulk_operation_items (operation_id, item_id, due_at)
SELECT $1, item_id, due_at
FROM unnest($2::uuid[], $3::timestamptz[]) AS new (item_id, due_at);

-- name: list_ended_runs
-- Return the started items of a backfill whose execution has ended or no longer exists.
SELECT item.item_id, item.due_at, run.state, run.error
FROM tenuto.bulk_operation_items AS item
LEFT JOIN tenuto.executions AS run ON run.id = item.item_id
WHERE item.operation_id = $1
  AND item.started_at IS NOT NULL
  AND item.outcome IS NULL
  AND (run.id IS NULL OR run.ended_at IS NOT NULL)
ORDER BY item.item_id;

-- name: list_startable_items
-- Return the first items of a backfill that may start, at most $2: as many as executions may still run beside those
-- that have not ended.
SELECT item_id, due_at
FROM tenuto.bulk_operation_items
WHERE operation_id = $1 AND outcome IS NULL AND started_at IS NULL
ORDER BY due_at
LIMIT least($2::bigint, greatest(0, (
    SELECT max_running FROM tenuto.bulk_operations WHERE id = $1 -- guard: backfills.max_running
) - (
    SELECT count(*)
    FROM tenuto.bulk_operation_items
    WHERE operation_id = $1 AND started_at IS NOT NULL AND outcome IS NULL
)));

-- name: mark_started
-- Record that the executions of items were started.
UPDATE tenuto.bulk_operation_items
SET started_at = $3
WHERE operation_id = $1 AND item_id = ANY ($2::uuid[]);

-- name: count_open_items
-- Count the items of an operation that have no outcome.
SELECT count(*)
FROM tenuto.bulk_operation_items
WHERE operation_id = $1 AND outcome IS NULL;

-- name: pause_operation
-- Pause a running operation after the chunk in progress.
UPDATE tenuto.bulk_operations
SET paused_at = clock_timestamp(), paused_by = $2
WHERE id = $1 AND state = 'running' AND paused_at IS NULL
RETURNING id;

-- name: resume_operation
-- Resume a paused operation and notify schedulers.
UPDATE tenuto.bulk_operations
SET paused_at = NULL, paused_by = NULL
WHERE id = $1 AND state = 'running' AND paused_at IS NOT NULL
RETURNING pg_notify('tenuto', 'operations');

-- name: delete_items
-- Delete items that succeeded.
DELETE FROM tenuto.bulk_operation_items
WHERE operation_id = $1 AND item_id = ANY ($2::uuid[]);

-- name: store_outcomes
-- Store the outcomes of items that failed or were skipped.
UPDATE tenuto.bulk_operation_items
SET outcome = new.outcome, code = new.code, message = new.message
FROM unnest($2::uuid[], $3::text[], $4::text[], $5::text[]) AS new (item_id, outcome, code, message)
WHERE bulk_operation_items.operation_id = $1 AND bulk_operation_items.item_id = new.item_id;

-- name: add_counts
-- Add the outcomes of a chunk to the counters.
UPDATE tenuto.bulk_operations
SET succeeded = succeeded + $2, failed = failed + $3, skipped = skipped + $4, processed_at = clock_timestamp()
WHERE id = $1;

-- name: end_operation
-- End an operation whose items were all processed.
UPDATE tenuto.bulk_operations
SET state = 'ended', ended_at = clock_timestamp(), arrived = $2
WHERE id = $1 AND state = 'running';

-- name: abort_operation
-- Abort a running operation and forget the items that are not processed. Waits for the chunk in progress.
WITH aborted AS (
    UPDATE tenuto.bulk_operations
    SET state = 'aborted', ended_at = clock_timestamp(), aborted_by = $2, paused_at = NULL, paused_by = NULL
    WHERE id = $1 AND state = 'running'
    RETURNING id
), forgotten AS (
    DELETE FROM tenuto.bulk_operation_items
    USING aborted
    WHERE bulk_operation_items.operation_id = aborted.id AND outcome IS NULL
)
SELECT id FROM aborted;

-- name: load_operation
-- Return one bulk operation.
SELECT {operation}
FROM tenuto.bulk_operations
WHERE id = $1;

-- name: list_operations
-- Return bulk operations, newest first, below a cursor.
SELECT {operation}
FROM tenuto.bulk_operations
WHERE id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
  AND ($2::text IS NULL OR state = $2)
  AND ($3::text IS NULL OR kind = $3)
ORDER BY id DESC
LIMIT $4;

-- name: list_items
-- Return the items of an operation that failed or were skipped, after a cursor.
SELECT item_id, outcome, code, message
FROM tenuto.bulk_operation_items
WHERE operation_id = $1
  AND outcome IS NOT NULL
  AND ($2::text IS NULL OR outcome = $2)
  AND item_id > coalesce($3::uuid, '00000000-0000-0000-0000-000000000000')
ORDER BY item_id
LIMIT $4;

-- name: find_operations
-- Return ids in a range, for a prefix that a user entered.
SELECT id
FROM tenuto.bulk_operations
WHERE id BETWEEN $1 AND $2
ORDER BY id
LIMIT 3;

-- name: delete_old_operations
-- Delete a small batch of operations that ended before the cut-off, with their items.
DELETE FROM tenuto.bulk_operations
WHERE id = ANY (ARRAY(
    SELECT id
    FROM tenuto.bulk_operations
    WHERE ended_at < $1
    ORDER BY ended_at
    LIMIT $2
))
RETURNING id;
