-- name: append
-- One entry, once for each key; what stands under it.
INSERT INTO tenuto.log_entries (log, at, message, fields, key, task_id)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (key) DO UPDATE
SET key = excluded.key
RETURNING id, log, at, message, fields, task_id;

-- name: names
-- The logs there are, by name after a key, each with its newest entry. From name to name by the index: a log may be long.
WITH RECURSIVE found AS (
    (SELECT log, 1 AS number FROM tenuto.log_entries WHERE log > $1 ORDER BY log LIMIT 1)
    UNION ALL
    SELECT (SELECT later.log FROM tenuto.log_entries AS later WHERE later.log > found.log ORDER BY later.log LIMIT 1),
           found.number + 1
    FROM found
    WHERE found.log IS NOT NULL
      AND found.number < $2
)
SELECT found.log, newest.id AS last_entry, newest.at AS last_at, newest.message AS last_message
FROM found
CROSS JOIN LATERAL (
    SELECT id, at, message
    FROM tenuto.log_entries
    WHERE log_entries.log = found.log
    ORDER BY id DESC
    LIMIT 1
) AS newest
ORDER BY found.log
LIMIT $2;

-- name: newest
-- The entries of a log, the newest first, below a key.
SELECT id, log, at, message, fields, task_id
FROM tenuto.log_entries
WHERE log = $1
  AND id < $2
ORDER BY id DESC
LIMIT $3;

-- name: oldest
-- The entries of a log, the oldest first, above a key.
SELECT id, log, at, message, fields, task_id
FROM tenuto.log_entries
WHERE log = $1
  AND id > $2
ORDER BY id
LIMIT $3;

-- name: forget
-- A small batch of old entries; not those of tasks that are still open, which would append anew.
DELETE FROM tenuto.log_entries
WHERE (log, id) IN (
    SELECT log, id
    FROM tenuto.log_entries
    WHERE at < $1
      AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = log_entries.task_id)
    ORDER BY at
    LIMIT $2
)
RETURNING id;
