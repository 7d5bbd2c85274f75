-- name: named
-- One schedule, by its name.
SELECT *
FROM tenuto.schedules
WHERE name = $1;

-- name: named_any
-- Those of these names that there are.
SELECT *
FROM tenuto.schedules
WHERE name = ANY ($1::text[])
ORDER BY name
LIMIT cardinality($1::text[]);

-- name: lock_named_any
-- The same, held until the transaction ends; in one order, so that two who do so do not block each other.
SELECT *
FROM tenuto.schedules
WHERE name = ANY ($1::text[])
ORDER BY name
LIMIT cardinality($1::text[])
FOR UPDATE;

-- name: other_from_files
-- Schedules that a file has declared, but for those of these names.
SELECT *
FROM tenuto.schedules
WHERE origin = 'file' AND name <> ALL ($1::text[])
ORDER BY name
LIMIT $2;

-- name: lock_named
-- One schedule, held until the transaction ends: who fires, runs or changes it comes one at a time.
SELECT *
FROM tenuto.schedules
WHERE name = $1
FOR UPDATE;

-- name: lock_schedule
-- The same by id.
SELECT *
FROM tenuto.schedules
WHERE id = $1
FOR UPDATE;

-- name: list_schedules
-- Schedules by name, after a key, each with its last execution.
SELECT schedule.id, schedule.name, schedule.description, schedule.enabled, schedule.trigger, schedule.plan,
       schedule.overlap, schedule.misfire, schedule.version, schedule.origin, schedule.created_at,
       schedule.updated_at, schedule.last_run_at, schedule.next_run_at, schedule.planned,
       last.id AS last_execution_id, last.state AS last_state, last.started_at AS last_started_at,
       last.ended_at AS last_ended_at, last.current_group AS last_group, last.total_groups AS last_groups,
       last.failed_steps AS last_failed_steps, last.error AS last_error
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

-- name: lock_circles
-- Whoever makes a schedule that runs others waits for whoever is just doing the same.
SELECT pg_advisory_xact_lock(hashtext('tenuto circles'));

-- name: plans
-- What every schedule runs: for the search for circles.
SELECT name, plan
FROM tenuto.schedules
WHERE plan @? '$[*][*] ? (@.kind == "schedule")'
ORDER BY name
LIMIT 100000;

