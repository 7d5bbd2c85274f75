-- name: named
-- One manifest, by its external id.
SELECT *
FROM tenuto.manifests
WHERE external_id = $1;

-- name: lock_named
-- One manifest, held until the transaction ends.
SELECT *
FROM tenuto.manifests
WHERE external_id = $1
FOR UPDATE;

-- name: list_manifests
-- Manifests by external id, after a key, each with what is open of it.
SELECT manifest.*,
       (SELECT count(*) FROM (
            SELECT FROM tenuto.tasks WHERE tasks.manifest_id = manifest.id LIMIT 10001
        ) AS few) AS open_tasks,
       EXISTS (SELECT FROM tenuto.dead_letters
               WHERE dead_letters.manifest_id = manifest.id AND status = 'awaiting_intervention') AS has_dead_letters
FROM (
    SELECT id, external_id, name, enabled, definition, job, schedule_type, depends_on, group_name, max_active, version,
           origin, created_at, updated_at, last_successful_run, last_run_at, next_run_at
    FROM tenuto.manifests
    WHERE ($1::text IS NULL OR external_id > $1)
      AND ($2::boolean IS NULL OR enabled = $2)
      AND ($3::text IS NULL OR group_name = $3)
      AND ($4::text IS NULL OR strpos(lower(external_id), lower($4)) > 0 OR strpos(lower(name), lower($4)) > 0)
    ORDER BY external_id
    LIMIT $5
) AS manifest
ORDER BY manifest.external_id;

-- name: named_any
-- Those of these external ids that there are.
SELECT *
FROM tenuto.manifests
WHERE external_id = ANY ($1::text[])
ORDER BY id
LIMIT cardinality($1::text[]);

-- name: lock_named_any
-- The same, held until the transaction ends; in one order, so that two who do so do not block each other.
SELECT *
FROM tenuto.manifests
WHERE external_id = ANY ($1::text[])
ORDER BY id
LIMIT cardinality($1::text[])
FOR UPDATE;

-- name: other_from_files
-- Manifests that a file has declared, but for those of these external ids.
SELECT *
FROM tenuto.manifests
WHERE origin = 'file' AND external_id <> ALL ($1::text[])
ORDER BY external_id
LIMIT $2;

-- name: keep_named
-- One manifest, kept from being deleted until the transaction ends. Who ends a run of it is not held up.
SELECT id
FROM tenuto.manifests
WHERE external_id = $1
FOR KEY SHARE;

-- name: keep
-- As keep_named, by its id.
SELECT id
FROM tenuto.manifests
WHERE id = $1
FOR KEY SHARE;

-- name: hold
-- Manifests of which a run ends, and those that run after them, held before their tasks and in the order of their ids.
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

-- name: one_change_of_order
-- Who runs after whom is changed by one at a time: a circle may close between manifests neither of two has touched.
SELECT pg_advisory_xact_lock(hashtext('tenuto manifests run after others'));

-- name: parents
-- Who runs after whom.
SELECT external_id, depends_on
FROM tenuto.manifests
WHERE depends_on IS NOT NULL
ORDER BY external_id
LIMIT 1000000;

-- name: dependents
-- The manifests that run after one.
SELECT external_id
FROM tenuto.manifests
WHERE depends_on = $1
ORDER BY external_id
LIMIT 1000;

