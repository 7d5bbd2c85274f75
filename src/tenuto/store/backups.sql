-- name: load_server_facts
-- Return the major version of the server, and the schemas of Tenuto and its extensions.
SELECT current_setting('server_version_num')::integer / 10000 AS server_version,
       ARRAY(
           SELECT nspname::text
           FROM pg_namespace
           WHERE nspname = 'tenuto' OR nspname LIKE 'tenuto\_%'
           ORDER BY nspname
       ) AS schemas,
       to_regclass('tenuto.secrets') IS NOT NULL AS has_tables;

-- name: count_rows
-- Count what a backup contains; activities by the statistics of the server, because there may be many.
SELECT (SELECT count(*) FROM tenuto.tasks) AS task_count,
       (SELECT coalesce(sum(greatest(reltuples, 0)), 0)::bigint
        FROM pg_class
        JOIN pg_inherits ON pg_inherits.inhrelid = pg_class.oid
        WHERE pg_inherits.inhparent = 'tenuto.activities'::regclass) AS activity_count,
       (SELECT count(*) FROM tenuto.secrets) AS secret_count;

-- name: assign_transaction_id
-- Give the transaction an id, so that it counts as a change: the rows were loaded by another program.
SELECT pg_current_xact_id()::text;

-- name: list_live_processes
-- Return services that were seen within $1.
SELECT service || ' ' || name AS process
FROM tenuto.workers
WHERE ended_at IS NULL AND seen_at > clock_timestamp() - $1::interval
ORDER BY service, name
LIMIT 20;
