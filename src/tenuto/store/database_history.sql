-- name: find_timeline
-- Return the history of the database without marks, also of a database without the schema.
SELECT system.system_identifier::text || '/' || base.oid AS system,
       ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer AS timeline,
       0::bigint AS number,
       clock_timestamp() AS now
FROM pg_control_system() AS system, pg_database AS base
WHERE base.datname = current_database();

-- name: find_history
-- Return the history of the database, with the mark of a process.
SELECT system.system_identifier::text || '/' || base.oid AS system,
       ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer AS timeline,
       coalesce((SELECT number FROM tenuto.history_marks WHERE process = $1), 0) AS number,
       clock_timestamp() AS now
FROM pg_control_system() AS system, pg_database AS base
WHERE base.datname = current_database();

-- name: record_mark
-- Record a mark of a process.
INSERT INTO tenuto.history_marks (process, service, name, number, marked_at)
VALUES ($1, $2, $3, $4, clock_timestamp())
ON CONFLICT (process) DO UPDATE SET number = excluded.number, marked_at = excluded.marked_at
    WHERE history_marks.number < excluded.number
RETURNING marked_at;

-- name: record_loss
-- Record that a process has found commits lost. The same loss is recorded once.
INSERT INTO tenuto.history_losses (
    id, found_at, service, name, seen_at, seen_number, found_number, seen_timeline, found_timeline
)
VALUES ($1, clock_timestamp(), $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (id) DO NOTHING;

-- name: list_losses
-- Return the newest losses since an instant.
SELECT found_at, service, name, seen_at, seen_number, found_number, seen_timeline, found_timeline
FROM tenuto.history_losses
WHERE found_at > $1
ORDER BY found_at DESC, id
LIMIT $2;

-- name: find_newest_mark_ahead
-- Return by how many seconds the newest mark is ahead of the clock of the server, if it is.
SELECT extract(epoch FROM max(marked_at) - clock_timestamp())::double precision AS ahead_seconds
FROM tenuto.history_marks;

-- name: delete_old_marks
-- Delete the marks of processes that have ended long ago.
DELETE FROM tenuto.history_marks
WHERE marked_at < $1;

-- name: delete_old_losses
-- Delete losses that were found long ago.
DELETE FROM tenuto.history_losses
WHERE found_at < $1;
