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
