-- name: load_exports
SELECT p.object_id, p.system_number, p.metaverse_id, p.kind, p.changes, p.queued_changes, p.state, p.attempts,
       p.next_attempt_at, p.uncertain, p.deferred_reference_count, p.error,
       p.foreign_anchor, p.disables
FROM unnest($1::bigint[]) AS a (object_id)
CROSS JOIN LATERAL (SELECT * FROM pending_exports WHERE object_id = a.object_id LIMIT 1) AS p;

-- name: lock_exports
-- Lock the exports that a page changes, in the order of all transactions.
SELECT p.object_id, p.system_number, p.metaverse_id, p.kind, p.changes, p.queued_changes, p.state, p.attempts,
       p.next_attempt_at, p.uncertain, p.deferred_reference_count, p.error,
       p.foreign_anchor, p.disables
FROM unnest($1::bigint[]) AS a (object_id)
CROSS JOIN LATERAL (SELECT * FROM pending_exports WHERE object_id = a.object_id LIMIT 1 FOR UPDATE) AS p;

-- name: lock_queued_changes
-- Lock exports that a run has sent, and return what arrived meanwhile.
SELECT p.object_id, p.queued_changes
FROM unnest($1::bigint[]) AS a (object_id)
CROSS JOIN LATERAL (
    SELECT object_id, queued_changes FROM pending_exports WHERE object_id = a.object_id LIMIT 1 FOR UPDATE
) AS p;

-- name: write_exports
INSERT INTO pending_exports (object_id, system_number, metaverse_id, kind, changes, queued_changes, phase, depth, state,
                             attempts, next_attempt_at, uncertain, deferred_reference_count, error, disables, foreign_anchor,
                             run_id, changed_at)
SELECT u.object_id, u.system_number, u.metaverse_id, u.kind, u.changes::jsonb, u.queued_changes::jsonb, u.phase, u.depth,
       u.state, u.attempts, u.next_attempt_at, u.uncertain, u.deferred_reference_count, u.error, u.disables,
       u.foreign_anchor, NULL, $16
FROM unnest($1::bigint[], $2::smallint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::smallint[],
            $8::smallint[], $9::text[], $10::integer[], $11::timestamptz[], $12::boolean[], $13::integer[], $14::text[],
            $15::boolean[], $17::text[])
    AS u (object_id, system_number, metaverse_id, kind, changes, queued_changes, phase, depth, state, attempts,
          next_attempt_at, uncertain, deferred_reference_count, error, disables, foreign_anchor)
ON CONFLICT (object_id) DO UPDATE
SET metaverse_id = excluded.metaverse_id, kind = excluded.kind, changes = excluded.changes,
    queued_changes = excluded.queued_changes, phase = excluded.phase, depth = excluded.depth, state = excluded.state,
    attempts = excluded.attempts, next_attempt_at = excluded.next_attempt_at, uncertain = excluded.uncertain,
    deferred_reference_count = excluded.deferred_reference_count, error = excluded.error,
    foreign_anchor = excluded.foreign_anchor,
    disables = excluded.disables OR (pending_exports.state = 'executing' AND pending_exports.disables),
    approved = pending_exports.approved AND (excluded.kind = 'delete' OR excluded.disables),
    run_id = CASE WHEN excluded.state = 'executing' THEN pending_exports.run_id END, changed_at = excluded.changed_at;

-- name: delete_exports
DELETE FROM pending_exports AS p
USING unnest($1::bigint[]) AS u (object_id)
WHERE p.object_id = u.object_id;

-- name: has_exports_to_confirm
SELECT EXISTS (
    SELECT FROM pending_exports WHERE system_number = $1 AND state IN ('exported', 'unconfirmed', 'failed')
);

-- name: load_exports_to_confirm
-- Exports of the objects of an imported page that the import may confirm.
SELECT p.object_id, p.system_number, p.metaverse_id, p.kind, p.changes, p.queued_changes, p.state, p.attempts,
       p.next_attempt_at, p.uncertain, p.deferred_reference_count, p.error,
       p.foreign_anchor, p.disables
