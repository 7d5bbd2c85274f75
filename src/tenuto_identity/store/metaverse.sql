-- name: load_identities
SELECT m.id, m.type_number, m.attributes, m.provenance, m.display, m.origin, m.deletion_scheduled_at, m.delete_after,
       m.deletion_initiator, m.reevaluate_at, m.version
FROM unnest($1::bigint[]) AS a (id)
CROSS JOIN LATERAL (SELECT * FROM metaverse_objects WHERE id = a.id LIMIT 1) AS m;

-- name: lock_identities
-- Lock the metaverse objects that a page writes, in the order of all transactions.
SELECT m.id, m.version
FROM unnest($1::bigint[]) AS a (id)
CROSS JOIN LATERAL (SELECT id, version FROM metaverse_objects WHERE id = a.id LIMIT 1 FOR UPDATE) AS m;

-- name: load_references
SELECT r.object_id, r.attribute_number, r.target_id, r.rule_number
FROM unnest($1::bigint[]) AS a (id)
CROSS JOIN LATERAL (SELECT * FROM metaverse_references WHERE object_id = a.id LIMIT 1000000) AS r
ORDER BY r.object_id, r.attribute_number, r.target_id;

-- name: find_by_keys
-- Metaverse objects that have these keys, with the object of a system that each is joined to.
SELECT a.position, k.object_id, m.attributes, o.id AS joined_object_id
FROM unnest($1::smallint[], $2::integer[], $3::text[]) WITH ORDINALITY AS a (type_number, attribute_number, key, position)
CROSS JOIN LATERAL (
    SELECT object_id FROM match_keys
    WHERE type_number = a.type_number AND attribute_number = a.attribute_number AND key = a.key
    ORDER BY object_id
    LIMIT 20
) AS k
CROSS JOIN LATERAL (SELECT attributes FROM metaverse_objects WHERE id = k.object_id LIMIT 1) AS m
LEFT JOIN LATERAL (
    SELECT id FROM connector_objects
    WHERE metaverse_id = k.object_id AND system_number = (SELECT $4::smallint) -- see objects.classify_objects
    LIMIT 1
) AS o ON true;

-- name: draw_ids
SELECT nextval('metaverse_objects_id_seq') FROM generate_series(1, $1::integer);

-- name: update_identities
UPDATE metaverse_objects AS m
SET attributes = u.attributes::jsonb, provenance = u.provenance::jsonb, display = u.display,
    deletion_scheduled_at = u.deletion_scheduled_at, delete_after = u.delete_after,
    deletion_initiator = u.deletion_initiator::jsonb, reevaluate_at = u.reevaluate_at, version = m.version + 1,
    changed_at = $9
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::timestamptz[], $7::text[],
            $8::timestamptz[])
    AS u (id, attributes, provenance, display, deletion_scheduled_at, delete_after, deletion_initiator, reevaluate_at)
WHERE m.id = u.id;

-- name: delete_identities
DELETE FROM metaverse_objects AS m USING unnest($1::bigint[]) AS u (id) WHERE m.id = u.id;

-- name: delete_keys_of
DELETE FROM match_keys AS k USING unnest($1::bigint[]) AS u (id) WHERE k.object_id = u.id;

-- name: delete_references_of
DELETE FROM metaverse_references AS r USING unnest($1::bigint[]) AS u (id) WHERE r.object_id = u.id;

-- name: delete_references_to
DELETE FROM metaverse_references AS r
USING unnest($1::bigint[]) AS u (id)
WHERE r.target_id = u.id
RETURNING r.object_id;

-- name: disconnect_objects_of
-- Objects of deleted metaverse objects stay until their systems confirm the deletion.
UPDATE connector_objects AS o
SET metaverse_id = NULL, join_kind = NULL, pinned = false, version = o.version + 1, changed_at = $2
FROM unnest($1::bigint[]) AS u (id)
WHERE o.metaverse_id = u.id;

-- name: delete_references
DELETE FROM metaverse_references AS r
USING unnest($1::bigint[], $2::integer[], $3::bigint[]) AS u (object_id, attribute_number, target_id)
WHERE r.object_id = u.object_id AND r.attribute_number = u.attribute_number AND r.target_id = u.target_id;

