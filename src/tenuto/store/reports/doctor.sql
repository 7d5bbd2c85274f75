-- Each statement returns a few offending rows, and none if the rule holds. The statements run beside live work, so each
-- is a single statement with one snapshot.

-- name: server
-- Return the server version and the settings that affect durability.
SELECT current_setting('server_version') AS version,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       clock_timestamp() AS now;

-- name: set_small_work_memory
-- For the transaction: let sorts and row sets write temporary files early, to the tablespace of the tasks if allowed.
SELECT set_config('work_mem', '64kB', true),
       set_config('temp_tablespaces', coalesce((
           SELECT quote_ident(spcname)
           FROM pg_class
           JOIN pg_tablespace ON pg_tablespace.oid = pg_class.reltablespace
           WHERE pg_class.oid = to_regclass('tenuto.tasks') AND has_tablespace_privilege(pg_tablespace.oid, 'CREATE')
       ), ''), true);

-- name: write_temporary_file
-- Write about a megabyte to a temporary file. That needs no right, and changes nothing.
SELECT count(*)
FROM generate_series(1, 50000);

-- name: history_begins
-- Return the task from which on histories are checked: not older than $1, and followed by at most about $2 attempts.
SELECT greatest($1::uuid, (
    SELECT task_id
    FROM tenuto.activities
    WHERE attempt > 1
    ORDER BY task_id DESC
    OFFSET $2
    LIMIT 1
)) AS id;

-- name: triggers_missing
-- Triggers that protect activities, executions, the ledger, dead letters or the audit log from changes and are
-- missing or disabled.
WITH guarded AS (
    SELECT relation, trigger_name
    FROM (
        SELECT 'tenuto.activities'::regclass AS relation
        UNION ALL
        SELECT inhrelid::regclass
        FROM pg_inherits
        WHERE inhparent = 'tenuto.activities'::regclass
    ) AS activities
    CROSS JOIN unnest(ARRAY['activities_are_written_once', 'activities_are_not_emptied']) AS trigger_name
    UNION ALL
    VALUES ('tenuto.executions'::regclass, 'executions_end_once'),
           ('tenuto.occurrences'::regclass, 'occurrences_are_decided_once'),
           ('tenuto.dead_letters'::regclass, 'dead_letters_resolve_once'),
           ('tenuto.audit'::regclass, 'written_once'),
           ('tenuto.audit'::regclass, 'kept'),
           ('tenuto.audit_chain'::regclass, 'written_once'),
           ('tenuto.audit_chain'::regclass, 'kept')
)
SELECT (SELECT 'tenuto.' || relname FROM pg_class WHERE pg_class.oid = guarded.relation) AS relation,
       guarded.trigger_name,
       CASE WHEN found.oid IS NULL THEN 'missing' ELSE 'disabled' END AS problem
FROM guarded
LEFT JOIN pg_trigger AS found ON found.tgrelid = guarded.relation AND found.tgname = guarded.trigger_name
WHERE found.oid IS NULL OR found.tgenabled IN ('D', 'R')
ORDER BY 1, 2
LIMIT $1;

-- name: unique_keys_missing
-- Unique indexes that are missing, not unique or not valid.
SELECT wanted.key
FROM unnest(ARRAY[
    'tasks_one_per_key', 'workers_one_alive_per_name', 'executions_one_active', 'occurrences_once',
    'occurrences_backfilled_once', 'occurrences_one_queued', 'manifests_external_id_key', 'tasks_one_per_item', 'tasks_one_run_per_manifest',
    'dead_letters_one_open', 'dead_letters_once_per_task', 'batches_key_key'
]) AS wanted (key)
LEFT JOIN pg_class AS found ON found.relname = wanted.key AND found.relnamespace = 'tenuto'::regnamespace
LEFT JOIN pg_index ON pg_index.indexrelid = found.oid
WHERE (pg_index.indisunique AND pg_index.indisvalid) IS NOT TRUE
ORDER BY wanted.key
LIMIT $1;

-- name: constraints_missing
-- Constraints that are missing or not validated, and columns that allow null although they must not (actor, plan).
SELECT wanted.name AS name
FROM unnest(ARRAY[
    'tasks_running_means_held', 'tasks_first_attempt_is_the_task', 'tasks_limit_is_whole', 'tasks_step_is_whole',
    'executions_end_only_in_an_end', 'executions_groups_are_counted', 'occurrences_fired_means_run',
    'occurrences_queued_has_a_turn', 'dead_letters_resolved_is_whole'
]) AS wanted (name)
WHERE NOT EXISTS (
    SELECT
    FROM pg_constraint
    WHERE conname = wanted.name AND connamespace = 'tenuto'::regnamespace AND convalidated
)
UNION ALL
SELECT wanted.relation || '.' || wanted.name || ' NOT NULL'
FROM (
    VALUES ('executions', 'plan'), ('executions', 'initiator_name'), ('tasks', 'initiator_name'),
           ('activities', 'initiator_name'), ('schedule_versions', 'actor_name'), ('manifest_versions', 'actor_name'),
           ('audit', 'actor_name')
) AS wanted (relation, name)
WHERE NOT EXISTS (
    SELECT
    FROM pg_attribute
    WHERE attrelid = ('tenuto.' || wanted.relation)::regclass AND attname = wanted.name AND attnotnull
)
ORDER BY 1
LIMIT $1;

