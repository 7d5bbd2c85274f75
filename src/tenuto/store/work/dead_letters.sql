-- name: load_task_snapshots
-- Return what a retry of these tasks needs, before they end. The key that tasks get on their last chance is not theirs.
-- The expiry is left out: who retries a task wants it to run.
SELECT id,
       jsonb_strip_nulls(jsonb_build_object(
           'queue', queue, 'priority', -rank,
           'policy', {policy_with_due_instant}, -- guard: logical_time.dead_letter
           'unique_key', unique_key,
           'limit_key', nullif(limit_key, 'tenuto:last-chance'),
           'limit_max', CASE WHEN limit_key <> 'tenuto:last-chance' THEN limit_max END,
           'rate_key', rate_key, 'rate_limit', rate_limit,
           'tags', tags, 'correlation_id', correlation_id, 'origin', origin
       )) AS snapshot
FROM tenuto.tasks AS task
WHERE id = ANY ($1::uuid[])
ORDER BY id;

-- name: write_task_dead_letters
-- Insert a dead letter for each task without a manifest that failed finally, in the transaction that records the
-- failure. A task has one dead letter at most.
INSERT INTO tenuto.dead_letters (
    id, external_id, item, task_id, activity_id, dead_lettered_at, reason, fingerprint, attempts, input, kind, name, task
)
SELECT new.id, '', '', past.task_id, past.id, past.ended_at, new.reason, new.fingerprint, past.failures + past.losses,
       past.input, past.kind, past.name, new.task
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::jsonb[])
         AS new (id, activity_id, reason, fingerprint, task)
JOIN tenuto.activities AS past ON past.id = new.activity_id
WHERE past.id = ANY ($2::uuid[])
  AND past.final
ON CONFLICT (task_id) DO NOTHING
RETURNING id;

-- name: find_dead_letter_of_task
-- Return the dead letter of a task.
SELECT id
FROM tenuto.dead_letters
WHERE task_id = $1;

-- name: write_dead_letters
-- Insert a dead letter for each task that failed finally, in the transaction that records the failure. An item with
-- an open dead letter keeps it; it then describes the newest failure.
WITH failed AS (
    SELECT new.id, new.reason, new.fingerprint, past.manifest_id, past.batch_id, past.task_id, past.id AS activity_id,
           past.ended_at, past.failures + past.losses AS attempts, past.input, past.kind, past.name,
           coalesce(past.item_key, CASE WHEN past.batch_id IS NULL THEN '' ELSE past.task_id::text END) AS item
    FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[]) AS new (id, activity_id, reason, fingerprint)
    JOIN tenuto.activities AS past ON past.id = new.activity_id
    WHERE past.id = ANY ($2::uuid[])
      AND past.final
      AND past.manifest_id IS NOT NULL
)
INSERT INTO tenuto.dead_letters (
    id, manifest_id, external_id, item, batch_id, task_id, activity_id, dead_lettered_at, reason, fingerprint, attempts,
    input, kind, name
)
SELECT DISTINCT ON (manifest_id, item) id, manifest_id,
       coalesce((SELECT external_id FROM tenuto.manifests WHERE manifests.id = failed.manifest_id), manifest_id::text), item,
       batch_id, task_id, activity_id, ended_at, reason, fingerprint, attempts, input, kind, name
FROM failed
ORDER BY manifest_id, item, ended_at DESC, activity_id DESC
ON CONFLICT (manifest_id, item) WHERE status = 'awaiting_intervention' DO UPDATE
SET task_id = excluded.task_id,
    activity_id = excluded.activity_id,
    batch_id = excluded.batch_id,
    dead_lettered_at = excluded.dead_lettered_at,
    reason = excluded.reason,
    fingerprint = excluded.fingerprint,
    attempts = dead_letters.attempts + excluded.attempts,
    input = excluded.input,
    kind = excluded.kind,
    name = excluded.name
RETURNING id;

-- name: find_missing_dead_letters
-- Return recent final failures of manifests without a dead letter. Normally there are none.
SELECT past.id, past.error
FROM tenuto.activities AS past
WHERE past.manifest_id IS NOT NULL
  AND past.final
  AND past.status = 'failed'
  AND past.id >= $1
  AND past.ended_at < $2
  AND (SELECT dead_letters.id FROM tenuto.dead_letters WHERE dead_letters.task_id = past.task_id) IS NULL
  AND (
      SELECT dead_letters.id
      FROM tenuto.dead_letters
      WHERE dead_letters.manifest_id = past.manifest_id
        AND dead_letters.item = coalesce(past.item_key, CASE WHEN past.batch_id IS NULL THEN '' ELSE past.task_id::text END)
        AND dead_letters.dead_lettered_at >= past.ended_at
      LIMIT 1
  ) IS NULL
ORDER BY past.id
LIMIT $3;