-- name: insert
-- A schedule comes to be, unless there is one of its name.
INSERT INTO tenuto.schedules (
    id, enabled, planned, version, origin, declared, created_at, updated_at, next_run_at,
    name, description, trigger, plan, overlap, misfire
)
VALUES ($1, $2, $2, 1, $3, $4, $5, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: change
-- A schedule as it is from now on.
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

-- name: declare
-- Remember what code or file said, though nothing has changed by it.
UPDATE tenuto.schedules
SET declared = $2, origin = $3
WHERE id = $1;

-- name: delete
-- The definition goes; its executions, its ledger and its versions stay.
DELETE FROM tenuto.schedules
WHERE id = $1;

-- name: record_version
-- What was changed, by whom and why.
INSERT INTO tenuto.schedule_versions (
    schedule_id, version, name, change, at, actor_type, actor_id, actor_name, reason, before, after
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: off_since
-- Of a schedule that is off: since when it has been so with its present trigger, and who switched it off. One that was made
-- switched off nobody has.
SELECT max(at) AS since,
       (array_agg(CASE WHEN change = 'disabled' THEN actor_name END ORDER BY version DESC)
        FILTER (WHERE change IN ('created', 'disabled')))[1] AS by
FROM tenuto.schedule_versions
WHERE schedule_id = $1
  AND (change IN ('created', 'disabled') OR before -> 'trigger' IS DISTINCT FROM after -> 'trigger');

-- name: last_named
-- The schedule that has a name, or had it last.
SELECT schedule_id
FROM tenuto.schedule_versions
WHERE name = $1
ORDER BY at DESC, version DESC
LIMIT 1;

-- name: versions
-- The changes of the schedules that have, or have had, a name, the newest first; a renamed one keeps its past.
SELECT schedule_id AS definition_id, version, name AS key, change, at, actor_type, actor_id, actor_name, reason, before, after
FROM tenuto.schedule_versions
WHERE schedule_id = ANY (ARRAY(SELECT DISTINCT schedule_id FROM tenuto.schedule_versions WHERE name = $1))
  AND ($3::timestamptz IS NULL OR (at, version) < ($3, $4::integer))
ORDER BY at DESC, version DESC
LIMIT $2;

-- name: versions_of
-- The changes of one schedule, the newest first.
SELECT schedule_id AS definition_id, version, name AS key, change, at, actor_type, actor_id, actor_name, reason, before, after
FROM tenuto.schedule_versions
WHERE schedule_id = $1
  AND ($3::timestamptz IS NULL OR version < $4::integer)
ORDER BY version DESC
LIMIT $2;

-- name: due
-- Schedules that are due and that nobody else is firing, the longest overdue first, held until the transaction ends.
-- Those $3 are left out while they are in their versions $4.
SELECT id, name, trigger, plan, overlap, misfire, version, next_run_at
FROM tenuto.schedules
WHERE enabled AND next_run_at <= $1 AND (id, version) NOT IN (SELECT * FROM unnest($3::uuid[], $4::integer[]))
ORDER BY next_run_at, id
LIMIT $2
FOR UPDATE SKIP LOCKED;

-- name: standing
-- What stands in the way of new runs of these schedules: the oldest active execution, whether one is queued, and up to
-- where due instants have been decided.
SELECT wanted.id,
       (SELECT executions.id FROM tenuto.executions
        WHERE executions.schedule_id = wanted.id AND executions.ended_at IS NULL
        ORDER BY executions.id
        LIMIT 1) AS active,
       EXISTS (SELECT FROM tenuto.occurrences
               WHERE occurrences.schedule_id = wanted.id AND decision = 'queued'
               OFFSET 0) AS queued,   -- looked up for each; see groups_that_ended
       (SELECT coalesce(until, due_at) FROM tenuto.occurrences
        WHERE occurrences.schedule_id = wanted.id AND origin = 'trigger'
        ORDER BY due_at DESC
        LIMIT 1) AS decided_until
FROM unnest($1::uuid[]) AS wanted (id);

-- name: active
-- The executions of a schedule that have not ended.
SELECT id
FROM tenuto.executions
WHERE schedule_id = $1 AND ended_at IS NULL
ORDER BY id;

-- name: fired
-- Schedules have been fired: when they last ran, and when they run next.
UPDATE tenuto.schedules
SET last_run_at = coalesce(new.last_run_at, schedules.last_run_at),
    next_run_at = new.next_run_at,
    planned = true
FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[]) AS new (id, last_run_at, next_run_at)
WHERE schedules.id = ANY ($1::uuid[])
  AND schedules.id = new.id;

-- name: ran
-- A schedule has been run by hand or in turn.
UPDATE tenuto.schedules
SET last_run_at = $2
WHERE id = $1;

-- name: write_ledger
-- One row for each due instant. The unique key is what makes a second decision on the same instant fail. The schedule $14,
-- if there is one, has been run by hand.
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

-- name: queued_behind
-- Runs of these schedules wait for those that are active, which learn of it in the order of all (see the lock of executions).
WITH held AS MATERIALIZED (
    SELECT id
    FROM tenuto.executions
    WHERE schedule_id = ANY ($1::uuid[]) AND ended_at IS NULL AND NOT awaited
    ORDER BY id
    FOR UPDATE
)
UPDATE tenuto.executions
SET awaited = true
FROM held
WHERE executions.id = held.id;

-- name: before_a_run
-- What stands in the way of a run of the schedule $1 by hand, and what was decided on the request $2 if it was made before.
SELECT before.id, before.schedule_id, before.schedule_name, before.decision, before.reason, before.execution_id,
       (SELECT executions.id FROM tenuto.executions
        WHERE executions.schedule_id = $1 AND executions.ended_at IS NULL
        ORDER BY executions.id
        LIMIT 1) AS active,
       EXISTS (SELECT FROM tenuto.occurrences
               WHERE occurrences.schedule_id = $1 AND occurrences.decision = 'queued'
               OFFSET 0) AS queued
FROM (VALUES (true)) AS request
LEFT JOIN tenuto.occurrences AS before ON before.id = $2;

-- name: known
-- Which of these names are names of schedules.
SELECT name
FROM tenuto.schedules
WHERE name = ANY ($1::text[]);

-- name: users_of
-- Schedules that run this one as a step.
SELECT name
FROM tenuto.schedules
WHERE plan @? '$[*][*] ? (@.kind == "schedule")'
  AND jsonb_path_exists(plan, '$[*][*] ? (@.kind == "schedule" && @.target == $target)', jsonb_build_object('target', $1::text))
ORDER BY name
LIMIT 20;

-- name: to_plan
-- Enabled schedules whose next run nobody has worked out yet, but for those $2 in their versions $3.
SELECT id, version, name, trigger
FROM tenuto.schedules
WHERE enabled AND NOT planned AND (id, version) NOT IN (SELECT * FROM unnest($2::uuid[], $3::integer[]))
ORDER BY id
LIMIT $1
FOR UPDATE SKIP LOCKED;

-- name: next_due
-- When the next schedule is due, but for those $1 in their versions $2.
SELECT min(next_run_at)
FROM tenuto.schedules
WHERE enabled AND next_run_at IS NOT NULL AND (id, version) NOT IN (SELECT * FROM unnest($1::uuid[], $2::integer[]));

-- name: queued
-- Runs whose turn has come: the first queued one of each schedule of which nothing is active any more. Schedules $2 are
-- left out while they are in their versions $3; one that is gone is in version 0.
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
    WHERE executions.schedule_id = waiting.schedule_id AND ended_at IS NULL
    OFFSET 0
)
ORDER BY schedule_id
LIMIT $1;