-- name: task_held_by_missing_worker
-- Running tasks whose worker is not registered, or ended longer than $1 ago.
SELECT task.id, task.name, task.worker_id, workers.name AS worker, workers.ended_at
FROM tenuto.tasks AS task
LEFT JOIN tenuto.workers ON workers.id = task.worker_id
WHERE task.state = 'running'
  AND (workers.id IS NULL OR workers.ended_at < clock_timestamp() - $1::interval)
ORDER BY task.id
LIMIT $2;

-- name: lease_expired
-- Running tasks whose lease expired longer than $1 ago and that were not recovered.
SELECT id, name, worker_id, lease_until,
       round(extract(epoch FROM clock_timestamp() - lease_until))::bigint AS seconds
FROM tenuto.tasks
WHERE state = 'running' AND lease_until < clock_timestamp() - $1::interval
ORDER BY lease_until, id
LIMIT $2;

-- name: attempt_missing
-- Recorded attempts without a recorded predecessor. The activity of a first attempt has the id of its task.
WITH later AS (
    SELECT task_id, name, attempt, lag(attempt) OVER (PARTITION BY task_id ORDER BY attempt) AS earlier
    FROM tenuto.activities
    WHERE attempt > 1 AND task_id > $1
)
SELECT task_id AS id, name, attempt
FROM later
WHERE attempt > coalesce(earlier, 1) + 1
   OR (earlier IS NULL AND NOT EXISTS (SELECT FROM tenuto.activities AS first WHERE first.id = later.task_id))
ORDER BY task_id, attempt
LIMIT $2;

-- name: attempt_missing_of_open_task
-- Open tasks whose previous attempt is not recorded.
SELECT task.id, task.name, task.attempt
FROM (
    SELECT id, name, attempt
    FROM tenuto.tasks
    WHERE attempt > 1
    ORDER BY activity_id DESC
    LIMIT $2
) AS task
WHERE task.id > $1
  AND NOT EXISTS (
      SELECT
      FROM tenuto.activities AS past
      WHERE past.task_id = task.id AND past.attempt > 1 AND past.attempt = task.attempt - 1
  )
  AND NOT (task.attempt = 2 AND EXISTS (SELECT FROM tenuto.activities AS first WHERE first.id = task.id))
ORDER BY task.id
LIMIT $3;

-- name: attempt_recorded_twice
-- Attempts with two activities.
SELECT task_id AS id, min(name) AS name, attempt, count(*) AS records
FROM tenuto.activities
WHERE attempt > 1 AND task_id > $1
GROUP BY task_id, attempt
HAVING count(*) > 1
ORDER BY task_id, attempt
LIMIT $2;

-- name: first_attempt_id_wrong
-- Among the $1 newest activities: first attempts without the id of their task, and later ones with it.
SELECT id, task_id, name, attempt
FROM (
    SELECT id, task_id, name, attempt
    FROM tenuto.activities
    ORDER BY id DESC
    LIMIT $1
) AS newest
WHERE (attempt = 1) <> (id = task_id)
ORDER BY id
LIMIT $2;

-- name: task_ended_twice
-- Tasks with several final attempts.
SELECT id, name, ends
FROM (
    SELECT later.task_id AS id,
           min(later.name) AS name,
           count(*) FILTER (WHERE later.final) + (
               SELECT count(*) FROM tenuto.activities AS first WHERE first.id = later.task_id AND first.final
           ) AS ends
    FROM tenuto.activities AS later
    WHERE later.attempt > 1 AND later.task_id > $1
    GROUP BY later.task_id
) AS counted
WHERE ends > 1
ORDER BY id
LIMIT $2;

-- name: attempt_after_success
-- Attempts after a completed one.
WITH later AS (
    SELECT task_id, name, attempt,
           lag(status LIKE 'completed%') OVER (PARTITION BY task_id ORDER BY attempt) AS done_before
    FROM tenuto.activities
    WHERE attempt > 1 AND task_id > $1
)
SELECT task_id AS id, name, attempt
FROM later
WHERE done_before
   OR (done_before IS NULL AND EXISTS (
       SELECT FROM tenuto.activities AS first WHERE first.id = later.task_id AND first.status LIKE 'completed%'
   ))
ORDER BY task_id, attempt
LIMIT $2;

-- name: fence_not_increased
-- Claimed attempts whose fence is not larger than that of the attempt before. (An unclaimed attempt keeps its fence.)
WITH later AS (
    SELECT task_id, name, attempt, fence, worker_id,
           coalesce(
               lag(fence) OVER (PARTITION BY task_id ORDER BY attempt),
               (SELECT first.fence FROM tenuto.activities AS first WHERE first.id = past.task_id)
           ) AS earlier
    FROM tenuto.activities AS past
    WHERE attempt > 1 AND task_id > $1
)
SELECT task_id AS id, name, attempt, fence, earlier
FROM later
WHERE worker_id IS NOT NULL AND fence <= earlier
ORDER BY task_id, attempt
LIMIT $2;

