-- name: list_objects
-- Connector space objects in order of id; the text filter compares the beginning of anchor and address.
SELECT o.id, s.name AS system, t.name AS type, o.anchor, o.address, o.container, o.state, o.attributes,
       (SELECT coalesce(jsonb_object_agg(r.name, r.raws), '{}')
        FROM (SELECT a.name, jsonb_agg(c.raw ORDER BY c.raw_key) AS raws
              FROM connector_references AS c
              JOIN attributes AS a ON a.number = c.attribute_number
              WHERE c.object_id = o.id
              GROUP BY a.name) AS r) AS reference_values,
       o.metaverse_id, o.join_kind, o.pinned, o.imported_at, o.changed_at
FROM connector_objects AS o
JOIN systems AS s ON s.number = o.system_number
JOIN object_types AS t ON t.system_number = o.system_number AND t.number = o.type_number
WHERE ($1::text IS NULL OR s.name = $1)
  AND ($2::text IS NULL OR t.name = $2)
  AND ($3::text IS NULL OR o.state = $3)
  AND ($4::boolean IS NULL OR (o.metaverse_id IS NOT NULL) = $4)
  AND ($5::text IS NULL OR starts_with(lower(o.anchor), lower($5)) OR starts_with(lower(o.address), lower($5)))
  AND ($6::bigint IS NULL OR o.metaverse_id = $6)
  AND o.id > $7
ORDER BY o.id
LIMIT $8;

-- name: list_identities
-- Metaverse objects in order of id; the text filter compares any part of the display name.
SELECT m.id, t.name AS type, m.display, m.origin, m.attributes,
       (SELECT coalesce(jsonb_object_agg(r.name, r.targets), '{}')
        FROM (SELECT a.name, jsonb_agg(c.target_id::text ORDER BY c.target_id) AS targets
              FROM metaverse_references AS c
              JOIN attributes AS a ON a.number = c.attribute_number
              WHERE c.object_id = m.id
              GROUP BY a.name) AS r) AS reference_ids,
       (SELECT coalesce(array_agg(s.name ORDER BY s.name), '{}')
        FROM connector_objects AS o
        JOIN systems AS s ON s.number = o.system_number
        WHERE o.metaverse_id = m.id) AS systems,
       m.deletion_scheduled_at, m.delete_after, m.version, m.changed_at
FROM metaverse_objects AS m
JOIN metaverse_types AS t ON t.number = m.type_number
WHERE ($1::text IS NULL OR t.name = $1)
  AND ($2::text IS NULL OR strpos(lower(m.display), lower($2)) > 0)
  AND ($3::boolean IS NULL OR (m.delete_after IS NOT NULL) = $3)
  AND ($4::bigint[] IS NULL OR m.id = ANY ($4))
  AND m.id > $5
ORDER BY m.id
LIMIT $6;

-- name: list_changes
-- Changes of a metaverse object and of the objects joined to it, the newest first.
SELECT c.run_id, c.item_number, c.subject, c.subject_id, s.name AS system, r.profile, r.started_at, i.change, i.anchor,
       c.diff
FROM (
    SELECT run_id, item_number, subject, subject_id, diff
    FROM changes
    WHERE subject = 'identity' AND subject_id = $1
    UNION ALL
    SELECT run_id, item_number, subject, subject_id, diff
    FROM changes
    WHERE subject = 'object' AND subject_id = ANY (ARRAY(
        SELECT id FROM connector_objects WHERE metaverse_id = $1
        UNION
        -- A deleted identity has no objects any more: those of its items.
        SELECT object_id FROM items
        WHERE metaverse_id = $1 AND NOT EXISTS (SELECT FROM metaverse_objects WHERE id = $1)
    ))
) AS c
LEFT JOIN runs AS r ON r.id = c.run_id
LEFT JOIN systems AS s ON s.number = r.system_number
LEFT JOIN items AS i ON i.run_id = c.run_id AND i.number = c.item_number
WHERE $2::uuid IS NULL OR (c.run_id, c.item_number, c.subject) < ($2, $3::bigint, $4::text)
ORDER BY c.run_id DESC, c.item_number DESC, c.subject DESC
LIMIT $5;

-- name: list_item_changes
-- Changes behind items of a run, in order.
SELECT c.run_id, c.item_number, c.subject, c.subject_id, s.name AS system, r.profile, r.started_at, i.change, i.anchor,
       c.diff
FROM unnest($2::bigint[]) AS u (number)
CROSS JOIN LATERAL (SELECT * FROM items WHERE run_id = $1 AND number = u.number LIMIT 1) AS i
JOIN changes AS c ON c.run_id = i.run_id AND c.item_number = i.number
LEFT JOIN runs AS r ON r.id = c.run_id
LEFT JOIN systems AS s ON s.number = r.system_number
ORDER BY c.item_number, c.subject DESC;

-- name: find_deleted_identity
-- The metaverse object that an object with this anchor was joined to last. Reads the items of the system; for single
-- objects.
SELECT i.metaverse_id
FROM items AS i
JOIN runs AS r ON r.id = i.run_id
WHERE r.system_number = $1 AND i.anchor = $2 AND i.metaverse_id IS NOT NULL
ORDER BY i.run_id DESC, i.number DESC
LIMIT 1;

-- name: load_last_item
-- Type and name of a metaverse object in its newest item.
SELECT type, display FROM items WHERE metaverse_id = $1 ORDER BY run_id DESC, number DESC LIMIT 1;

-- name: list_held_objects
-- A sample of the objects that a guard keeps from being deleted.
SELECT o.id, t.name AS type, o.anchor, o.address, m.display
FROM pending_deletions AS d
JOIN connector_objects AS o ON o.id = d.object_id
JOIN object_types AS t ON t.system_number = o.system_number AND t.number = o.type_number
LEFT JOIN metaverse_objects AS m ON m.id = o.metaverse_id
WHERE d.run_id = $1 AND d.object_id > $2
ORDER BY d.object_id
LIMIT $3;

-- name: list_held_deletes
-- A sample of the deletes, and updates that disable, which a guard keeps from being sent.
SELECT o.id, t.name AS type, o.anchor, o.address, m.display
FROM pending_exports AS p
JOIN connector_objects AS o ON o.id = p.object_id
JOIN object_types AS t ON t.system_number = o.system_number AND t.number = o.type_number
LEFT JOIN metaverse_objects AS m ON m.id = o.metaverse_id
WHERE p.system_number = $1 AND (p.kind = 'delete' OR p.disables) AND NOT p.approved
  AND p.state IN ('pending', 'unconfirmed', 'failed') AND p.object_id > $2
ORDER BY p.object_id
LIMIT $3;
