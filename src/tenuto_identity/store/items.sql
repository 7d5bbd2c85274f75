-- name: list_items
SELECT number, object_id, metaverse_id, type, anchor, display, change, error, message, detail
FROM items
WHERE run_id = $1 AND number > $2 AND ($3::boolean IS NOT TRUE OR error IS NOT NULL)
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