-- name: attempt_after_end
-- Attempts after a final one.
WITH later AS (
    SELECT task_id, name, attempt, lag(final) OVER (PARTITION BY task_id ORDER BY attempt) AS ended_before
    FROM tenuto.activities
    WHERE attempt > 1 AND task_id > $1
)
SELECT task_id AS id, name, attempt
FROM later
WHERE ended_before
   OR (ended_before IS NULL AND EXISTS (
       SELECT FROM tenuto.activities AS first WHERE first.id = later.task_id AND first.final
   ))
ORDER BY task_id, attempt
LIMIT $2;

-- name: task_open_and_ended
-- Open tasks that have ended, or whose current attempt is already recorded; among the $2 newest. (LIMIT 1 makes each
-- subquery an index lookup; otherwise the planner would read all activities.)
WITH open AS MATERIALIZED (
    SELECT id, activity_id, name, attempt
    FROM tenuto.tasks
    ORDER BY id DESC
    LIMIT $2
)
SELECT open.id, open.name, past.attempt
FROM open
CROSS JOIN LATERAL (SELECT attempt FROM tenuto.activities WHERE id = open.activity_id LIMIT 1) AS past
UNION
SELECT open.id, open.name, past.attempt
FROM open
CROSS JOIN LATERAL (SELECT attempt FROM tenuto.activities WHERE id = open.id AND final LIMIT 1) AS past
WHERE open.attempt > 1
UNION
SELECT past.task_id, task.name, past.attempt
FROM tenuto.activities AS past
CROSS JOIN LATERAL (SELECT name FROM tenuto.tasks WHERE id = past.task_id LIMIT 1) AS task
WHERE past.attempt > 1 AND past.task_id > $1 AND past.final
ORDER BY 1, 3
LIMIT $3;

-- name: task_lost
-- Tasks with a recorded retry that are neither open nor recorded further; among the $2 newest activities that are not
-- plain successes.
SELECT past.task_id AS id, past.name, past.attempt
FROM (
    SELECT task_id, name, attempt, final
    FROM tenuto.activities
    WHERE status <> 'completed' AND id > $1
    ORDER BY id DESC
    LIMIT $2
) AS past
WHERE NOT past.final
  AND past.task_id > $1
  AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = past.task_id)
  AND NOT EXISTS (
      SELECT
      FROM tenuto.activities AS next
      WHERE next.task_id = past.task_id AND next.attempt > 1 AND next.attempt > past.attempt
  )
ORDER BY past.task_id, past.attempt
LIMIT $3;

-- name: poison_task_open
-- Open tasks that have lost $1 workers or more; among the $2 newest later attempts.
SELECT id, name, losses, state
FROM (
    SELECT id, name, losses, state
    FROM tenuto.tasks
    WHERE attempt > 1
    ORDER BY activity_id DESC
    LIMIT $2
) AS task
WHERE losses >= $1
ORDER BY id
LIMIT $3;

-- name: key_limit_exceeded
-- Limit keys with more running tasks than allowed, counting live leases.
SELECT limit_key AS key, count(*) AS running, max(limit_max) AS allowed
FROM tenuto.tasks
WHERE state = 'running' AND NOT standby AND limit_key IS NOT NULL AND lease_until > clock_timestamp()
GROUP BY limit_key
HAVING count(*) > max(limit_max)
ORDER BY limit_key
LIMIT $1;

-- name: queue_limit_exceeded
-- Queues with more running tasks than allowed, counting live leases.
SELECT queues.name AS queue, count(*) AS running, queues.max_running AS allowed
FROM tenuto.queues
JOIN tenuto.tasks ON tasks.queue = queues.name
WHERE tasks.state = 'running' AND NOT tasks.standby AND tasks.lease_until > clock_timestamp()
  AND queues.max_running IS NOT NULL
GROUP BY queues.name
HAVING count(*) > queues.max_running
ORDER BY queues.name
LIMIT $1;

-- name: task_waits_beside_idle_worker
-- Queues whose first task has been queued for longer than $1 while a live worker of the queue that knows its job has
-- free slots; among the first $2 tasks of each queue. Paused queues, full queues and tasks with a limit key have a
-- reason to wait. Under load several tasks are first for a moment while a worker has free slots; only a task that is
-- still first when the query is repeated was left waiting.
WITH idle AS MATERIALIZED (
    SELECT workers.*
    FROM tenuto.workers
    WHERE workers.service = 'worker'
      AND workers.started_at < clock_timestamp() - $1::interval
      AND tenuto.process_state(workers) = 'alive'
      AND workers.slots > (SELECT count(*) FROM tenuto.tasks WHERE state = 'running' AND worker_id = workers.id)
), served AS (
    SELECT DISTINCT queue
    FROM idle, unnest(idle.queues) AS queue
)
SELECT served.queue, foremost.worker, foremost.id AS task,
       round(extract(epoch FROM clock_timestamp() - foremost.run_at))::bigint AS seconds
