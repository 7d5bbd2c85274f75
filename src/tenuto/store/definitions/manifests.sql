-- fragment: manifest
-- A manifest with its whole definition.
id, definition, enabled, version, origin, declared, created_at, updated_at,
last_successful_run AS last_successful_run_at, last_run_at, next_run_at

-- name: load_definition
-- Return a manifest by external id.
SELECT {manifest}
FROM tenuto.manifests
WHERE external_id = $1;

-- name: lock_definition
-- Return and lock a manifest by external id.
SELECT {manifest}
FROM tenuto.manifests
WHERE external_id = $1
FOR UPDATE;

-- name: list_manifests
-- Return manifests by external id, after a cursor, each with the number of its open tasks.
SELECT manifest.*,
       (SELECT count(*) FROM (
            SELECT FROM tenuto.tasks WHERE tasks.manifest_id = manifest.id LIMIT 10001
        ) AS few) AS open_task_count,
       EXISTS (SELECT FROM tenuto.dead_letters
               WHERE dead_letters.manifest_id = manifest.id AND status = 'awaiting_intervention') AS has_dead_letters
FROM (
    SELECT id, external_id, name, enabled, definition, job, schedule_type, depends_on, group_name AS "group", max_active,
           version, origin, created_at, updated_at, last_successful_run AS last_successful_run_at, last_run_at,
           next_run_at
    FROM tenuto.manifests
    WHERE ($1::text IS NULL OR external_id > $1)
      AND ($2::boolean IS NULL OR enabled = $2)
      AND ($3::text IS NULL OR group_name = $3)
      AND ($4::text IS NULL OR strpos(lower(external_id), lower($4)) > 0 OR strpos(lower(name), lower($4)) > 0)
    ORDER BY external_id
    LIMIT $5
) AS manifest
ORDER BY manifest.external_id;

-- name: list_external_ids
-- Return external ids, to suggest one for an unknown one.
SELECT external_id
FROM tenuto.manifests
ORDER BY external_id
LIMIT 10000;

-- name: load_definitions
-- Return the manifests with these external ids.
SELECT {manifest}
FROM tenuto.manifests
WHERE external_id = ANY ($1::text[])
ORDER BY id
LIMIT cardinality($1::text[]);

-- name: lock_definitions
-- Return and lock the manifests with these external ids, in a fixed order, so that two transactions cannot deadlock.
SELECT {manifest}
FROM tenuto.manifests
WHERE external_id = ANY ($1::text[])
ORDER BY id
LIMIT cardinality($1::text[])
FOR UPDATE;

-- name: list_others_from_files
-- Return manifests declared by a file, except those with these external ids.
SELECT {manifest}
FROM tenuto.manifests
WHERE origin = 'file' AND external_id <> ALL ($1::text[])
ORDER BY external_id
LIMIT $2;

-- name: prevent_deletion_by_external_id
-- Prevent the deletion of a manifest until the transaction ends. Does not block transactions that end its runs.
SELECT id
FROM tenuto.manifests
WHERE external_id = $1
FOR KEY SHARE;

-- name: prevent_deletion
-- Like prevent_deletion_by_external_id, by id.
SELECT id
FROM tenuto.manifests
WHERE id = $1
FOR KEY SHARE;

-- name: lock_manifests_and_dependents
-- Lock manifests whose runs end, and their dependents, by id and before their tasks.
SELECT id
FROM tenuto.manifests
WHERE id = ANY (ARRAY(
    SELECT id
    FROM tenuto.manifests
    WHERE id = ANY ($1::uuid[])
    UNION
    SELECT later.id
    FROM tenuto.manifests AS later
    WHERE later.depends_on IS NOT NULL
      AND later.depends_on = ANY (ARRAY(SELECT external_id FROM tenuto.manifests WHERE id = ANY ($1::uuid[])))
))
ORDER BY id
FOR NO KEY UPDATE;

-- name: lock_dependency_changes
-- Serialise changes of dependencies: two transactions could otherwise close a cycle through manifests that neither
-- changed.
-- guard: manifests.dependency_changes_take_turns
SELECT pg_advisory_xact_lock(hashtext('tenuto manifests run after others'));

-- name: list_dependencies
-- Return the dependency of each manifest.
SELECT external_id, depends_on
FROM tenuto.manifests
WHERE depends_on IS NOT NULL
ORDER BY external_id
LIMIT 1000000;

