-- name: lock_system
-- A run keeps the system from being deleted while it begins.
SELECT number, name, state, held
FROM systems
WHERE name = $1
FOR SHARE;

-- name: load_rules_version
SELECT rules_version FROM configuration;

-- name: find_open_run
-- The open run that a new one must wait for: of the system, or any sync for a sync. The row is not locked: its page may
-- hold the system, which the caller has locked.
SELECT r.id, r.task_id, r.fence, r.system_number, s.name AS system, r.profile, r.kind, r.rules_version, r.page, r.cursor,
       r.counts
FROM runs AS r
JOIN systems AS s ON s.number = r.system_number
WHERE r.state = 'running'
  AND (r.system_number = $1 OR ($2 IN ('full_sync', 'delta_sync') AND r.kind IN ('full_sync', 'delta_sync')))
ORDER BY r.id
LIMIT 1;

-- name: end_runs_of_earlier_attempts
-- A task with several runs may have opened one that none of its later attempts repeats.
UPDATE runs AS r SET state = 'lost', ended_at = $3
WHERE r.task_id = $1 AND r.fence < $2 AND r.state = 'running'
RETURNING r.id, r.task_id, r.fence, r.system_number,
          coalesce((SELECT s.name FROM systems AS s WHERE s.number = r.system_number), '(no system)') AS system,
          r.profile, r.kind, r.rules_version, r.page, r.cursor, r.counts;

-- name: list_open_runs
SELECT r.id, r.task_id, s.name AS system, r.profile
FROM runs AS r
JOIN systems AS s ON s.number = r.system_number
WHERE r.state = 'running'
ORDER BY r.id
LIMIT 1000;

-- name: end_abandoned_runs
-- A locked run is ended later: another service ends it, or its worker continues within a page although its task has ended.
UPDATE runs
SET state = 'lost', problem = format('the task %s ended before the run did', task_id), ended_at = $2
WHERE id IN (SELECT id FROM runs WHERE id = ANY ($1::uuid[]) AND state = 'running' ORDER BY id FOR UPDATE SKIP LOCKED)
RETURNING id;

-- name: insert_run
INSERT INTO runs (id, task_id, fence, system_number, profile, kind, rules_version, cursor, counts, started_at,
                  initiator_type, initiator_id, initiator_name, previewed)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9::jsonb, $10, $11, $12, $13, $14)
ON CONFLICT (id) DO UPDATE SET fence = excluded.fence
    WHERE runs.task_id = excluded.task_id AND runs.fence < excluded.fence AND runs.state = 'running'
RETURNING id;

-- name: insert_ended_run
INSERT INTO runs (id, task_id, fence, system_number, profile, kind, rules_version, cursor, counts, started_at,
                  initiator_type, initiator_id, initiator_name, previewed, state, ended_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9::jsonb, $10, $11, $12, $13, $14, 'completed', $10);

-- name: begin_page
-- Every page transaction begins with it: only the attempt with the current fence may write, and each page once.
UPDATE runs
SET page = greatest(page, $3)
FROM (SELECT page AS written FROM runs WHERE id = $1 FOR UPDATE) AS before
WHERE id = $1
  AND fence = $2 -- guard: identity.run_fence
  AND state = 'running' -- guard: identity.page_of_ended_run
RETURNING before.written < $3 AS is_first;

-- name: store_progress
UPDATE runs SET cursor = coalesce($2, cursor), counts = $3::jsonb WHERE id = $1;

-- name: end_run
UPDATE runs
SET state = $3, problem = $4, counts = $5::jsonb, ended_at = $6
WHERE id = $1 AND fence = $2 AND state = 'running'
RETURNING id;

-- name: load_watermark
SELECT value FROM watermarks WHERE system_number = $1 AND partition = $2;

-- name: store_watermark
INSERT INTO watermarks (system_number, partition, value, taken_at, run_id)
VALUES ($1, $2, $3::jsonb, $4, $5)
ON CONFLICT (system_number, partition) DO UPDATE
SET value = excluded.value, taken_at = excluded.taken_at, run_id = excluded.run_id;

-- name: hold_system
UPDATE systems SET held = $2::jsonb WHERE number = $1;

-- name: hold_system_if_free
-- What an import holds is not replaced.
UPDATE systems SET held = $2::jsonb
WHERE number = $1 AND (held IS NULL OR coalesce((held ->> 'deletes_only')::boolean, false));

-- name: clear_hold
UPDATE systems SET held = NULL WHERE number = $1 AND held IS NOT NULL RETURNING number;

-- name: clear_import_hold
-- Deletes that an export holds stay held, whatever an import finds.
UPDATE systems SET held = NULL
WHERE number = $1 AND held IS NOT NULL AND NOT coalesce((held ->> 'deletes_only')::boolean, false)
RETURNING number;

-- name: release_hold
-- A hold of another run was not approved.
UPDATE systems SET held = NULL WHERE number = $1 AND held ->> 'run' = $2::text RETURNING number;

-- name: adopt_held_deletions
-- What the held run found deleted is compared with the guards again, together with what a delta finds. An approved set
-- belongs to the task that applies the approval.
INSERT INTO pending_deletions (run_id, object_id)
SELECT $2, d.object_id
FROM systems AS s
JOIN pending_deletions AS d ON d.run_id = (s.held ->> 'run')::uuid
JOIN connector_objects AS o ON o.id = d.object_id AND o.state = 'normal'
WHERE s.number = $1 AND NOT coalesce((s.held ->> 'approved')::boolean, false)
ON CONFLICT DO NOTHING;