FROM served
LEFT JOIN tenuto.queues ON queues.name = served.queue
CROSS JOIN LATERAL (
    SELECT first_tasks.id, first_tasks.run_at, min(idle.name) AS worker
    FROM (
        SELECT id, run_at, rank, kind, tasks.name
        FROM tenuto.tasks
        WHERE state = 'queued' AND limit_key IS NULL AND tasks.queue = served.queue
        ORDER BY rank, run_at, id
        LIMIT $2::integer
    ) AS first_tasks
    JOIN tenuto.workers AS idle ON idle.id IN (SELECT id FROM idle)
        AND served.queue = ANY (idle.queues) AND tenuto.knows_handler(idle, first_tasks.kind, first_tasks.name)
    GROUP BY first_tasks.id, first_tasks.run_at, first_tasks.rank
    ORDER BY first_tasks.rank, first_tasks.run_at, first_tasks.id
    LIMIT 1
) AS foremost
WHERE queues.paused_at IS NULL
  AND foremost.run_at < clock_timestamp() - $1::interval
  AND (queues.max_running IS NULL OR queues.max_running > (
      SELECT count(*)
      FROM tenuto.tasks
      WHERE state = 'running' AND tasks.queue = served.queue AND lease_until > clock_timestamp()
  ))
ORDER BY served.queue
LIMIT $3;

-- name: task_overdue
-- Scheduled tasks that were due longer than $1 ago and were not promoted, and parked tasks that no token will release.
-- The scopes of parked tasks are found by a loose index scan.
WITH RECURSIVE scopes AS (
    SELECT (SELECT min(parked_for) FROM tenuto.tasks WHERE state = 'scheduled' AND parked_for IS NOT NULL) AS scope, 1 AS hops
    UNION ALL
    SELECT (SELECT min(parked_for) FROM tenuto.tasks
            WHERE state = 'scheduled' AND parked_for IS NOT NULL AND parked_for > scopes.scope),
           hops + 1
    FROM scopes
    WHERE scope IS NOT NULL AND hops < 10000
), overdue AS (
    (SELECT id, name, run_at
     FROM tenuto.tasks
     WHERE state = 'scheduled' AND parked_for IS NULL AND run_at < clock_timestamp() - $1::interval
     ORDER BY run_at
     LIMIT $2)
    UNION ALL
    (SELECT parked.id, parked.name, parked.run_at
     FROM scopes
     CROSS JOIN LATERAL (
         SELECT id, name, run_at
         FROM tenuto.tasks
         WHERE state = 'scheduled' AND parked_for = scopes.scope AND run_at < clock_timestamp() - $1::interval
         LIMIT $2
     ) AS parked
     WHERE NOT EXISTS (
         SELECT FROM tenuto.rate_buckets WHERE rate_buckets.scope = scopes.scope AND release_at IS NOT NULL
     )
     LIMIT $2)
)
SELECT id, name, run_at, round(extract(epoch FROM clock_timestamp() - run_at))::bigint AS seconds
FROM overdue
ORDER BY run_at
LIMIT $2;

-- name: execution_stuck
-- Open executions without progress: no task is left in the current group, or all of them wait without a reason; among
-- $1 open ones.
SELECT execution.id, execution.schedule_name AS name, execution.state, execution.current_group AS place
FROM (
    SELECT id, schedule_name, state, current_group, paused_at, step_dependencies
    FROM tenuto.executions
    WHERE ended_at IS NULL
    ORDER BY schedule_id, id
    LIMIT $1
) AS execution
WHERE NOT EXISTS (
    SELECT
    FROM tenuto.tasks
    WHERE tasks.execution_id = execution.id
      -- steps with edges may run before their group, and a failing execution waits for them
      AND (tasks.group_index = execution.current_group OR execution.step_dependencies = 'by_step')
      AND (tasks.state <> 'waiting' OR tasks.waits_for IS NOT NULL OR execution.paused_at IS NOT NULL)
)
ORDER BY execution.id
LIMIT $2;

-- name: step_before_its_group
-- Queued or running steps of another group than the current one, except of executions whose steps have edges, and steps
-- left in a finished group; among the steps of the newest executions $1.
SELECT step.id, step.name, step.state, step.group_index AS place, execution.current_group AS current
FROM (
    SELECT id, name, state, execution_id, group_index
    FROM tenuto.tasks
    WHERE execution_id IS NOT NULL
    ORDER BY execution_id DESC, group_index DESC
    LIMIT $1
) AS step
JOIN tenuto.executions AS execution ON execution.id = step.execution_id
WHERE execution.ended_at IS NULL
  AND step.group_index <> execution.current_group
  AND NOT (step.group_index > execution.current_group AND step.state = 'waiting')
  AND NOT (step.group_index > execution.current_group AND execution.step_dependencies IS NOT DISTINCT FROM 'by_step')