-- name: load_dead_letter
-- Return one dead letter with its input and its resolution.
SELECT id, manifest_id, external_id, kind, name, item, batch_id, task_id, activity_id, dead_lettered_at, reason,
       fingerprint, attempts AS attempt_count, status AS state, resolved_at, resolved_name AS resolved_by, note, retry_task_id, input,
       resolved_type AS resolved_by_type, resolved_id AS resolved_by_id
FROM tenuto.dead_letters
WHERE id = $1;

-- name: list_owners
-- Return the manifests and batches of dead letters, which must be locked before the dead letters.
SELECT DISTINCT external_id, batch_id
FROM tenuto.dead_letters
WHERE id = ANY ($1::uuid[]) AND status = 'awaiting_intervention' AND manifest_id IS NOT NULL
ORDER BY external_id, batch_id;

-- name: lock_open_dead_letters
-- Return and lock open dead letters.
SELECT id, manifest_id, external_id, item, batch_id, task_id, input, kind, name, task
FROM tenuto.dead_letters
WHERE id = ANY ($1::uuid[]) AND status = 'awaiting_intervention'
ORDER BY id
-- guard: dead_letters.row_lock
FOR UPDATE;

-- name: find_resolved_by_request
-- Return which of these dead letters a request has resolved, now or earlier, and the task that retries each.
SELECT id, retry_task_id
FROM tenuto.dead_letters
WHERE id = ANY ($1::uuid[]) AND resolved_request = $2
ORDER BY id;

-- name: list_resolved_by_request
-- Return all dead letters that a request has resolved.
SELECT id
FROM tenuto.dead_letters
WHERE resolved_request = $1
ORDER BY id;

-- name: load_first_resolved_at
-- Return when a request resolved its first dead letter.
SELECT min(resolved_at) AS at
FROM tenuto.dead_letters
WHERE resolved_request = $1;

-- name: resolve_dead_letters
-- Resolve dead letters: retried as a new task, or acknowledged.
UPDATE tenuto.dead_letters
SET status = CASE WHEN new.retry_task_id IS NULL THEN 'acknowledged' ELSE 'retried' END,
    resolved_at = $3,
    resolved_type = $4,
    resolved_id = $5,
    resolved_name = $6,
    note = $7,
    resolved_request = $8,
    retry_task_id = new.retry_task_id
FROM unnest($1::uuid[], $2::uuid[]) AS new (id, retry_task_id)
WHERE dead_letters.id = ANY ($1::uuid[])
  AND dead_letters.id = new.id
  AND dead_letters.status = 'awaiting_intervention' -- guard: dead_letters.one_resolution
RETURNING dead_letters.id;

-- name: list_dead_letters
-- Return dead letters that meet a filter, newest first, below a cursor.
SELECT id, manifest_id, external_id, kind, name, item, batch_id, task_id, activity_id, dead_lettered_at, reason,
       fingerprint, attempts AS attempt_count, status AS state, resolved_at, resolved_name AS resolved_by, note, retry_task_id
FROM tenuto.dead_letters
WHERE id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
  AND (/* filter */ true)
ORDER BY id DESC
LIMIT $2;

-- name: count_dead_letters
-- Count dead letters that meet a filter, up to a limit.
SELECT count(*) AS count
FROM (SELECT FROM tenuto.dead_letters WHERE (/* filter */ true) LIMIT $1) AS found;

-- name: select_open_dead_letters
-- Return the ids of all open dead letters that meet a filter and were written up to an instant.
SELECT id
FROM tenuto.dead_letters
WHERE status = 'awaiting_intervention'
  AND ($1::timestamptz IS NULL OR dead_lettered_at <= $1)
  AND (/* filter */ true)
ORDER BY id;

-- name: find_dead_letters
-- Return ids in a range, for a prefix that a user entered.
SELECT id
FROM tenuto.dead_letters
WHERE id BETWEEN $1 AND $2
ORDER BY id
LIMIT 3;

-- name: delete_resolved_dead_letters
-- Delete a small batch of dead letters that were resolved before the cut-off and whose activity no longer exists:
-- until then the dead letter says how the failure was resolved. Open dead letters of tasks without a manifest expire
-- with their activities too; those of manifests stay until they are resolved.
DELETE FROM tenuto.dead_letters
WHERE id = ANY (ARRAY(
    SELECT id
    FROM tenuto.dead_letters
    WHERE resolved_at < $1
      -- guard: retention.dead_letter_with_activity
      AND NOT EXISTS (SELECT FROM tenuto.activities WHERE activities.id = dead_letters.activity_id)
    ORDER BY resolved_at
    LIMIT $2
) || ARRAY(
    SELECT id
    FROM tenuto.dead_letters
    WHERE manifest_id IS NULL AND status = 'awaiting_intervention' AND dead_lettered_at < $1
      AND NOT EXISTS (SELECT FROM tenuto.activities WHERE activities.id = dead_letters.activity_id)
    ORDER BY dead_lettered_at
    LIMIT $2
))
RETURNING id;
