-- name: list_items
SELECT number, object_id, metaverse_id, type, anchor, display, change, error, message, detail
FROM items
WHERE run_id = $1 AND number > $2 AND ($3::boolean IS NOT TRUE OR error IS NOT NULL)
  AND ($5::text IS NULL OR change = $5) AND ($6::text IS NULL OR error = $6)
ORDER BY number
LIMIT $4;

-- name: count_items
SELECT change, error, count(*) AS item_count
FROM items
WHERE run_id = $1
GROUP BY change, error
ORDER BY change, error;

-- name: load_changes_of_objects
-- What a run has written about objects so far.
SELECT i.object_id, i.number, i.change, c.diff
FROM items AS i
LEFT JOIN changes AS c ON c.run_id = i.run_id AND c.item_number = i.number AND c.subject = 'object'
WHERE i.run_id = $1 AND i.object_id = ANY ($2::bigint[])
ORDER BY i.number;

-- name: refuse_items
-- Objects that a later page contains again: the first one is refused too.
UPDATE items SET change = NULL, error = 'duplicate_object', message = $3
WHERE run_id = $1 AND number = ANY ($2::bigint[]);

-- name: delete_changes
DELETE FROM changes WHERE run_id = $1 AND item_number = ANY ($2::bigint[]);

-- name: list_objects_of_identity
-- Objects that are, or have been, joined to a metaverse object.
SELECT DISTINCT object_id FROM items WHERE metaverse_id = $1 AND object_id IS NOT NULL
UNION
SELECT id FROM connector_objects WHERE metaverse_id = $1;

-- name: erase_changes
DELETE FROM changes
WHERE (subject = 'identity' AND subject_id = $1) OR (subject = 'object' AND subject_id = ANY ($2::bigint[]));

-- name: erase_items
-- The counts of runs stay true: only data about the person is erased.
UPDATE items
SET anchor = NULL, display = NULL, message = NULL, detail = NULL
WHERE (metaverse_id = $1 OR object_id = ANY ($2::bigint[]))
  AND (anchor IS NOT NULL OR display IS NOT NULL OR message IS NOT NULL OR detail IS NOT NULL);

-- name: append_changes
UPDATE items AS i
SET detail = jsonb_set(i.detail - 'deferred', ARRAY['changes'], coalesce(i.detail -> 'changes', '[]') || u.changes::jsonb)
FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS u (run_id, number, changes)
WHERE i.run_id = u.run_id AND i.number = u.number;

-- name: load_deferring
-- Items of lost attempts of a task whose objects have references that were not sent.
SELECT i.object_id, i.run_id, i.number
FROM runs AS r
JOIN items AS i ON i.run_id = r.id
WHERE r.task_id = $1 AND r.id <> $2 AND r.kind = 'export' AND i.change = 'Exported' AND i.detail ? 'deferred';