-- name: insert
-- A manifest comes to be, unless there is one of its external id.
INSERT INTO tenuto.manifests (
    id, enabled, planned, version, origin, declared, created_at, updated_at, next_run_at,
    external_id, name, definition, job, schedule_type, depends_on, group_name, max_active
)
VALUES ($1, $2, $2, 1, $3, $4, $5, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: change
-- A manifest as it is from now on.
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

-- name: declare
-- Remember what code or file said, though nothing has changed by it.
UPDATE tenuto.manifests
SET declared = $2, origin = $3
WHERE id = $1;

-- name: delete
-- The definition goes; what it did stays.
DELETE FROM tenuto.manifests
WHERE id = $1;

-- name: record_version
-- What was changed, by whom and why.
INSERT INTO tenuto.manifest_versions (
    manifest_id, version, external_id, change, at, actor_type, actor_id, actor_name, reason, before, after
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: versions
-- The changes of a manifest, the newest first; a deleted one answers by its external id.
SELECT manifest_id AS definition_id, version, external_id AS key, change, at, actor_type, actor_id, actor_name, reason, before, after
FROM tenuto.manifest_versions
WHERE external_id = $1
  AND ($3::timestamptz IS NULL OR (at, version) < ($3, $4::integer))
ORDER BY at DESC, version DESC
LIMIT $2;

-- name: versions_of
-- The changes of the one manifest with this id, the newest first.
SELECT manifest_id AS definition_id, version, external_id AS key, change, at, actor_type, actor_id, actor_name, reason, before, after
FROM tenuto.manifest_versions
WHERE manifest_id = $1
  AND ($3::timestamptz IS NULL OR version < $4::integer)
ORDER BY version DESC
LIMIT $2;

-- name: has_open_tasks
-- Whether anything of a manifest is pending or running.
SELECT EXISTS (SELECT FROM tenuto.tasks WHERE manifest_id = $1) AS open;

-- name: due
-- Manifests that are due and that nobody else is looking at, the longest overdue first, held until the transaction ends,
-- with what its group says of each. Those $3 are left out while they are in their versions $4.
SELECT id, version, external_id, definition, group_name, next_run_at,
       coalesce((SELECT NOT enabled FROM tenuto.manifest_groups WHERE manifest_groups.name = group_name), false)
           AS group_disabled,
       coalesce((SELECT priority FROM tenuto.manifest_groups WHERE manifest_groups.name = group_name), 0)
           AS group_priority
FROM tenuto.manifests
WHERE enabled AND next_run_at <= $1 AND (id, version) NOT IN (SELECT * FROM unnest($3::uuid[], $4::integer[]))
ORDER BY next_run_at, id
LIMIT $2
FOR UPDATE OF manifests SKIP LOCKED;

-- name: standing
-- What stands in the way of a new run of these manifests. To be asked while they are held.
SELECT wanted.id,
       (SELECT dead_letters.id FROM tenuto.dead_letters
        WHERE dead_letters.manifest_id = wanted.id AND item = '' AND status = 'awaiting_intervention') IS NOT NULL
           AS dead_lettered,
       (SELECT tasks.id FROM tenuto.tasks
        WHERE tasks.manifest_id = wanted.id AND tasks.batch_id IS NULL AND tasks.item_key IS NULL
        LIMIT 1) AS open_task
FROM unnest($1::uuid[]) AS wanted (id);

-- name: ran
-- Manifests have been enqueued or passed over: when they last ran, and when they are due next.
UPDATE tenuto.manifests
SET last_run_at = coalesce(new.last_run_at, manifests.last_run_at),
    next_run_at = new.next_run_at,
    planned = true
FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[]) AS new (id, last_run_at, next_run_at)
WHERE manifests.id = ANY ($1::uuid[])
  AND manifests.id = new.id;

-- name: to_plan
-- Enabled manifests whose next run nobody has worked out yet, but for those $2 in their versions $3.
SELECT id, version, external_id, definition
FROM tenuto.manifests
WHERE enabled AND NOT planned AND (id, version) NOT IN (SELECT * FROM unnest($2::uuid[], $3::integer[]))
ORDER BY id
LIMIT $1
FOR UPDATE SKIP LOCKED;

-- name: next_due
-- When the next manifest is due, but for those $1 in their versions $2.
SELECT min(next_run_at)
FROM tenuto.manifests
WHERE enabled AND next_run_at IS NOT NULL AND (id, version) NOT IN (SELECT * FROM unnest($1::uuid[], $2::integer[]));

-- name: insert_runs
-- Runs of manifests become tasks; an item whose key has an open task already is left out of the answer.
WITH created AS (
    INSERT INTO tenuto.tasks (
        id, activity_id, state, queue, rank, run_at, kind, name, input, policy, created_at, limit_key, limit_max,
        initiator_type, initiator_id, initiator_name, correlation_id, tags, manifest_id, batch_id, item_key, limit_group
    )
    SELECT id, id, state, queue, rank, run_at, 'job', name, input, policy, created_at, limit_key, limit_max,
           initiator_type, initiator_id, initiator_name, correlation_id, tags::text[], manifest_id, batch_id, item_key,
           limit_group
    FROM unnest(
        $1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::timestamptz[], $6::text[], $7::jsonb[], $8::jsonb[],
        $9::timestamptz[], $10::text[], $11::integer[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[],
        $17::uuid[], $18::uuid[], $19::text[], $20::text[]
    ) AS new (
        id, state, queue, rank, run_at, name, input, policy, created_at, limit_key, limit_max, initiator_type,
        initiator_id, initiator_name, correlation_id, tags, manifest_id, batch_id, item_key, limit_group
    )
    -- sent again because no reply came, it may have been and gone
    WHERE (SELECT activities.id FROM tenuto.activities WHERE activities.id = new.id) IS NULL
    ON CONFLICT DO NOTHING
    RETURNING id, state, queue, rank, limit_key IS NOT NULL AS limited
), woken AS (
    SELECT pg_notify('tenuto', concat_ws(' ', CASE WHEN state = 'queued' AND limited THEN 'limited' ELSE state END, queue, rank))
    FROM (SELECT DISTINCT state, queue, rank, limited FROM created WHERE state <> 'waiting') AS words
)
SELECT id, (SELECT count(*) FROM woken) AS woken
FROM created;

-- name: succeeded
-- Manifests have succeeded; those that run after one of them are due, also one that has itself just succeeded.
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
FROM (SELECT FROM moved WHERE is_due LIMIT 1) AS word;

-- name: touch
-- Items of batches have succeeded lately.
UPDATE tenuto.manifests
SET last_successful_run = greatest(last_successful_run, $2)
WHERE id = ANY ($1::uuid[])
  AND (last_successful_run IS NULL OR last_successful_run < $2);

-- name: ran_over
-- Runs that their worker has let go because they ran far over their time limit, and that are nobody's by now.
SELECT id, activity_id, fence, worker_id, kind, name, input, policy, attempt, failures, losses, queue,
       -rank AS priority, run_at, initiator_type, initiator_id, initiator_name, correlation_id, tags, execution_id,
       manifest_id, batch_id, claimed_at, cancel_name, cancel_type, cancel_id, NULL AS seat, ran_over
FROM tenuto.tasks
WHERE state = 'running'
  AND ran_over
  AND cancel_at IS NULL
  AND lease_until < clock_timestamp()
ORDER BY queue, id
LIMIT $1;

-- name: wake_limited
-- Tell the workers that something with a limited key has come in.
SELECT pg_notify('tenuto', concat_ws(' ', 'limited', $1::text, $2::integer));

-- name: list_groups
-- The groups of manifests after a name, or those named, with what is active of each.
SELECT names.name, manifest_groups.max_active, coalesce(manifest_groups.priority, 0) AS priority,
       coalesce(manifest_groups.enabled, true) AS enabled, manifest_groups.changed_at, manifest_groups.changed_by,
       (SELECT count(*) FROM tenuto.manifests WHERE names.name = '*' OR group_name = names.name) AS manifests,
       (SELECT count(*) FROM tenuto.tasks
        WHERE state = 'running' AND NOT standby AND manifest_id IS NOT NULL
          AND (names.name = '*' OR limit_group = names.name)) AS active
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

-- name: set_group
-- What holds for a group from now on.
INSERT INTO tenuto.manifest_groups (name, max_active, priority, enabled, changed_at, changed_by)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (name) DO UPDATE
SET max_active = excluded.max_active,
    priority = excluded.priority,
    enabled = excluded.enabled,
    changed_at = excluded.changed_at,
    changed_by = excluded.changed_by;

-- name: group
-- What holds for a group.
SELECT name, max_active, priority, enabled
FROM tenuto.manifest_groups
WHERE name = $1;

-- name: record_poll
-- What the manager did.
INSERT INTO tenuto.polls (id, at, by, seconds, enqueued, dead_lettered, timed_out, skipped, error)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT DO NOTHING;

-- name: polls
-- What the manager did, the newest first.
SELECT id, at, by, seconds, enqueued, dead_lettered, timed_out, skipped, error
FROM tenuto.polls
WHERE ($1::uuid IS NULL OR id < $1)
  AND (NOT $2::boolean OR enqueued + dead_lettered + timed_out > 0 OR error IS NOT NULL OR skipped <> '{}')
ORDER BY id DESC
LIMIT $3;

-- name: forget_polls
-- A small batch of the oldest polls.
DELETE FROM tenuto.polls
WHERE id = ANY (ARRAY(SELECT id FROM tenuto.polls WHERE id < $1 ORDER BY id LIMIT $2))
RETURNING id;

-- name: open_counts
-- How much is open of a manifest, by state.
SELECT state, count(*) AS number
FROM tenuto.tasks
WHERE manifest_id = $1
GROUP BY state;

-- name: open_runs
-- Some of what is open of a manifest: what runs first, then what is due first.
SELECT id, state, attempt, failures, losses, policy, run_at, claimed_at, created_at, batch_id, item_key, progress,
       (SELECT workers.name FROM tenuto.workers WHERE workers.id = worker_id) AS worker
FROM tenuto.tasks
WHERE manifest_id = $1
ORDER BY state = 'running' DESC, run_at, id
LIMIT $2;

-- name: last_runs
-- The last attempts at runs of a manifest, items of batches left out, the newest first.
SELECT id, task_id, attempt, final, status, reason, started_at, ended_at, error, item_key
FROM tenuto.activities
WHERE manifest_id = $1
  AND batch_id IS NULL
ORDER BY id DESC
LIMIT $2;

-- name: letters_of
-- How many dead letters of a manifest are open.
SELECT count(*)
FROM tenuto.dead_letters
WHERE manifest_id = $1 AND status = 'awaiting_intervention';