FROM unnest($1::bigint[]) AS a (object_id)
CROSS JOIN LATERAL (
    SELECT * FROM pending_exports
    WHERE object_id = a.object_id AND state IN ('exported', 'unconfirmed', 'failed', 'pending')
    LIMIT 1
    FOR UPDATE
) AS p;

-- name: list_exported
-- The next exports of a system that wait for confirmation, in order of object.
SELECT object_id, kind
FROM pending_exports
WHERE system_number = $1 AND state = 'exported' AND object_id > $2
ORDER BY object_id
LIMIT $3;

-- name: release_uncertain_exports
-- Exports that an ended run had claimed: whether their requests took effect is not known.
UPDATE pending_exports AS p
SET state = 'pending', uncertain = true, run_id = NULL
WHERE p.system_number = $1 AND p.state = 'executing'
  AND NOT EXISTS (SELECT FROM runs WHERE id = p.run_id AND state = 'running' AND id <> $2)
RETURNING p.object_id;

-- name: claim_exports
-- Claim the next exports that are due, in the order of sending.
WITH claimed AS (
    SELECT object_id
    FROM pending_exports
    WHERE system_number = $1 AND state IN ('pending', 'unconfirmed') AND phase = $2
      AND (depth, object_id) > ($3, $4)
      AND (next_attempt_at IS NULL OR next_attempt_at <= $5)
      AND (approved OR NOT $8 OR (kind <> 'delete' AND NOT disables))
      AND ($9::bigint[] IS NULL OR object_id = ANY ($9))
    ORDER BY system_number, phase, depth, object_id
    LIMIT $6
    FOR UPDATE
)
UPDATE pending_exports AS p
SET state = 'executing', run_id = $7
FROM claimed
WHERE p.object_id = claimed.object_id
RETURNING p.object_id, p.system_number, p.metaverse_id, p.kind, p.changes, p.queued_changes, p.state, p.attempts,
          p.next_attempt_at, p.uncertain, p.deferred_reference_count, p.error, p.foreign_anchor,
          p.disables, p.phase, p.depth;

-- name: count_exports
SELECT kind, state, count(*) AS export_count,
       count(*) FILTER (WHERE next_attempt_at IS NULL OR next_attempt_at <= $2) AS due_count,
       count(*) FILTER (WHERE (kind = 'delete' OR disables) AND NOT approved) AS unapproved_count
FROM pending_exports
WHERE system_number = $1
GROUP BY kind, state
ORDER BY kind, state;

-- name: list_exports
SELECT p.object_id, s.name AS system, o.anchor, o.address, p.metaverse_id, m.display, p.kind, p.state, p.changes,
       p.attempts, p.next_attempt_at, p.deferred_reference_count, p.error, p.changed_at
FROM pending_exports AS p
JOIN systems AS s ON s.number = p.system_number
LEFT JOIN connector_objects AS o ON o.id = p.object_id
LEFT JOIN metaverse_objects AS m ON m.id = p.metaverse_id
WHERE ($1::text IS NULL OR s.name = $1) AND ($2::text IS NULL OR p.state = $2) AND p.object_id > $3
  AND ($5::boolean IS NOT TRUE OR p.error IS NOT NULL)
ORDER BY p.object_id
LIMIT $4;

-- name: retry_exports
-- Send failed exports again from the first attempt.
SELECT object_id, system_number, metaverse_id, kind, changes, queued_changes, state, attempts, next_attempt_at, uncertain,
       deferred_reference_count, error, foreign_anchor, disables
FROM pending_exports
WHERE system_number = $1 AND (state = 'failed' OR next_attempt_at IS NOT NULL OR error IS NOT NULL)
  AND state <> 'executing' AND object_id > $2
ORDER BY object_id
LIMIT $3
FOR UPDATE;

-- name: approve_deletes
-- Approve exactly the deletes, and the updates that disable, that wait now.
UPDATE pending_exports
SET approved = true
WHERE system_number = $1 AND (kind = 'delete' OR disables) AND state IN ('pending', 'unconfirmed', 'failed') AND NOT approved
RETURNING object_id;