-- fragment: due_deletions
WITH ready AS (
    -- What a run of due deletions requires: it is a sync.
    SELECT name FROM systems
    WHERE state IN ('active', 'disabled')
      -- guard: identity.due_deletions_of_held_systems
      AND (held IS NULL OR coalesce((held ->> 'deletes_only')::boolean, false))
), due AS (
    SELECT m.id, m.deletion_initiator, m.delete_after, coalesce(own.name, (SELECT min(name) FROM ready)) AS system
    FROM metaverse_objects AS m
    LEFT JOIN systems AS own ON own.name = m.deletion_initiator ->> 'system'
    WHERE m.delete_after <= $1
)
SELECT id, deletion_initiator, system, delete_after
FROM due
WHERE system IN (SELECT name FROM ready) OR (system IS NULL AND NOT EXISTS (SELECT FROM systems))

-- name: find_due_deletions
-- The oldest scheduled deletions that are due and can be made now, shared equally among systems. The system is the one
-- whose run scheduled the deletion, or another one if it was deleted; none if there are no systems any more.
SELECT d.id, d.deletion_initiator, d.system
FROM (
    SELECT *, row_number() OVER (PARTITION BY system ORDER BY delete_after, id) AS rank FROM ({due_deletions}) AS due
) AS d
ORDER BY d.rank, d.delete_after, d.id -- guard: identity.due_deletions_are_shared
LIMIT $2;

-- name: find_orphans_of_system
-- The next metaverse objects that are joined to an object of a system.
SELECT o.id AS object_id, o.metaverse_id
FROM connector_objects AS o
WHERE o.system_number = $1 AND o.id > $2 AND o.metaverse_id IS NOT NULL
ORDER BY o.id
LIMIT $3;

-- name: find_due_reevaluations
-- Metaverse objects, and unjoined connector space objects, whose rules may have another result now.
SELECT id FROM metaverse_objects WHERE reevaluate_at <= $1 ORDER BY reevaluate_at, id LIMIT $2;

-- name: find_due_object_reevaluations
SELECT id, system_number FROM connector_objects WHERE reevaluate_at <= $1 ORDER BY reevaluate_at, id LIMIT $2;

-- name: clear_reevaluations
UPDATE metaverse_objects AS m SET reevaluate_at = NULL FROM unnest($1::bigint[]) AS u (id) WHERE m.id = u.id;

-- name: clear_object_reevaluations
UPDATE connector_objects AS o SET reevaluate_at = NULL FROM unnest($1::bigint[]) AS u (id) WHERE o.id = u.id;

-- name: count_identities
SELECT type_number, count(*) AS identity_count FROM metaverse_objects GROUP BY type_number ORDER BY type_number;

-- name: taken_keys
-- Which keys are taken by other metaverse objects.
SELECT a.position, k.object_id
FROM unnest($1::smallint[], $2::integer[], $3::text[]) WITH ORDINALITY AS a (type_number, attribute_number, key, position)
CROSS JOIN LATERAL (
    SELECT object_id FROM match_keys
    WHERE type_number = a.type_number AND attribute_number = a.attribute_number AND key = a.key
    ORDER BY object_id
    LIMIT 5
) AS k;

-- name: is_anything_due
-- Whether housekeeping has anything to do.
SELECT EXISTS ({due_deletions})
    OR EXISTS (SELECT FROM metaverse_objects WHERE reevaluate_at <= $1)
    OR EXISTS (SELECT FROM connector_objects WHERE reevaluate_at <= $1)
    OR EXISTS (
        SELECT FROM systems AS s
        WHERE s.state = 'deleting' AND NOT EXISTS (
            SELECT FROM runs WHERE system_number = s.number AND state = 'running'
        )
    );

-- name: reset_interrupted_deletions
-- Systems whose deletion failed or was killed can be used, and deleted, again.
UPDATE systems AS s
SET state = 'active'
WHERE s.state = 'deleting' AND NOT EXISTS (SELECT FROM runs WHERE system_number = s.number AND state = 'running')
RETURNING s.name;

-- name: insert_template_run
INSERT INTO template_runs (task_id, template, seed, object_count, at)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING
RETURNING task_id;

-- name: load_template_run
SELECT object_count FROM template_runs WHERE task_id = $1;