ORDER BY step.id
LIMIT $2;

-- name: step_started_too_early
-- Ended executions, the $2 newest since $1, with a step that was claimed before a step of an earlier group ended. A step
-- with edges waits for the steps that it needs, and not for their group.
SELECT execution.id, execution.schedule_name AS name, later.step_index AS step, later.group_index AS place,
       earlier.step_index AS earlier
FROM (
    SELECT id, schedule_name
    FROM tenuto.executions
    WHERE id > $1 AND ended_at IS NOT NULL AND step_dependencies IS DISTINCT FROM 'by_step'
    ORDER BY id DESC
    LIMIT $2
) AS execution
CROSS JOIN LATERAL (
    SELECT step_index, group_index, claimed_at
    FROM tenuto.activities AS past
    WHERE past.execution_id = execution.id AND past.claimed_at IS NOT NULL
    ORDER BY past.group_index
    LIMIT 1000
) AS later
CROSS JOIN LATERAL (
    SELECT past.step_index
    FROM tenuto.activities AS past
    WHERE past.execution_id = execution.id
      AND past.group_index = later.group_index - 1
      AND past.worker_id IS NOT NULL
      AND past.ended_at > later.claimed_at + interval '1 s'
    ORDER BY past.step_index
    LIMIT 1
) AS earlier
ORDER BY execution.id, later.step_index
LIMIT $3;

-- name: step_without_execution
-- Steps without an execution; among the steps of the newest executions $1.
SELECT step.id, step.name, step.execution_id
FROM (
    SELECT id, name, execution_id
    FROM tenuto.tasks
    WHERE execution_id IS NOT NULL
    ORDER BY execution_id DESC, group_index DESC
    LIMIT $1
) AS step
WHERE NOT EXISTS (SELECT FROM tenuto.executions WHERE executions.id = step.execution_id)
ORDER BY step.id
LIMIT $2;

-- name: step_after_execution_end
-- Open steps of ended executions; among the steps of the newest executions $1.
SELECT step.id, step.name, step.state, execution.id AS execution, execution.state AS ended
FROM (
    SELECT id, name, state, execution_id
    FROM tenuto.tasks
    WHERE execution_id IS NOT NULL
    ORDER BY execution_id DESC, group_index DESC
    LIMIT $1
) AS step
JOIN tenuto.executions AS execution ON execution.id = step.execution_id
WHERE execution.ended_at IS NOT NULL
ORDER BY step.id
LIMIT $2;

-- name: cancelled_step_not_stopping
-- Running steps of cancelled executions without a cancellation request.
SELECT step.id, step.name, step.state, execution.id AS execution
FROM tenuto.executions AS execution
JOIN tenuto.tasks AS step ON step.execution_id = execution.id
WHERE execution.ended_at IS NULL
  AND execution.state = 'cancelled'
  AND (step.state <> 'running' OR step.cancel_at IS NULL)
ORDER BY step.id
LIMIT $1;

-- name: step_end_not_recorded_once
-- Ended executions, the $2 newest since $1, with a step that has no final activity, or more than one.
SELECT execution.id, execution.schedule_name AS name, execution.steps, ended.records
FROM (
    SELECT id, schedule_name,
           CASE first_group
               WHEN 0 THEN total_steps
               ELSE (
                   SELECT sum(jsonb_array_length(listed.steps))
                   FROM jsonb_array_elements(plan) WITH ORDINALITY AS listed (steps, place)
                   WHERE listed.place > first_group
               )
           END AS steps
    FROM (
        SELECT *
        FROM tenuto.executions
        WHERE id > $1 AND ended_at IS NOT NULL
        ORDER BY id DESC
        LIMIT $2
    ) AS newest
) AS execution
CROSS JOIN LATERAL (
    SELECT count(*) AS records, count(DISTINCT past.step_index) AS steps
    FROM tenuto.activities AS past
    WHERE past.execution_id = execution.id AND past.final
) AS ended
WHERE ended.records <> execution.steps OR ended.steps <> execution.steps
ORDER BY execution.id
LIMIT $3;

-- name: plan_changed
-- Executions, the $2 newest since $1, whose plan does not have the number of steps they were started with.
SELECT newest.id, newest.schedule_name AS name, counted.groups, counted.steps, newest.total_groups, newest.total_steps
FROM (
    SELECT id, schedule_name, plan, total_groups, total_steps
    FROM tenuto.executions
    WHERE id > $1
    ORDER BY id DESC
    LIMIT $2
) AS newest
CROSS JOIN LATERAL (
    SELECT count(*) AS groups, coalesce(sum(jsonb_array_length(steps)), 0) AS steps
    FROM jsonb_array_elements(newest.plan) AS steps
) AS counted
WHERE counted.groups <> newest.total_groups OR counted.steps <> newest.total_steps
ORDER BY newest.id
LIMIT $3;

