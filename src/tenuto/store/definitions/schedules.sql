-- fragment: schedule
-- A schedule with its whole definition.
id, name, description, trigger, plan, overlap, misfire, enabled, version, origin, declared, created_at,
updated_at, last_run_at, next_run_at

-- name: load_definition
-- Return a schedule by name.
SELECT {schedule}
FROM tenuto.schedules
WHERE name = $1;

-- name: load_definitions
-- Return the schedules with these names.
SELECT {schedule}
FROM tenuto.schedules
WHERE name = ANY ($1::text[])
ORDER BY name
LIMIT cardinality($1::text[]);

-- name: lock_definitions
-- Return and lock the schedules with these names, in a fixed order, so that two transactions cannot deadlock.
SELECT {schedule}
FROM tenuto.schedules
WHERE name = ANY ($1::text[])
ORDER BY name
LIMIT cardinality($1::text[])
FOR UPDATE;

-- name: list_others_from_files
-- Return schedules declared by a file, except those with these names.
SELECT {schedule}
FROM tenuto.schedules
WHERE origin = 'file' AND name <> ALL ($1::text[])
ORDER BY name
LIMIT $2;

-- name: lock_definition
-- Return and lock a schedule by name: firing, running and changing it are serialised.
SELECT {schedule}
FROM tenuto.schedules
WHERE name = $1
-- guard: schedules.manual_runs_take_turns
FOR UPDATE;

-- name: lock_schedule_by_id
-- The same by id.
SELECT {schedule}
FROM tenuto.schedules
WHERE id = $1
-- guard: schedules.queued_runs_take_turns
FOR UPDATE;

-- name: list_schedules
-- Return schedules by name, after a cursor, each with its last execution.
SELECT schedule.id, schedule.name, schedule.description, schedule.enabled, schedule.trigger, schedule.overlap,
       schedule.misfire, schedule.version, schedule.origin, schedule.created_at,
       schedule.updated_at, schedule.last_run_at, schedule.next_run_at, schedule.planned,
       last.id AS last_execution_id, last.state AS last_state, last.started_at AS last_started_at,
       last.ended_at AS last_ended_at, last.current_group AS last_group, last.total_groups AS last_group_count,
       last.failed_steps AS last_failed_step_count, last.error AS last_error,
       jsonb_array_length(schedule.plan) AS group_count,
       (SELECT coalesce(sum(jsonb_array_length(steps)), 0)::integer FROM jsonb_array_elements(schedule.plan) AS steps) AS step_count
FROM (
    SELECT *
    FROM tenuto.schedules
    WHERE ($1::text IS NULL OR name > $1)
      AND ($2::boolean IS NULL OR enabled = $2)
      AND ($3::text IS NULL OR strpos(lower(name), lower($3)) > 0)
    ORDER BY name
    LIMIT $4
) AS schedule
LEFT JOIN LATERAL (
    SELECT *
    FROM tenuto.executions
    WHERE schedule_id = schedule.id
    ORDER BY id DESC
    LIMIT 1
) AS last ON true
ORDER BY schedule.name;

-- name: lock_cycle_check
-- Serialise changes of schedules that run other schedules.
SELECT pg_advisory_xact_lock(hashtext('tenuto circles'));

-- name: list_plans_with_schedule_steps
-- Return the plans of all schedules with schedule steps, for the cycle check.
SELECT name, plan
FROM tenuto.schedules
WHERE plan @? '$[*][*] ? (@.kind == "schedule")'
ORDER BY name
LIMIT 100000;