-- name: first_queued
-- The run of a schedule that has waited longest.
SELECT id, due_at, request
FROM tenuto.occurrences
WHERE schedule_id = $1 AND decision = 'queued'
ORDER BY due_at, id
LIMIT 1
FOR UPDATE;

-- name: take_turn
-- A queued run has been started.
UPDATE tenuto.occurrences
SET decision = 'fired', execution_id = $2, decided_at = $3, decided_by = $4
WHERE id = $1 AND decision = 'queued';

-- name: give_up_queued
-- What waited will not run: the schedule is gone or switched off.
UPDATE tenuto.occurrences
SET decision = 'missed', reason = $2, decided_at = $3, decided_by = $4
WHERE schedule_id = $1 AND decision = 'queued' AND ($5 OR origin = 'trigger')
RETURNING id;

-- name: give_up_unread
-- A request that nobody can read, and whose turn came by $5, will not run. Its turn comes when it is queued, or when the
-- last run before it has ended.
UPDATE tenuto.occurrences
SET decision = 'missed', reason = $2, decided_at = $3, decided_by = $4
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

-- name: ledger
-- What became of due instants, the newest first, below a key; every filter may be left out. Many schedules may be due at
-- one instant, so the key is instant and id.
SELECT id, schedule_id, schedule_name, due_at, until, origin, decision, turn, reason, execution_id, decided_at,
       decided_by
FROM tenuto.occurrences
WHERE ($1::uuid IS NULL OR schedule_id = $1)
  AND (due_at, id) < (coalesce($2::timestamptz, 'infinity'), coalesce($5::uuid, '00000000-0000-0000-0000-000000000000'))
  AND ($3::text IS NULL OR decision = $3)
ORDER BY due_at DESC, id DESC
LIMIT $4;

-- name: forget_ledger
-- A small batch of the ledger's oldest rows.
DELETE FROM tenuto.occurrences
WHERE id = ANY (ARRAY(
    SELECT id
    FROM tenuto.occurrences
    WHERE decided_at < $1 AND decision <> 'queued'
    ORDER BY decided_at
    LIMIT $2
))
RETURNING id;

-- name: typical_durations
-- How long the last runs of each schedule took.
SELECT schedule_name, percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM ended_at - started_at)) AS seconds
FROM (
    SELECT schedule_name, started_at, ended_at,
           row_number() OVER (PARTITION BY schedule_id ORDER BY id DESC) AS place
    FROM tenuto.executions
    WHERE ended_at IS NOT NULL AND state <> 'cancelled' AND ended_at > $1
) AS lately
WHERE place <= 20
GROUP BY schedule_name
ORDER BY schedule_name;
