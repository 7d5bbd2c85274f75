-- name: load_queues
-- Return the settings of these queues, and of all queues that files have declared.
SELECT name, max_running, rate_limit, paused_at IS NOT NULL AS is_paused, reason, declared
FROM tenuto.queues
WHERE name = ANY ($1::text[])
   OR declared IS NOT NULL
ORDER BY name = ANY ($1::text[]) DESC, name
LIMIT $2;

-- name: create_queues
-- Create the rows of these queues, so that they can be locked.
INSERT INTO tenuto.queues (name)
SELECT unnest($1::text[]) AS name
ORDER BY name
ON CONFLICT DO NOTHING;

-- name: lock_queues
-- Return and lock the settings of these queues.
SELECT name, max_running, rate_limit, paused_at IS NOT NULL AS is_paused, reason, declared
FROM tenuto.queues
WHERE name = ANY ($1::text[])
ORDER BY name
-- guard: queues.planned_row_lock
FOR UPDATE;

-- name: store_queue_declaration
-- Record what a file declares of a queue; null: nothing any more.
UPDATE tenuto.queues
SET declared = $2::jsonb
WHERE name = $1;

-- name: delete_unset_queues
-- Delete the rows of those of these queues that have no settings and are not declared.
DELETE FROM tenuto.queues
WHERE name = ANY ($1::text[])
  AND max_running IS NULL
  AND rate_limit IS NULL
  AND paused_at IS NULL
  AND declared IS NULL;
