-- name: append_entry
-- Append an entry, once for each key, and return the stored one.
INSERT INTO tenuto.log_entries (log, at, message, fields, key, task_id)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (key) DO UPDATE -- guard: logs.one_entry_per_task
SET key = excluded.key -- guard: logs.one_entry_per_task
RETURNING id, log, at, message, fields, task_id, xmax = 0 AS is_new;

-- name: list_logs
-- Return the logs after a cursor, by name, each with its newest entry. A loose index scan from name to name, because a
-- log may be long.
WITH RECURSIVE found AS (
    (SELECT log, 1 AS number FROM tenuto.log_entries WHERE log > $1 ORDER BY log LIMIT 1)
    UNION ALL
    SELECT (SELECT later.log FROM tenuto.log_entries AS later WHERE later.log > found.log ORDER BY later.log LIMIT 1),
           found.number + 1
    FROM found
    WHERE found.log IS NOT NULL
      AND found.number < $2
)
SELECT found.log, newest.id AS last_entry_id, newest.at AS last_entry_at, newest.message AS last_message
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

-- name: search_names
-- Return the names that contain a text among the next $3 names after a cursor, the last of these names, and how many
-- there are. A loose index scan like list_logs.
WITH RECURSIVE found AS (
    (SELECT log, 1 AS number FROM tenuto.log_entries WHERE log > $1 ORDER BY log LIMIT 1)
    UNION ALL
    SELECT (SELECT later.log FROM tenuto.log_entries AS later WHERE later.log > found.log ORDER BY later.log LIMIT 1),
           found.number + 1
    FROM found
    WHERE found.log IS NOT NULL
      AND found.number < $3
)
SELECT coalesce(array_agg(log ORDER BY log) FILTER (WHERE strpos(lower(log), lower($2)) > 0), '{}') AS names,
       max(log) AS last_name, count(log) AS searched_count
FROM found;

-- name: load_newest_entries
-- Return these logs by name, each with its newest entry.
SELECT wanted.log, newest.id AS last_entry_id, newest.at AS last_entry_at, newest.message AS last_message
FROM unnest($1::text[]) AS wanted (log)
CROSS JOIN LATERAL (
    SELECT id, at, message
    FROM tenuto.log_entries
    WHERE log_entries.log = wanted.log
    ORDER BY id DESC
    LIMIT 1
) AS newest
ORDER BY wanted.log;

-- name: list_newest_entries
-- Return the entries of a log, newest first, below a cursor.
SELECT id, log, at, message, fields, task_id
FROM tenuto.log_entries
WHERE log = $1
  AND id < $2
  AND (/* filter */ true)
ORDER BY id DESC
LIMIT $3;

-- name: list_oldest_entries
-- Return the entries of a log, oldest first, above a cursor.
SELECT id, log, at, message, fields, task_id
FROM tenuto.log_entries
WHERE log = $1
  AND id > $2
  AND (/* filter */ true)
ORDER BY id
LIMIT $3;

-- name: delete_old_entries
-- Delete a small batch of old entries, except those of open tasks, which would append them again.
DELETE FROM tenuto.log_entries
WHERE (log, id) IN (
    SELECT log, id
    FROM tenuto.log_entries
    WHERE at < $1
      -- guard: logs.entries_of_open_tasks
      AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = log_entries.task_id)
    ORDER BY at
    LIMIT $2
)
RETURNING id;