-- name: list_dependents
-- Return the manifests that depend on a manifest.
SELECT external_id
FROM tenuto.manifests
WHERE depends_on = $1
ORDER BY external_id
LIMIT 1000;

-- name: insert_definition
-- Insert a manifest, unless its external id exists.
INSERT INTO tenuto.manifests (
    id, enabled, planned, version, origin, declared, created_at, updated_at, next_run_at,
    external_id, name, definition, job, schedule_type, depends_on, group_name, max_active
)
VALUES ($1, $2, $2, 1, $3, $4, $5, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: update_definition
-- Replace the definition of a manifest.
UPDATE tenuto.manifests
SET enabled = $2,
    planned = $2,
    version = version + 1,
    origin = $3,
    declared = coalesce($4, declared),
    updated_at = $5,
    next_run_at = $6,
    external_id = $7,
    name = $8,
    definition = $9,
    job = $10,
    schedule_type = $11,
    depends_on = $12,
    group_name = $13,
    max_active = $14
WHERE id = $1
RETURNING version;

-- name: store_declaration
-- Store the declaration of code or file although the definition did not change.
UPDATE tenuto.manifests
SET declared = $2, origin = $3
WHERE id = $1;

-- name: delete_definition
-- Delete a manifest; its runs and versions stay.
DELETE FROM tenuto.manifests
WHERE id = $1;

-- name: insert_version
-- Record one change of a manifest: what, by whom and why.
INSERT INTO tenuto.manifest_versions (
    manifest_id, version, external_id, change, at, actor_type, actor_id, actor_name, reason, before, after
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: list_versions_by_key
-- Return the versions of a manifest, also of a deleted one, by external id, newest first.
SELECT manifest_id AS definition_id, version, external_id AS key, change, at, actor_type, actor_id, actor_name, reason, before, after
FROM tenuto.manifest_versions
WHERE external_id = $1
  AND ($3::timestamptz IS NULL OR (at, version) < ($3, $4::integer))
ORDER BY at DESC, version DESC
LIMIT $2;

-- name: list_versions_by_id
-- Return the versions of one manifest by id, newest first.
SELECT manifest_id AS definition_id, version, external_id AS key, change, at, actor_type, actor_id, actor_name, reason, before, after
FROM tenuto.manifest_versions
WHERE manifest_id = $1
  AND ($3::timestamptz IS NULL OR version < $4::integer)
ORDER BY version DESC
LIMIT $2;

-- name: has_open_tasks
-- Return whether a manifest has open tasks.
SELECT EXISTS (SELECT FROM tenuto.tasks WHERE manifest_id = $1) AS open;

-- name: lock_due_manifests
-- Return and lock due manifests with their group settings, longest overdue first, skipping those that another
-- manifest manager has locked and the manifests $3 while they have the versions $4.
SELECT id, version, external_id, definition AS definition_json, group_name AS "group", next_run_at,
       coalesce((SELECT NOT enabled FROM tenuto.manifest_groups WHERE manifest_groups.name = group_name), false)
           AS group_disabled,
       coalesce((SELECT priority FROM tenuto.manifest_groups WHERE manifest_groups.name = group_name), 0)
           AS group_priority
FROM tenuto.manifests
WHERE enabled AND next_run_at <= $1 AND (id, version) NOT IN (SELECT * FROM unnest($3::uuid[], $4::integer[]))
ORDER BY next_run_at, id
LIMIT $2
-- guard: manifests.skip_locked, manifests.row_lock
FOR UPDATE OF manifests SKIP LOCKED;

-- name: load_run_blockers
-- Return what may block a new run of these manifests. Run it under their lock.
SELECT wanted.id,
       (SELECT dead_letters.id FROM tenuto.dead_letters
        WHERE dead_letters.manifest_id = wanted.id AND item = '' AND status = 'awaiting_intervention') IS NOT NULL
           AS has_open_dead_letter,
       (SELECT tasks.id FROM tenuto.tasks
        WHERE tasks.manifest_id = wanted.id AND tasks.batch_id IS NULL AND tasks.item_key IS NULL
        LIMIT 1) AS open_task_id
FROM unnest($1::uuid[]) AS wanted (id);

-- name: record_runs
-- Store the last and next run of manifests that were enqueued or skipped.
UPDATE tenuto.manifests
SET last_run_at = coalesce(new.last_run_at, manifests.last_run_at),
    next_run_at = new.next_run_at,
    planned = true
FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[]) AS new (id, last_run_at, next_run_at)
WHERE manifests.id = ANY ($1::uuid[])
  AND manifests.id = new.id;

-- name: lock_unplanned_manifests
-- Return and lock enabled manifests without a next run, except the manifests $2 while they have the versions $3.
SELECT id, version, external_id, definition
FROM tenuto.manifests
WHERE enabled AND NOT planned AND (id, version) NOT IN (SELECT * FROM unnest($2::uuid[], $3::integer[]))
ORDER BY id
LIMIT $1
FOR UPDATE SKIP LOCKED;

-- name: load_next_due_at
-- Return when the next manifest is due, except the manifests $1 while they have the versions $2.
SELECT min(next_run_at)
FROM tenuto.manifests
WHERE enabled AND next_run_at IS NOT NULL AND (id, version) NOT IN (SELECT * FROM unnest($1::uuid[], $2::integer[]));

-- name: record_successes
-- Store the success of manifests and make their dependents due, also a dependent that has just succeeded itself.
WITH done AS MATERIALIZED (
    SELECT id, external_id
    FROM tenuto.manifests
    WHERE id = ANY ($1::uuid[])
), moved AS (
    UPDATE tenuto.manifests
    SET last_successful_run = CASE
            WHEN id = ANY ($1::uuid[]) THEN greatest(last_successful_run, $2) ELSE last_successful_run
        END,
        next_run_at = CASE WHEN id = ANY (due.ids) THEN coalesce(next_run_at, $2) ELSE next_run_at END,
        planned = planned OR id = ANY (due.ids)
    FROM (
        SELECT ARRAY(
            SELECT id
            FROM tenuto.manifests
            WHERE depends_on IS NOT NULL
              AND depends_on = ANY (ARRAY(SELECT external_id FROM done))
              AND schedule_type = 'dependent'
              AND enabled
        ) AS ids
    ) AS due
    WHERE id = ANY (ARRAY(
        SELECT id FROM done
        UNION
        SELECT id
        FROM tenuto.manifests
        WHERE depends_on IS NOT NULL AND depends_on = ANY (ARRAY(SELECT external_id FROM done))
    ))
    RETURNING id = ANY (due.ids) AS is_due
)
SELECT count(pg_notify('tenuto', 'manifests'))
FROM (SELECT FROM moved WHERE is_due LIMIT 1) AS event;

-- name: record_batch_item_successes
-- Store the time of the last success of batch items.
UPDATE tenuto.manifests
SET last_successful_run = greatest(last_successful_run, $2)
WHERE id = ANY ($1::uuid[])
  AND (last_successful_run IS NULL OR last_successful_run < $2);

-- name: find_overrun_runs
-- Return runs that ran far over their time limit and whose leases have expired.
SELECT {claimed_task}, claimed_at, cancel_name, cancel_type, cancel_id, NULL AS limit_slot,
       ran_over AS overran_time_limit
FROM tenuto.tasks
WHERE state = 'running'
  AND ran_over
  AND cancel_at IS NULL
  AND lease_until < clock_timestamp()
ORDER BY queue, id
LIMIT $1;

-- name: notify_run_enqueued
-- Notify workers of a new task with a limit key.
SELECT pg_notify('tenuto', concat_ws(' ', 'limited', $1::text, $2::integer));

-- name: list_groups
-- Return manifest groups after a name, or the named ones, with the number of active runs.
SELECT names.name, manifest_groups.max_active, coalesce(manifest_groups.priority, 0) AS priority,
       coalesce(manifest_groups.enabled, true) AS enabled, manifest_groups.changed_at, manifest_groups.changed_by,
       (SELECT count(*) FROM tenuto.manifests WHERE names.name = '*' OR group_name = names.name) AS manifest_count,
       (SELECT count(*) FROM tenuto.tasks
        WHERE state = 'running' AND NOT standby AND manifest_id IS NOT NULL
          AND (names.name = '*' OR limit_group = names.name)) AS active_count,
       manifest_groups.rate_limit
FROM (
    SELECT name FROM tenuto.manifest_groups
    UNION
    SELECT DISTINCT group_name FROM tenuto.manifests WHERE group_name IS NOT NULL
) AS names
LEFT JOIN tenuto.manifest_groups ON manifest_groups.name = names.name
WHERE ($1::text[] IS NULL OR names.name = ANY ($1))
  AND ($2::text IS NULL OR names.name > $2)
ORDER BY names.name
LIMIT $3;

-- name: save_group
-- Store the settings of a manifest group.
INSERT INTO tenuto.manifest_groups (name, max_active, priority, enabled, changed_at, changed_by, rate_limit)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (name) DO UPDATE
SET max_active = excluded.max_active,
    priority = excluded.priority,
    enabled = excluded.enabled,
    changed_at = excluded.changed_at,
    changed_by = excluded.changed_by,
    rate_limit = excluded.rate_limit;

-- name: release_parked_runs
-- Release the runs that are parked for a rate limit that has changed, at once; they wait again if there is no token.
UPDATE tenuto.rate_buckets
SET rate_limit = $2,
    next_at = least(next_at, clock_timestamp() + tenuto.rate_interval($2)),
    release_at = clock_timestamp()
WHERE scope = $1 AND rate_limit IS DISTINCT FROM $2;

-- name: load_group
-- Return the settings of a manifest group.
SELECT max_active, priority, enabled, rate_limit
FROM tenuto.manifest_groups
WHERE name = $1;

-- name: insert_poll
-- Record one poll of the manifest manager.
INSERT INTO tenuto.polls (id, at, by, seconds, enqueued, dead_lettered, timed_out, skipped, error)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT DO NOTHING;

-- name: list_polls
-- Return polls of the manifest manager, newest first.
SELECT id, at, by, seconds AS duration_seconds, enqueued AS enqueued_count, dead_lettered AS dead_lettered_count,
       timed_out AS timed_out_count, skipped, error
FROM tenuto.polls
WHERE ($1::uuid IS NULL OR id < $1)
  AND (NOT $2::boolean OR enqueued + dead_lettered + timed_out > 0 OR error IS NOT NULL OR skipped <> '{}')
ORDER BY id DESC
LIMIT $3;

-- name: delete_old_polls
-- Delete a small batch of the oldest polls.
DELETE FROM tenuto.polls
WHERE id = ANY (ARRAY(SELECT id FROM tenuto.polls WHERE id < $1 ORDER BY id LIMIT $2))
RETURNING id;

-- name: count_open_tasks
-- Count the open tasks of a manifest by state.
SELECT state, count(*) AS number
FROM tenuto.tasks
WHERE manifest_id = $1
GROUP BY state;

-- name: list_open_runs
-- Return some open runs of a manifest: running ones first, then by due time.
SELECT id, state, attempt, failures, losses, policy, run_at, claimed_at, created_at, batch_id, item_key, progress,
       (SELECT workers.name FROM tenuto.workers WHERE workers.id = worker_id) AS worker
FROM tenuto.tasks
WHERE manifest_id = $1
ORDER BY state = 'running' DESC, run_at, id
LIMIT $2;

-- name: list_last_attempts
-- Return the last attempts at runs of a manifest, without batch items, newest first.
SELECT id, task_id, attempt, final, status AS state, reason, started_at, ended_at, error, item_key
FROM tenuto.activities
WHERE manifest_id = $1
  AND batch_id IS NULL
ORDER BY id DESC
LIMIT $2;

-- name: list_recent_outcomes
-- Return the last ended runs of manifests, batch items included, found by the index of their activities.
SELECT lately.id, lately.manifest_id, lately.state, lately.started_at, lately.ended_at
FROM unnest($1::uuid[]) AS wanted (id)
CROSS JOIN LATERAL (
    SELECT id, manifest_id, status AS state, started_at, ended_at
    FROM tenuto.activities
    WHERE manifest_id = wanted.id AND final
    ORDER BY id DESC
    LIMIT $2
) AS lately
ORDER BY lately.manifest_id, lately.id;

-- name: count_open_dead_letters
-- Count the open dead letters of a manifest.
SELECT count(*)
FROM tenuto.dead_letters
WHERE manifest_id = $1 AND status = 'awaiting_intervention';