-- name: fired_without_execution
-- Fired occurrences within the last $1 without an execution; the $2 newest.
SELECT fired.schedule_name AS name, fired.due_at, fired.execution_id
FROM (
    SELECT schedule_name, due_at, execution_id
    FROM tenuto.occurrences
    WHERE decided_at > clock_timestamp() - $1::interval AND decision = 'fired'
    ORDER BY decided_at DESC
    LIMIT $2
) AS fired
WHERE NOT EXISTS (SELECT FROM tenuto.executions WHERE executions.id = fired.execution_id)
ORDER BY fired.due_at, fired.execution_id
LIMIT $3;

-- name: execution_without_occurrence
-- Executions started by a trigger or manually, the $3 newest since $1 and within the last $2, without a ledger entry.
SELECT run.id, run.schedule_name AS name, run.origin
FROM (
    SELECT id, schedule_id, schedule_name, origin, due_at
    FROM tenuto.executions
    WHERE id > $1 AND started_at > clock_timestamp() - $2::interval AND origin IN ('trigger', 'manual')
    ORDER BY id DESC
    LIMIT $3
) AS run
WHERE NOT EXISTS (
    SELECT
    FROM tenuto.occurrences
    WHERE occurrences.schedule_id = run.schedule_id
      AND occurrences.due_at = run.due_at
      AND occurrences.execution_id = run.id
)
ORDER BY run.id
LIMIT $4;

-- name: overlapping_executions
-- Schedules with more than one active run although their runs must not overlap.
SELECT min(schedule_name) AS name, count(*) AS running
FROM tenuto.executions
WHERE ended_at IS NULL AND alone
GROUP BY schedule_id
HAVING count(*) > 1
ORDER BY 1
LIMIT $1;

-- name: step_waits_for_ended_execution
-- Steps that wait for an execution that has ended or never existed.
SELECT step.id, step.name, step.waits_for
FROM tenuto.tasks AS step
WHERE step.waits_for IS NOT NULL
  AND NOT EXISTS (SELECT FROM tenuto.executions WHERE executions.id = step.waits_for AND executions.ended_at IS NULL)
ORDER BY step.id
LIMIT $1;

-- name: schedule_overdue
-- Schedules that were due longer than $1 ago and were not fired, although a live scheduler has been running as long.
SELECT schedule.name, alive.name AS scheduler,
       round(extract(epoch FROM clock_timestamp() - schedule.next_run_at))::bigint AS seconds
FROM tenuto.schedules AS schedule
CROSS JOIN (
    SELECT min(name) AS name
    FROM tenuto.workers
    WHERE service = 'scheduler'
      AND tenuto.process_state(workers) = 'alive'
      AND started_at < clock_timestamp() - $1::interval
) AS alive
WHERE schedule.enabled
  AND schedule.next_run_at < clock_timestamp() - $1::interval
  AND alive.name IS NOT NULL
ORDER BY schedule.next_run_at, schedule.name
LIMIT $2;

-- name: schedule_without_next_run
-- Enabled schedules without a next run, changed longer than $1 ago.
SELECT name
FROM tenuto.schedules
WHERE enabled AND NOT planned AND updated_at < clock_timestamp() - $1::interval
ORDER BY id
LIMIT $2;

-- name: queued_run_not_started
-- Runs queued longer than $1 ago although no execution of their schedule is active.
SELECT waiting.schedule_name AS name, waiting.due_at,
       round(extract(epoch FROM clock_timestamp() - waiting.decided_at))::bigint AS seconds
FROM tenuto.occurrences AS waiting
WHERE waiting.decision = 'queued'
  AND waiting.decided_at < clock_timestamp() - $1::interval
  AND NOT EXISTS (
      SELECT
      FROM tenuto.executions
      WHERE executions.schedule_id = waiting.schedule_id
        AND (executions.ended_at IS NULL OR executions.ended_at > clock_timestamp() - $1::interval)
  )
ORDER BY waiting.due_at, waiting.id
LIMIT $2;

-- name: dead_letter_missing
-- Final failures of manifests, the newest $2 since $1, without a dead letter of their task and without a later one of
-- the same item. Very recent failures are left out, because the repair may not have checked them.
SELECT failed.task_id AS id, failed.name, failed.ended_at
FROM (
    SELECT id, task_id, name, status, final, manifest_id, batch_id, item_key, ended_at
    FROM tenuto.activities
    WHERE status <> 'completed' AND id > $1
    ORDER BY id DESC
    LIMIT $2
) AS failed
WHERE failed.status = 'failed'
  AND failed.final
  AND failed.manifest_id IS NOT NULL
  AND failed.ended_at < clock_timestamp() - interval '2 minutes'
  AND NOT EXISTS (SELECT FROM tenuto.dead_letters WHERE dead_letters.task_id = failed.task_id)
  AND NOT EXISTS (
      SELECT
      FROM tenuto.dead_letters
      WHERE dead_letters.manifest_id = failed.manifest_id
        AND dead_letters.item =
            coalesce(failed.item_key, CASE WHEN failed.batch_id IS NULL THEN '' ELSE failed.task_id::text END)
        AND dead_letters.dead_lettered_at >= failed.ended_at
  )
ORDER BY failed.task_id
LIMIT $3;