-- name: drop_adopted_deletions
DELETE FROM pending_deletions AS d
USING systems AS s
WHERE s.number = $1 AND d.run_id = (s.held ->> 'run')::uuid AND d.run_id <> $2
  AND NOT coalesce((s.held ->> 'approved')::boolean, false);

-- name: has_pending_clearings
SELECT EXISTS (SELECT FROM pending_clearings WHERE system_number = $1);

-- name: insert_pending_clearings
INSERT INTO pending_clearings (object_id, attribute, system_number, type_number)
SELECT u.object_id, u.attribute, $1, u.type_number
FROM unnest($2::bigint[], $3::text[], $4::smallint[]) AS u (object_id, attribute, type_number)
ON CONFLICT DO NOTHING;

-- name: delete_returned_clearings
DELETE FROM pending_clearings AS c
USING unnest($1::bigint[], $2::text[]) AS u (object_id, attribute)
WHERE c.object_id = u.object_id AND c.attribute = u.attribute;

-- name: delete_clearings_of_objects
DELETE FROM pending_clearings AS c
USING unnest($1::bigint[]) AS u (object_id)
WHERE c.object_id = u.object_id;

-- name: count_pending_clearings
SELECT c.type_number, c.attribute, count(*) AS object_count
FROM pending_clearings AS c
JOIN connector_objects AS o ON o.id = c.object_id AND o.state = 'normal'
WHERE c.system_number = $1
GROUP BY c.type_number, c.attribute
ORDER BY c.type_number, c.attribute;

-- name: drop_pending_clearings
DELETE FROM pending_clearings WHERE system_number = $1;

-- name: replace_pending_deletions
INSERT INTO pending_deletions (run_id, object_id)
SELECT $1, id FROM unnest($2::bigint[]) AS u (id)
ON CONFLICT DO NOTHING;

-- name: list_pending_deletions
SELECT d.object_id
FROM pending_deletions AS d
WHERE d.run_id = $1 AND d.object_id > $2
ORDER BY d.object_id
LIMIT $3;

-- name: delete_pending_deletions
DELETE FROM pending_deletions AS d
USING unnest($2::bigint[]) AS u (id)
WHERE d.run_id = $1 AND d.object_id = u.id;

-- name: count_pending_deletions
SELECT o.type_number, o.container, count(*) AS object_count
FROM pending_deletions AS d
JOIN connector_objects AS o ON o.id = d.object_id
WHERE d.run_id = $1
GROUP BY o.type_number, o.container
ORDER BY o.type_number, o.container;

-- name: count_expected_deletions
-- Pending deletions that Tenuto itself asked for: they are no reason to stop.
SELECT o.type_number, o.container, count(*) AS object_count
FROM pending_deletions AS d
JOIN connector_objects AS o ON o.id = d.object_id
JOIN pending_exports AS p ON p.object_id = d.object_id
WHERE d.run_id = $1 AND p.kind = 'delete' AND p.state = 'exported'
GROUP BY o.type_number, o.container
ORDER BY o.type_number, o.container;

-- name: delete_pending_deletions_of_seen
-- Objects that are back are no longer part of a held set.
DELETE FROM pending_deletions AS d
USING unnest($2::bigint[]) AS u (id), runs AS r
WHERE d.object_id = u.id AND r.id = d.run_id AND r.system_number = $1;

-- name: drop_pending_deletions_of_system
DELETE FROM pending_deletions AS d
USING runs AS r
WHERE r.id = d.run_id AND r.system_number = $1 AND d.run_id <> $2;

-- name: load_earlier_deletions
-- Counts of the attempts of a task that did not complete.
SELECT coalesce(r.counts -> 'deleted_identities', '{}') AS deleted, coalesce((r.counts ->> 'postponed')::integer, 0) AS postponed
FROM runs AS r
WHERE r.system_number = $1 AND r.task_id = $2 AND r.id <> $3 AND r.profile = $4 AND r.state IN ('lost', 'failed');

-- name: list_runs
SELECT r.id, r.task_id, s.name AS system, r.profile, r.kind, r.state, r.problem, r.page, r.counts, r.rules_version,
       r.started_at, r.ended_at, r.initiator_name
FROM runs AS r
JOIN systems AS s ON s.number = r.system_number
WHERE ($1::text IS NULL OR s.name = $1) AND ($2::uuid IS NULL OR r.id < $2)
  AND ($4::text IS NULL OR r.state = $4)
ORDER BY r.id DESC
LIMIT $3;

-- name: load_run
-- It may have outlived its system.
SELECT r.id, r.task_id, coalesce(s.name, '(no system)') AS system, r.profile, r.kind, r.state, r.problem, r.page, r.counts, r.rules_version,
       r.started_at, r.ended_at, r.initiator_name
FROM runs AS r
LEFT JOIN systems AS s ON s.number = r.system_number
WHERE r.id = $1;

-- name: delete_ended_runs
DELETE FROM runs
WHERE id IN (SELECT id FROM runs WHERE state <> 'running' AND ended_at < $1 ORDER BY id LIMIT $2)
RETURNING id;

-- name: list_grown_tables
-- Tables that have ten times the size of their last ANALYZE, and that this login may analyse, each with the columns that
-- statements compare. Documents take most of the time of an ANALYZE and no condition reads them. Partitions hold history;
-- the runs read it by key, and autovacuum analyses it.
SELECT quote_ident(c.relname) AS name, string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) AS columns
FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid <> 'jsonb'::regtype
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND NOT c.relispartition
  AND pg_relation_size(c.oid) > 10 * 8192::bigint * greatest(c.relpages, 1)
  AND pg_has_role(current_user, c.relowner, 'USAGE')
GROUP BY c.oid, c.relname
ORDER BY c.relname;