-- name: insert_definition
-- Insert a schedule, unless its name exists.
INSERT INTO tenuto.schedules (
    id, enabled, planned, version, origin, declared, created_at, updated_at, next_run_at,
    name, description, trigger, plan, overlap, misfire
)
VALUES ($1, $2, $2, 1, $3, $4, $5, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: update_definition
-- Replace the definition of a schedule.
UPDATE tenuto.schedules
SET enabled = $2,
    planned = $2,
    version = version + 1,
    origin = $3,
    declared = coalesce($4, declared),
    updated_at = $5,
    next_run_at = $6,
    name = $7,
    description = $8,
    trigger = $9,
    plan = $10,
    overlap = $11,
    misfire = $12
WHERE id = $1
RETURNING version;

-- name: store_declaration
-- Store the declaration of code or file although the definition did not change.
UPDATE tenuto.schedules
SET declared = $2, origin = $3
WHERE id = $1;

-- name: delete_definition
-- Delete a schedule; its executions, ledger entries and versions stay.
DELETE FROM tenuto.schedules
WHERE id = $1;

-- name: insert_version
-- Record one change of a schedule: what, by whom and why.
INSERT INTO tenuto.schedule_versions (
    schedule_id, version, name, change, at, actor_type, actor_id, actor_name, reason, before, after
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: load_disabled_since
-- Return since when a disabled schedule has been disabled with its present trigger, and which actor disabled it; null
-- for a schedule that was created disabled.
SELECT max(at) AS since,
       (array_agg(CASE WHEN change = 'disabled' THEN actor_name END ORDER BY version DESC)
        FILTER (WHERE change IN ('created', 'disabled')))[1] AS by
FROM tenuto.schedule_versions
WHERE schedule_id = $1
  AND (change IN ('created', 'disabled') OR before -> 'trigger' IS DISTINCT FROM after -> 'trigger');

-- name: find_last_id_by_name
-- Return the schedule that has this name, or had it last.
SELECT schedule_id
FROM tenuto.schedule_versions
WHERE name = $1
ORDER BY at DESC, version DESC
LIMIT 1;

-- name: list_versions_by_key
-- Return the versions of schedules that have or had this name, newest first; a renamed schedule keeps its versions.
SELECT schedule_id AS definition_id, version, name AS key, change, at, actor_type, actor_id, actor_name, reason, before, after
FROM tenuto.schedule_versions
WHERE schedule_id = ANY (ARRAY(SELECT DISTINCT schedule_id FROM tenuto.schedule_versions WHERE name = $1))
  AND ($3::timestamptz IS NULL OR (at, version) < ($3, $4::integer))
ORDER BY at DESC, version DESC
LIMIT $2;

-- name: list_versions_by_id
-- Return the versions of one schedule, newest first.
SELECT schedule_id AS definition_id, version, name AS key, change, at, actor_type, actor_id, actor_name, reason, before, after
FROM tenuto.schedule_versions
WHERE schedule_id = $1
  AND ($3::timestamptz IS NULL OR version < $4::integer)
ORDER BY version DESC
LIMIT $2;

-- name: lock_due_schedules
-- Return and lock due schedules, longest overdue first, skipping those that another scheduler has locked and the
-- schedules $3 while they have the versions $4.
SELECT id, name, trigger AS trigger_json, plan AS plan_json, overlap, misfire AS misfire_json, version, next_run_at
FROM tenuto.schedules
WHERE enabled AND next_run_at <= $1 AND (id, version) NOT IN (SELECT * FROM unnest($3::uuid[], $4::integer[]))
ORDER BY next_run_at, id
LIMIT $2
-- guard: schedules.skip_locked, schedules.row_lock
FOR UPDATE SKIP LOCKED;

-- name: load_run_blockers
-- Return what may block a new run of these schedules: the oldest active execution, whether a run is queued, and the
-- last decided due instant.
SELECT wanted.id,
       (SELECT executions.id FROM tenuto.executions
        WHERE executions.schedule_id = wanted.id AND executions.ended_at IS NULL
          AND executions.origin <> 'backfill' -- guard: backfills.overlap_policy_ignores
        ORDER BY executions.id
        LIMIT 1) AS active,
       EXISTS (SELECT FROM tenuto.occurrences
               WHERE occurrences.schedule_id = wanted.id AND decision = 'queued'
               OFFSET 0) AS queued,   -- lookup per row; see list_finished_groups
       (SELECT coalesce(until, due_at) FROM tenuto.occurrences
        WHERE occurrences.schedule_id = wanted.id AND origin = 'trigger'
        ORDER BY due_at DESC
        LIMIT 1) AS decided_until
FROM unnest($1::uuid[]) AS wanted (id);

-- name: list_active_executions
-- Return the open executions of a schedule; those of backfills only if $2 is true.
SELECT id
FROM tenuto.executions
WHERE schedule_id = $1 AND ended_at IS NULL AND ($2::boolean OR origin <> 'backfill')
ORDER BY id;

-- name: record_firings
-- Store the last and next run of fired schedules.
UPDATE tenuto.schedules
SET last_run_at = coalesce(new.last_run_at, schedules.last_run_at),
    next_run_at = new.next_run_at,
    planned = true
FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[]) AS new (id, last_run_at, next_run_at)
WHERE schedules.id = ANY ($1::uuid[])
  AND schedules.id = new.id;

-- name: record_manual_run
-- Store the last run of a schedule that was started manually or from its queue.
UPDATE tenuto.schedules
SET last_run_at = $2
WHERE id = $1;

-- name: write_ledger_entries
-- Insert one ledger entry for each due instant. The unique key rejects a second decision for the same instant. Stores
-- the last run of the manually run schedule $14, if given.
WITH run AS (
    UPDATE tenuto.schedules
    SET last_run_at = $11
    WHERE id = $14::uuid
)
INSERT INTO tenuto.occurrences (
    id, schedule_id, schedule_name, due_at, until, origin, decision, turn, reason, execution_id, decided_at, decided_by,
    request
)
SELECT id, schedule_id, schedule_name, due_at, until, origin, decision, turn, reason, execution_id, $11, $12, request
FROM unnest(
    $1::uuid[], $2::uuid[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::text[], $7::text[], $8::text[],
    $9::text[], $10::uuid[], $13::jsonb[]
) AS new (
    id, schedule_id, schedule_name, due_at, until, origin, decision, turn, reason, execution_id, request
);

-- name: mark_active_executions_awaited
-- Mark the active executions of these schedules as awaited by a queued run, locked by id (see lock_executions).
WITH held AS MATERIALIZED (
    SELECT id
    FROM tenuto.executions
    -- guard: fast_advance.awaited_by_queued_run
    WHERE schedule_id = ANY ($1::uuid[]) AND ended_at IS NULL AND NOT awaited
    ORDER BY id
    FOR UPDATE
)
UPDATE tenuto.executions
SET awaited = true
FROM held
WHERE executions.id = held.id;

-- name: load_manual_run_state
-- Return what may block a manual run of schedule $1, and the earlier decision on the request $2, if there is one.
SELECT before.id, before.schedule_id, before.schedule_name, before.decision, before.reason, before.execution_id,
       (SELECT executions.id FROM tenuto.executions
        WHERE executions.schedule_id = $1 AND executions.ended_at IS NULL AND executions.origin <> 'backfill'
        ORDER BY executions.id
        LIMIT 1) AS active,
       EXISTS (SELECT FROM tenuto.occurrences
               WHERE occurrences.schedule_id = $1 AND occurrences.decision = 'queued'
               OFFSET 0) AS queued
FROM (VALUES (true)) AS request
LEFT JOIN tenuto.occurrences AS before ON before.id = $2;

-- name: list_instants_with_run
-- Return those of the due instants $2 of a schedule that have a run: fired, queued, or started by a backfill.
SELECT due_at
FROM tenuto.occurrences
WHERE schedule_id = $1
  AND due_at = ANY ($2::timestamptz[])
  AND origin IN ('trigger', 'backfill')
  AND decision IN ('fired', 'queued')
ORDER BY due_at;

-- name: find_existing_names
-- Return which of these names are names of schedules.
SELECT name
FROM tenuto.schedules
WHERE name = ANY ($1::text[]);

-- name: list_schedules_using
-- Return the schedules that run this one as a step.
SELECT name
FROM tenuto.schedules
WHERE plan @? '$[*][*] ? (@.kind == "schedule")'
  AND jsonb_path_exists(plan, '$[*][*] ? (@.kind == "schedule" && @.target == $target)', jsonb_build_object('target', $1::text))
ORDER BY name
LIMIT 20;

-- name: list_schedules_running_manifest
-- Return the schedules that run this manifest as a step.
SELECT name
FROM tenuto.schedules
WHERE plan @? '$[*][*] ? (@.kind == "manifest")'
  AND jsonb_path_exists(
      plan, '$[*][*] ? (@.kind == "manifest" && @.arguments.manifest == $manifest)', jsonb_build_object('manifest', $1::text)
  )
ORDER BY name
LIMIT 20;

-- name: lock_unplanned_schedules
-- Return and lock enabled schedules without a next run, except the schedules $2 while they have the versions $3.
SELECT id, version, name, trigger
FROM tenuto.schedules
WHERE enabled AND NOT planned AND (id, version) NOT IN (SELECT * FROM unnest($2::uuid[], $3::integer[]))
ORDER BY id
LIMIT $1
FOR UPDATE SKIP LOCKED;

-- name: load_next_due_at
-- Return when the next schedule is due, except the schedules $1 while they have the versions $2.
SELECT min(next_run_at)
FROM tenuto.schedules
WHERE enabled AND next_run_at IS NOT NULL AND (id, version) NOT IN (SELECT * FROM unnest($1::uuid[], $2::integer[]));

-- name: find_schedules_with_startable_run
-- Return schedules whose first queued run may start because no execution is active. Excludes the schedules $2 while
-- they have the versions $3; a deleted schedule has version 0.
SELECT schedule_id, schedule_name,
       coalesce((SELECT version FROM tenuto.schedules WHERE schedules.id = schedule_id), 0) AS version
FROM (
    SELECT schedule_id, min(schedule_name) AS schedule_name
    FROM tenuto.occurrences
    WHERE decision = 'queued'
      AND schedule_id <> ALL (ARRAY(
          SELECT left_out.id
          FROM unnest($2::uuid[], $3::integer[]) AS left_out (id, version)
          WHERE version = coalesce((SELECT schedules.version FROM tenuto.schedules WHERE schedules.id = left_out.id), 0)
      ))
    GROUP BY schedule_id
) AS waiting
WHERE NOT EXISTS (
    SELECT
    FROM tenuto.executions
    WHERE executions.schedule_id = waiting.schedule_id AND ended_at IS NULL AND executions.origin <> 'backfill'
    OFFSET 0
)
ORDER BY schedule_id
LIMIT $1;

-- name: load_first_queued_run
-- Return and lock the run of a schedule that has been queued longest.
SELECT id, due_at, request
FROM tenuto.occurrences
WHERE schedule_id = $1 AND decision = 'queued'
ORDER BY due_at, id
LIMIT 1
FOR UPDATE;

-- name: mark_queued_run_started
-- Record that a queued run was started.
UPDATE tenuto.occurrences
SET decision = 'fired', execution_id = $2, decided_at = $3, decided_by = $4
WHERE id = $1 AND decision = 'queued';

-- name: drop_queued_runs
-- Drop the queued runs of a schedule that was deleted or disabled.
UPDATE tenuto.occurrences
SET decision = 'missed', reason = $2, decided_at = $3, decided_by = $4,
    transaction_id = pg_current_xact_id()::text::bigint
WHERE schedule_id = $1 AND decision = 'queued' AND ($5 OR origin = 'trigger')
RETURNING id;

-- name: drop_unreadable_run
-- Drop a queued run whose request cannot be read, if its turn came before $5. A run's turn comes when it is queued,
-- or when the previous run ends.
UPDATE tenuto.occurrences
SET decision = 'missed', reason = $2, decided_at = $3, decided_by = $4,
    transaction_id = pg_current_xact_id()::text::bigint
WHERE id = $1
  AND decision = 'queued'
  AND decided_at <= $5
  AND NOT EXISTS (
      SELECT
      FROM tenuto.executions
      WHERE executions.schedule_id = occurrences.schedule_id AND executions.ended_at > $5
      OFFSET 0
  )
RETURNING id;

-- name: list_ledger_entries
-- Return ledger entries, newest first, below a cursor of instant and id (several schedules may be due at one
-- instant); every filter is optional.
SELECT id, schedule_id, schedule_name, due_at, until AS last_due_at, origin, decision, turn, reason, execution_id,
       decided_at, decided_by
FROM tenuto.occurrences
WHERE ($1::uuid IS NULL OR schedule_id = $1)
  AND (due_at, id) < (coalesce($2::timestamptz, 'infinity'), coalesce($5::uuid, '00000000-0000-0000-0000-000000000000'))
  AND ($3::text IS NULL OR decision = $3)
  AND (/* filter */ true)
ORDER BY due_at DESC, id DESC
LIMIT $4;

-- name: count_ledger_entries
-- Count ledger entries that meet a filter, up to a limit.
SELECT count(*) AS count
FROM (SELECT FROM tenuto.occurrences WHERE (/* filter */ true) LIMIT $1) AS found;

-- name: delete_old_ledger_entries
-- Delete a small batch of the oldest ledger entries.
DELETE FROM tenuto.occurrences
WHERE id = ANY (ARRAY(
    SELECT id
    FROM tenuto.occurrences
    WHERE decided_at < $1 AND decision <> 'queued'
    ORDER BY decided_at
    LIMIT $2
))
RETURNING id;

-- name: load_typical_durations
-- Return the typical duration of the last runs of each schedule, found by the index of its executions.
SELECT schedules.name AS schedule_name,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM lately.ended_at - lately.started_at)) AS seconds
FROM tenuto.schedules
CROSS JOIN LATERAL (
    SELECT started_at, ended_at
    FROM tenuto.executions
    WHERE schedule_id = schedules.id AND ended_at > $1 AND state <> 'cancelled'
    ORDER BY id DESC
    LIMIT 20
) AS lately
GROUP BY schedules.name
ORDER BY schedules.name;