-- name: manifest_cap_exceeded
-- Manifests, groups, and all manifests ('*') with more live leases than allowed.
WITH held AS MATERIALIZED (
    SELECT manifest_id, limit_group, count(*) AS active
    FROM tenuto.tasks
    WHERE state = 'running' AND NOT standby AND manifest_id IS NOT NULL AND lease_until > clock_timestamp()
    GROUP BY manifest_id, limit_group
)
SELECT caps.subject, caps.active, caps.allowed
FROM (
    SELECT 'manifest ' || manifests.external_id AS subject, sum(held.active) AS active, manifests.max_active AS allowed
    FROM held
    JOIN tenuto.manifests ON manifests.id = held.manifest_id
    GROUP BY manifests.id
    UNION ALL
    SELECT 'group ' || groups.name, sum(held.active), groups.max_active
    FROM held
    JOIN tenuto.manifest_groups AS groups ON groups.name = held.limit_group
    GROUP BY groups.name
    UNION ALL
    SELECT 'all manifests', sum(held.active), max(groups.max_active)
    FROM held
    JOIN tenuto.manifest_groups AS groups ON groups.name = '*'
) AS caps
WHERE caps.active > caps.allowed
ORDER BY caps.subject
LIMIT $1;

-- name: manifest_runs_overlap
-- Manifests with more than one open run outside batches.
SELECT coalesce(min(manifests.external_id), manifest_id::text) AS name, count(*) AS runs
FROM tenuto.tasks
LEFT JOIN tenuto.manifests ON manifests.id = tasks.manifest_id
WHERE tasks.manifest_id IS NOT NULL AND tasks.batch_id IS NULL AND tasks.item_key IS NULL
GROUP BY tasks.manifest_id
HAVING count(*) > 1
ORDER BY 1
LIMIT $1;

-- name: run_without_manifest
-- Open tasks of manifests that do not exist; among the $1 newest.
SELECT task.id, task.name, task.manifest_id
FROM (
    SELECT id, name, manifest_id
    FROM tenuto.tasks
    WHERE manifest_id IS NOT NULL
    ORDER BY id DESC
    LIMIT $1
) AS task
WHERE NOT EXISTS (SELECT FROM tenuto.manifests WHERE manifests.id = task.manifest_id)
ORDER BY task.id
LIMIT $2;

-- name: batch_counts_wrong
-- Batches, the 100 newest since $1, with items that are neither open nor recorded, or both.
SELECT sums.id, sums.name, sums.total, sums.open, sums.ended, sums.retried
FROM (
    SELECT batch.id, coalesce(batch.name, batch.external_id) AS name, batch.total,
           (SELECT count(*) FROM tenuto.tasks WHERE tasks.batch_id = batch.id) AS open,
           (SELECT count(*) FROM tenuto.activities WHERE activities.batch_id = batch.id AND final) AS ended,
           (SELECT count(*) FROM tenuto.dead_letters
            WHERE dead_letters.batch_id = batch.id AND dead_letters.status = 'retried') AS retried
    FROM (SELECT * FROM tenuto.batches WHERE id > $1 ORDER BY id DESC LIMIT 100) AS batch
) AS sums
WHERE sums.total <> sums.open + sums.ended - sums.retried
ORDER BY sums.id
LIMIT $2;

-- name: batch_change_incomplete
-- Waiting items of a batch that is not paused, or open items of a cancelled one: the operation was interrupted or is
-- in progress. Resuming and cancelling proceed by id, so an operation in progress has passed the first such item when
-- the query is repeated.
SELECT batch.id, coalesce(batch.name, batch.external_id) AS name,
       CASE WHEN batch.cancelled_at IS NULL THEN 'resume' ELSE 'cancel' END AS operation,
       (
           SELECT id
           FROM tenuto.tasks
           WHERE tasks.batch_id = batch.id AND tasks.state <> 'running'
             AND (batch.cancelled_at IS NOT NULL OR tasks.state = 'waiting')
           ORDER BY id
           LIMIT 1
       ) AS item
FROM (SELECT * FROM tenuto.batches WHERE paused_at IS NULL ORDER BY id DESC LIMIT 1000) AS batch
WHERE (batch.cancelled_at IS NULL
       AND EXISTS (SELECT FROM tenuto.tasks WHERE tasks.batch_id = batch.id AND tasks.state = 'waiting'))
   OR (batch.cancelled_at < clock_timestamp() - interval '1 minute'
       AND EXISTS (SELECT FROM tenuto.tasks WHERE tasks.batch_id = batch.id AND tasks.state <> 'running'))
ORDER BY batch.id
LIMIT $1;

-- name: manifest_without_next_run
-- Enabled manifests without a next run, changed longer than $1 ago.
SELECT external_id AS name
FROM tenuto.manifests
WHERE enabled AND NOT planned AND updated_at < clock_timestamp() - $1::interval
ORDER BY id
LIMIT $2;

