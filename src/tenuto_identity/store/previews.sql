-- name: insert_preview
INSERT INTO previews (id, subject, has_definitions, requested_by, requested_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: begin_preview
-- A repeated attempt begins again: results of the lost one are dropped.
UPDATE previews SET state = 'running', steps = '[]', problem = NULL, sensitive_attributes = NULL WHERE id = $1 RETURNING id;

-- name: delete_results
WITH items AS (DELETE FROM preview_items WHERE preview_id = $1)
DELETE FROM preview_requests WHERE preview_id = $1;

-- name: store_sensitive
UPDATE previews SET sensitive_attributes = $2::text[] WHERE id = $1;

-- name: store_steps
UPDATE previews SET steps = $2::jsonb WHERE id = $1;

-- name: end_preview
UPDATE previews SET state = $2, problem = $3, ended_at = $4 WHERE id = $1;

-- name: list_previews
SELECT id, subject, state, steps, problem, requested_by, requested_at, ended_at, expires_at, has_definitions,
       sensitive_attributes
FROM previews
WHERE ($1::uuid IS NULL OR id < $1)
ORDER BY id DESC
LIMIT $2;

-- name: load_preview
SELECT id, subject, state, steps, problem, requested_by, requested_at, ended_at, expires_at, has_definitions,
       sensitive_attributes
FROM previews
WHERE id = $1;

-- name: list_items
SELECT number, step, object_id, metaverse_id, type, anchor, display, change, error, message, detail
FROM preview_items
WHERE preview_id = $1 AND number > $2 AND (NOT $3 OR error IS NOT NULL)
ORDER BY number
LIMIT $4;

-- name: list_requests
SELECT number, step, system, kind, type, anchor, address, changes
FROM preview_requests
WHERE preview_id = $1 AND number > $2 AND ($3::text IS NULL OR system = $3) AND ($5::text IS NULL OR kind = $5)
ORDER BY number
LIMIT $4;

-- name: count_requests
SELECT system, kind, count(*) AS request_count
FROM preview_requests
WHERE preview_id = $1
GROUP BY system, kind
ORDER BY system, kind;

-- name: list_copied_tables
-- Tables of identity synchronisation without partitions, and those of them that are partitioned.
SELECT c.relname AS name
FROM pg_class AS c
WHERE c.relnamespace = 'tenuto_identity'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
ORDER BY c.relname;

-- name: list_indexes
SELECT i.tablename AS table_name, i.indexdef AS definition
FROM pg_indexes AS i
JOIN pg_class AS c ON c.relname = i.tablename AND c.relnamespace = 'tenuto_identity'::regnamespace
WHERE i.schemaname = 'tenuto_identity' AND NOT c.relispartition
ORDER BY i.tablename, i.indexname;

-- name: list_sequences
-- Sequences, with the table whose identity column owns them. LIKE gives the same names to the sequences of the copy.
SELECT a.relname AS table_name, s.relname AS sequence_name
FROM pg_class AS s
LEFT JOIN pg_depend AS d ON d.objid = s.oid AND d.classid = 'pg_class'::regclass AND d.deptype = 'i'
LEFT JOIN pg_class AS a ON a.oid = d.refobjid
WHERE s.relkind = 'S' AND s.relnamespace = 'tenuto_identity'::regnamespace
ORDER BY s.relname;

-- name: set_sequence
SELECT setval($1::text::regclass, coalesce(pg_sequence_last_value($2::text::regclass), 1));

-- name: keep_items
WITH kept AS (
    INSERT INTO tenuto_identity.preview_items (preview_id, number, step, object_id, metaverse_id, type, anchor, display,
                                               change, error, message, detail)
    SELECT $1, $4 + row_number() OVER (ORDER BY number), $2, object_id, metaverse_id, type, anchor, display, change,
           error, message, detail
    FROM items
    WHERE run_id = $3
    RETURNING number
)
SELECT coalesce(max(number), $4::bigint) FROM kept;

-- name: may_create_schemas
SELECT has_database_privilege(current_database(), 'CREATE');

-- name: try_shared_schema
SELECT pg_try_advisory_lock(hashtext('tenuto_identity_preview_shared')::bigint);

-- name: release_shared_schema
SELECT pg_advisory_unlock(hashtext('tenuto_identity_preview_shared')::bigint);

-- name: list_scratch_tables
SELECT c.relname AS name
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind = 'r'
ORDER BY c.relname;

-- name: has_shared_copy
-- Tables of another owner are left to the previews of that login.
SELECT EXISTS (
    SELECT FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'tenuto_identity_preview_shared' AND c.relkind = 'r'
      AND pg_has_role(current_user, c.relowner, 'USAGE')
);

-- name: is_shared_schema_free
-- Keeps previews from taking the shared schema until the transaction ends.
SELECT pg_try_advisory_xact_lock(hashtext('tenuto_identity_preview_shared')::bigint);

-- name: fail_lost_previews
-- Previews whose task has ended without them: its worker was killed, or it was cancelled before it began.
UPDATE previews AS p SET state = 'failed', problem = 'the task ended before the preview did', ended_at = $1
WHERE p.state IN ('queued', 'running')
  -- guard: identity.preview_open_task
  AND NOT EXISTS (SELECT FROM tenuto.tasks AS t WHERE t.id = p.id);

-- name: list_abandoned_schemas
-- Scratch schemas of previews that have ended or do not exist any more.
SELECT n.nspname AS name
FROM pg_namespace AS n
WHERE starts_with(n.nspname, 'tenuto_identity_preview_') AND n.nspname <> 'tenuto_identity_preview_shared'
  AND pg_has_role(current_user, n.nspowner, 'USAGE')
  AND NOT EXISTS (
      SELECT FROM previews AS p
      WHERE p.state = 'running' AND 'tenuto_identity_preview_' || replace(p.id::text, '-', '') = n.nspname
  )
ORDER BY n.nspname
LIMIT 20;

-- name: has_abandoned_schemas
SELECT EXISTS (SELECT FROM previews WHERE expires_at <= $1)
    OR EXISTS (
        SELECT FROM previews AS p
        WHERE p.state IN ('queued', 'running') AND NOT EXISTS (SELECT FROM tenuto.tasks AS t WHERE t.id = p.id)
    )
    OR EXISTS (
        SELECT FROM pg_class AS c
        JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = 'tenuto_identity_preview_shared' AND c.relkind = 'r'
          AND pg_has_role(current_user, c.relowner, 'USAGE')
    )
    OR EXISTS (
        SELECT FROM pg_namespace AS n
        WHERE starts_with(n.nspname, 'tenuto_identity_preview_') AND n.nspname <> 'tenuto_identity_preview_shared'
          AND NOT EXISTS (
              SELECT FROM previews AS p
              WHERE p.state = 'running' AND 'tenuto_identity_preview_' || replace(p.id::text, '-', '') = n.nspname
          )
    );

-- name: delete_expired
DELETE FROM previews WHERE expires_at <= $1;

-- name: delete_begun
DELETE FROM previews WHERE state <> 'queued';

-- name: has_item_of
SELECT EXISTS (SELECT FROM preview_items WHERE metaverse_id = $1);
