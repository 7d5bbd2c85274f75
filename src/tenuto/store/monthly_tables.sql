-- name: list_partitions
-- The partitions of a table, in order of their names.
SELECT child.relname AS name
FROM pg_inherits
JOIN pg_class AS child ON child.oid = inhrelid
JOIN pg_class AS parent ON parent.oid = inhparent
JOIN pg_namespace ON pg_namespace.oid = parent.relnamespace
WHERE nspname = $1 AND parent.relname = $2
ORDER BY child.relname;

-- name: lock_partitions
-- Serialise the creation and removal of partitions, with a short lock timeout: all other transactions would wait
-- behind one that waits for a reader.
SELECT set_config('lock_timeout', '500ms', true), pg_advisory_xact_lock(hashtext('tenuto partitions'));