-- name: long_transaction
-- Transactions that keep dead rows from being vacuumed: open for longer than $1, or prepared and not finished.
SELECT backend.pid::text AS client,
       coalesce(nullif(backend.application_name, ''), 'unnamed') || ', ' || backend.state AS state,
       round(extract(epoch FROM clock_timestamp() - backend.xact_start))::bigint AS seconds,
       'SELECT pg_terminate_backend(' || backend.pid || ')' AS command
FROM pg_stat_activity AS backend
WHERE backend.datname = current_database()
  AND backend.backend_type = 'client backend'
  AND backend.pid <> pg_backend_pid()
  AND backend.xact_start < clock_timestamp() - $1::interval
UNION ALL
SELECT quote_literal(gid), 'prepared transaction', round(extract(epoch FROM clock_timestamp() - prepared))::bigint,
       'ROLLBACK PREPARED ' || quote_literal(gid)
FROM pg_prepared_xacts
WHERE database = current_database() AND prepared < clock_timestamp() - $1::interval
ORDER BY 3 DESC, 1
LIMIT $2;

-- name: ledgers
-- The newest $2 ledger entries of $1 enabled schedules since their last change, to be compared with their triggers.
SELECT schedule.id AS schedule_id, schedule.name, schedule.trigger, schedule.next_run_at, ledger.instants,
       ledger.untils
FROM (
    SELECT id, name, trigger, next_run_at, updated_at
    FROM tenuto.schedules
    WHERE enabled AND planned
    ORDER BY next_run_at, id
    LIMIT $1
) AS schedule
CROSS JOIN LATERAL (
    SELECT array_agg(newest.due_at ORDER BY newest.due_at) AS instants,
           array_agg(newest.until ORDER BY newest.due_at) AS untils
    FROM (
        SELECT due_at, until
        FROM tenuto.occurrences
        WHERE occurrences.schedule_id = schedule.id AND origin = 'trigger' AND due_at > schedule.updated_at
        ORDER BY due_at DESC
        LIMIT $2
    ) AS newest
) AS ledger
WHERE ledger.instants IS NOT NULL
ORDER BY schedule.name;

-- name: enabled_schedules
-- Enabled schedules: $1 that have a time trigger and no next run, and $1 of the others, those due first.
(
    SELECT id, name, trigger, plan, overlap, misfire, next_run_at, planned
    FROM tenuto.schedules
    WHERE enabled AND next_run_at IS NULL AND trigger ->> 'kind' IS DISTINCT FROM 'manual'
    ORDER BY id
    LIMIT $1
)
UNION ALL
(
    SELECT id, name, trigger, plan, overlap, misfire, next_run_at, planned
    FROM tenuto.schedules
    WHERE enabled AND next_run_at IS NOT NULL
    ORDER BY next_run_at, id
    LIMIT $1
);

-- name: enabled_manifests
-- The same for manifests.
(
    SELECT id, external_id AS name, definition, next_run_at, planned
    FROM tenuto.manifests
    WHERE enabled AND next_run_at IS NULL AND schedule_type IN ('cron', 'interval')
    ORDER BY id
    LIMIT $1
)
UNION ALL
(
    SELECT id, external_id AS name, definition, next_run_at, planned
    FROM tenuto.manifests
    WHERE enabled AND next_run_at IS NOT NULL
    ORDER BY next_run_at, id
    LIMIT $1
);

-- name: queued_requests
-- Queued manual runs, $1 of them.
SELECT schedule_name AS name, due_at, request
FROM tenuto.occurrences
WHERE decision = 'queued' AND request IS NOT NULL
ORDER BY schedule_id, due_at, id
LIMIT $1;

-- name: texts
-- Stored texts that must not contain secrets: the $1 newest activities, open tasks, audit entries, executions,
-- definitions and log entries.
SELECT 'activity ' || id AS place, concat_ws(' ', input, output, error, log, progress) AS text
FROM (SELECT * FROM tenuto.activities ORDER BY id DESC LIMIT $1) AS newest
UNION ALL
SELECT 'task ' || id, concat_ws(' ', input, progress)
FROM (SELECT * FROM tenuto.tasks ORDER BY id DESC LIMIT $1) AS newest
UNION ALL
SELECT 'audit entry ' || id, concat_ws(' ', target, reason, before, after)
FROM (SELECT * FROM tenuto.audit ORDER BY id DESC LIMIT $1) AS newest
UNION ALL
SELECT 'execution ' || id, concat_ws(' ', plan, error)
FROM (SELECT * FROM tenuto.executions ORDER BY id DESC LIMIT $1) AS newest
UNION ALL
SELECT 'schedule ' || name, concat_ws(' ', plan, description)
FROM (SELECT * FROM tenuto.schedules ORDER BY id DESC LIMIT $1) AS newest
UNION ALL
SELECT 'manifest ' || external_id, definition::text
FROM (SELECT * FROM tenuto.manifests ORDER BY id DESC LIMIT $1) AS newest
UNION ALL
SELECT 'log ' || log, concat_ws(' ', message, fields)
FROM (SELECT * FROM tenuto.log_entries ORDER BY at DESC LIMIT $1) AS newest;
