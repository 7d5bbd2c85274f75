-- Each statement answers with what is wrong, a few rows of it, and with nothing if all is well. They run beside live
-- work, so each is one statement: one look, at one instant.

-- name: server
-- What the server is and how careful it is.
SELECT current_setting('server_version') AS version,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       clock_timestamp() AS now;

-- name: history_begins
-- From which task on its history is looked at: none older than $1, and no more than about $2 later attempts.
SELECT greatest($1::uuid, (
    SELECT task_id
    FROM tenuto.activities
    WHERE attempt > 1
    ORDER BY task_id DESC
    OFFSET $2
    LIMIT 1
)) AS id;

-- name: triggers_off
-- Where the past can be rewritten: a guard of activities, executions, the ledger, letters or the audit trail that is
-- missing or off.
WITH guarded AS (
    SELECT relation, guard
    FROM (
        SELECT 'tenuto.activities'::regclass AS relation
        UNION ALL
        SELECT inhrelid::regclass
        FROM pg_inherits
        WHERE inhparent = 'tenuto.activities'::regclass
    ) AS activities
    CROSS JOIN unnest(ARRAY['activities_are_written_once', 'activities_are_not_emptied']) AS guard
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
       guarded.guard,
       CASE WHEN found.oid IS NULL THEN 'missing' ELSE 'switched off' END AS how
FROM guarded
LEFT JOIN pg_trigger AS found ON found.tgrelid = guarded.relation AND found.tgname = guarded.guard
WHERE found.oid IS NULL OR found.tgenabled IN ('D', 'R')
ORDER BY 1, 2
LIMIT $1;

-- name: keys_missing
-- What must be there once is made so by a unique key: keys that are gone, not unique, or not valid.
SELECT wanted.key
FROM unnest(ARRAY[
    'tasks_one_per_key', 'workers_one_alive_per_name', 'executions_one_active', 'occurrences_once',
    'occurrences_one_queued', 'manifests_external_id_key', 'tasks_one_per_item', 'tasks_one_run_per_manifest',
    'dead_letters_one_open', 'dead_letters_once_per_task', 'batches_key_key'
]) AS wanted (key)
LEFT JOIN pg_class AS found ON found.relname = wanted.key AND found.relnamespace = 'tenuto'::regnamespace
LEFT JOIN pg_index ON pg_index.indexrelid = found.oid
WHERE (pg_index.indisunique AND pg_index.indisvalid) IS NOT TRUE
ORDER BY wanted.key
LIMIT $1;

-- name: constraints_missing
-- What a row must not contradict is refused by the database: conditions that are gone or were never checked, and columns
-- that may be empty though they must not be (who did it, the plan of a run).
SELECT wanted.name AS what
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

-- name: held_by_nobody
-- Held tasks whose holder is not in the register, or left it longer than $1 ago.
SELECT task.id, task.name, task.worker_id, workers.name AS worker, workers.ended_at
FROM tenuto.tasks AS task
LEFT JOIN tenuto.workers ON workers.id = task.worker_id
WHERE task.state = 'running'
  AND (workers.id IS NULL OR workers.ended_at < clock_timestamp() - $1::interval)
ORDER BY task.id
LIMIT $2;

-- name: lease_run_out
-- Held tasks whose lease ended longer than $1 ago and that nobody has taken back.
SELECT id, name, worker_id, lease_until,
       round(extract(epoch FROM clock_timestamp() - lease_until))::bigint AS seconds
FROM tenuto.tasks
WHERE state = 'running' AND lease_until < clock_timestamp() - $1::interval
ORDER BY lease_until, id
LIMIT $2;

-- name: attempt_missing
-- Recorded attempts whose predecessor is not recorded. The first attempt is the record that has the task's own id.
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

-- name: attempt_missing_before_open
-- Open tasks whose last attempt is not recorded.
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
-- One attempt, two records.
SELECT task_id AS id, min(name) AS name, attempt, count(*) AS records
FROM tenuto.activities
WHERE attempt > 1 AND task_id > $1
GROUP BY task_id, attempt
HAVING count(*) > 1
ORDER BY task_id, attempt
LIMIT $2;

-- name: first_attempt_misnamed
-- Among the $1 newest records: first attempts that do not have their task's id, and later ones that have it.
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

-- name: ended_twice
-- Tasks of which several attempts are marked as the last.
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

-- name: tried_after_success
-- Attempts recorded after one that had completed.
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

-- name: fence_not_grown
-- Attempts that somebody held under a fence no later than the one before had. (What nobody held keeps its fence.)
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

-- name: went_on_after_its_end
-- Attempts recorded after one that was marked as the last.
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

-- name: open_and_ended
-- Open tasks that have ended, or whose present attempt is recorded already. Of the open ones the $2 newest. (Each
-- LIMIT 1 makes it a look-up by index; the planner would read all activities instead.)
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

-- name: vanished
-- Tasks that were to be tried again and are neither open nor recorded any further. Of the records that are not plain
-- successes the $2 newest.
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

-- name: not_set_aside
-- Open tasks that have lost $1 workers or more, of the later attempts the $2 newest.
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

-- name: key_over_limit
-- Keys of which more tasks run than any of them allows, counting live leases.
SELECT limit_key AS key, count(*) AS running, max(limit_max) AS most
FROM tenuto.tasks
WHERE state = 'running' AND NOT standby AND limit_key IS NOT NULL AND lease_until > clock_timestamp()
GROUP BY limit_key
HAVING count(*) > max(limit_max)
ORDER BY limit_key
LIMIT $1;

-- name: queue_over_limit
-- Queues of which more tasks run than allowed, counting live leases.
SELECT queues.name AS queue, count(*) AS running, queues.max_running AS most
FROM tenuto.queues
JOIN tenuto.tasks ON tasks.queue = queues.name
WHERE tasks.state = 'running' AND NOT tasks.standby AND tasks.lease_until > clock_timestamp()
  AND queues.max_running IS NOT NULL
GROUP BY queues.name
HAVING count(*) > queues.max_running
ORDER BY queues.name
LIMIT $1;

-- name: queue_unserved
-- Queues with tasks free to take, and no worker that takes them: none that was heard of within $1. The queues are
-- found by hopping along the indexes, and counting stops at a thousand.
WITH RECURSIVE plain AS (
    SELECT min(queue) AS queue FROM tenuto.tasks WHERE state = 'queued' AND limit_key IS NULL
    UNION ALL
    SELECT (
        SELECT min(queue)
        FROM tenuto.tasks
        WHERE state = 'queued' AND limit_key IS NULL AND tasks.queue > plain.queue
    )
    FROM plain
    WHERE plain.queue IS NOT NULL
), limited AS (
    SELECT min(queue) AS queue FROM tenuto.tasks WHERE state = 'queued' AND limit_key IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(queue)
        FROM tenuto.tasks
        WHERE state = 'queued' AND limit_key IS NOT NULL AND tasks.queue > limited.queue
    )
    FROM limited
    WHERE limited.queue IS NOT NULL
)
SELECT found.queue, (
    SELECT CASE count(*) WHEN 1000 THEN '1000 or more' ELSE count(*)::text END
    FROM (SELECT FROM tenuto.tasks WHERE state = 'queued' AND tasks.queue = found.queue LIMIT 1000) AS counted
) AS queued
FROM (SELECT queue FROM plain UNION SELECT queue FROM limited) AS found
WHERE found.queue IS NOT NULL
  AND NOT EXISTS (
      SELECT
      FROM tenuto.workers
      WHERE workers.service = 'worker'
        AND workers.ended_at IS NULL
        AND workers.seen_at > clock_timestamp() - $1::interval
        AND found.queue = ANY (workers.queues)
  )
ORDER BY found.queue
LIMIT $2;

-- name: waiting_beside_idle_workers
-- Queues whose foremost task, the next to be taken, has been free to take for longer than $1 while a worker of that queue,
-- heard of within $2, has slots to spare. Paused queues, full ones and tasks with a limited key have a reason to wait.
-- Under load each of several tasks is foremost for a moment, and a worker has slots to spare for a moment: only what is
-- still foremost when this is asked again has been left lying.
WITH idle AS (
    SELECT workers.name, workers.queues, workers.slots
    FROM tenuto.workers
    WHERE workers.service = 'worker'
      AND workers.ended_at IS NULL
      AND workers.draining_at IS NULL
      AND workers.started_at < clock_timestamp() - $1::interval
      AND workers.seen_at > clock_timestamp() - $2::interval
      AND workers.slots > (SELECT count(*) FROM tenuto.tasks WHERE state = 'running' AND worker_id = workers.id)
), served AS (
    SELECT queue, min(idle.name) AS worker
    FROM idle, unnest(idle.queues) AS queue
    GROUP BY queue
)
SELECT served.queue, served.worker, foremost.id AS task,
       round(extract(epoch FROM clock_timestamp() - foremost.run_at))::bigint AS seconds
FROM served
LEFT JOIN tenuto.queues ON queues.name = served.queue
CROSS JOIN LATERAL (
    SELECT id, run_at
    FROM tenuto.tasks
    WHERE state = 'queued' AND limit_key IS NULL AND tasks.queue = served.queue
    ORDER BY rank, run_at, id
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

-- name: overdue
-- Scheduled tasks that fell due longer than $1 ago and were not made free to take.
SELECT id, name, run_at, round(extract(epoch FROM clock_timestamp() - run_at))::bigint AS seconds
FROM tenuto.tasks
WHERE state = 'scheduled' AND run_at < clock_timestamp() - $1::interval
ORDER BY run_at
LIMIT $2;

-- name: queue_paused
-- Queues somebody has paused.
SELECT name AS queue, paused_at, coalesce(paused_by, 'somebody') AS paused_by,
       coalesce(reason, 'no reason given') AS reason
FROM tenuto.queues
WHERE paused_at IS NOT NULL
ORDER BY name
LIMIT $1;

-- name: execution_stands_still
-- Open executions that nothing moves: no task of their current group is left, or all of them wait without a reason. Of
-- the open ones $1.
SELECT execution.id, execution.schedule_name AS name, execution.state, execution.current_group AS place
FROM (
    SELECT id, schedule_name, state, current_group, paused_at
    FROM tenuto.executions
    WHERE ended_at IS NULL
    ORDER BY schedule_id, id
    LIMIT $1
) AS execution
WHERE NOT EXISTS (
    SELECT
    FROM tenuto.tasks
    WHERE tasks.execution_id = execution.id
      AND tasks.group_index = execution.current_group
      AND (tasks.state <> 'waiting' OR tasks.waits_for IS NOT NULL OR execution.paused_at IS NOT NULL)
)
ORDER BY execution.id
LIMIT $2;

-- name: step_out_of_turn
-- Steps that can be taken, or are held, though another group is the current one; and steps left behind in a group that
-- is over. Of the steps of the newest executions $1.
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
ORDER BY step.id
LIMIT $2;

-- name: group_before_its_turn
-- Executions that have ended, the $2 newest since $1, of which a step was taken before one of an earlier group ended.
SELECT execution.id, execution.schedule_name AS name, later.step_index AS step, later.group_index AS place,
       earlier.step_index AS earlier
FROM (
    SELECT id, schedule_name
    FROM tenuto.executions
    WHERE id > $1 AND ended_at IS NOT NULL
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
-- Steps whose execution is not there. Of the steps of the newest executions $1.
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

-- name: step_after_the_end
-- Open steps of executions that have ended. Of the steps of the newest executions $1.
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

-- name: step_not_told_to_stop
-- What goes on of executions that are cancelled, and has not been asked to stop.
SELECT step.id, step.name, step.state, execution.id AS execution
FROM tenuto.executions AS execution
JOIN tenuto.tasks AS step ON step.execution_id = execution.id
WHERE execution.ended_at IS NULL
  AND execution.state = 'cancelled'
  AND (step.state <> 'running' OR step.cancel_at IS NULL)
ORDER BY step.id
LIMIT $1;

-- name: step_recorded_otherwise
-- Executions that have ended, the $2 newest since $1, of which a step has left no last record, or more than one.
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

-- name: plan_not_as_begun
-- Executions, the $2 newest since $1, whose plan is not as long as it was when they began.
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
-- Due instants that fired, within the last $1, whose execution is not there. The $2 newest.
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

-- name: run_not_in_the_ledger
-- Executions started by a trigger or by hand, the $3 newest since $1 and within the last $2, of which the ledger knows
-- nothing.
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

-- name: run_not_alone
-- Schedules of which more than one run is active though each was to be alone.
SELECT min(schedule_name) AS name, count(*) AS running
FROM tenuto.executions
WHERE ended_at IS NULL AND alone
GROUP BY schedule_id
HAVING count(*) > 1
ORDER BY 1
LIMIT $1;

-- name: step_waits_for_nothing
-- Steps that wait for an execution which has ended, or which never was.
SELECT step.id, step.name, step.waits_for
FROM tenuto.tasks AS step
WHERE step.waits_for IS NOT NULL
  AND NOT EXISTS (SELECT FROM tenuto.executions WHERE executions.id = step.waits_for AND executions.ended_at IS NULL)
ORDER BY step.id
LIMIT $1;

-- name: schedule_overdue
-- Schedules that fell due longer than $1 ago and were not fired, though a scheduler that was heard of within $2 has been
-- there as long.
SELECT schedule.name, alive.name AS scheduler,
       round(extract(epoch FROM clock_timestamp() - schedule.next_run_at))::bigint AS seconds
FROM tenuto.schedules AS schedule
CROSS JOIN (
    SELECT min(name) AS name
    FROM tenuto.workers
    WHERE service = 'scheduler'
      AND ended_at IS NULL
      AND seen_at > clock_timestamp() - $2::interval
      AND started_at < clock_timestamp() - $1::interval
) AS alive
WHERE schedule.enabled
  AND schedule.next_run_at < clock_timestamp() - $1::interval
  AND alive.name IS NOT NULL
ORDER BY schedule.next_run_at, schedule.name
LIMIT $3;

-- name: scheduler_missing
-- Schedules that fell due longer than $1 ago, while no scheduler has been heard of within $2.
SELECT schedule.name, round(extract(epoch FROM clock_timestamp() - schedule.next_run_at))::bigint AS seconds
FROM tenuto.schedules AS schedule
WHERE schedule.enabled
  AND schedule.next_run_at < clock_timestamp() - $1::interval
  AND NOT EXISTS (
      SELECT
      FROM tenuto.workers
      WHERE service = 'scheduler' AND ended_at IS NULL AND seen_at > clock_timestamp() - $2::interval
  )
ORDER BY schedule.next_run_at, schedule.name
LIMIT $3;

-- name: schedule_not_planned
-- Enabled schedules whose next run nobody has worked out, changed longer than $1 ago.
SELECT name
FROM tenuto.schedules
WHERE enabled AND NOT planned AND updated_at < clock_timestamp() - $1::interval
ORDER BY id
LIMIT $2;

-- name: turn_not_taken
-- Runs queued longer than $1 ago though nothing of their schedule is active.
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

-- name: letter_missing
-- Failures of manifests, the newest $2 of failed records since $1, that left no letter: neither of their own task nor a
-- later one of the same item. What ended just now may not have been looked at by the net.
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

-- name: cap_overrun
-- Manifests, groups of them, and all of them ('*'), of which more is held under a living lease than may be.
WITH held AS MATERIALIZED (
    SELECT manifest_id, limit_group, count(*) AS active
    FROM tenuto.tasks
    WHERE state = 'running' AND NOT standby AND manifest_id IS NOT NULL AND lease_until > clock_timestamp()
    GROUP BY manifest_id, limit_group
)
SELECT caps.what, caps.active, caps.most
FROM (
    SELECT 'manifest ' || manifests.external_id AS what, sum(held.active) AS active, manifests.max_active AS most
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
WHERE caps.active > caps.most
ORDER BY caps.what
LIMIT $1;

-- name: manifest_runs_twice
-- Manifests of which more than one run of their own is open.
SELECT coalesce(min(manifests.external_id), manifest_id::text) AS name, count(*) AS runs
FROM tenuto.tasks
LEFT JOIN tenuto.manifests ON manifests.id = tasks.manifest_id
WHERE tasks.manifest_id IS NOT NULL AND tasks.batch_id IS NULL AND tasks.item_key IS NULL
GROUP BY tasks.manifest_id
HAVING count(*) > 1
ORDER BY 1
LIMIT $1;

-- name: manifest_gone
-- Open tasks of manifests that are not there, among the $1 newest of manifests.
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

-- name: batch_does_not_add_up
-- Batches, the 100 newest since $1, whose items are neither open nor on record, or twice.
SELECT sums.id, sums.name, sums.total, sums.open, sums.ended, sums.again
FROM (
    SELECT batch.id, coalesce(batch.name, batch.external_id) AS name, batch.total,
           (SELECT count(*) FROM tenuto.tasks WHERE tasks.batch_id = batch.id) AS open,
           (SELECT count(*) FROM tenuto.activities WHERE activities.batch_id = batch.id AND final) AS ended,
           (SELECT count(*) FROM tenuto.dead_letters
            WHERE dead_letters.batch_id = batch.id AND dead_letters.status = 'retried') AS again
    FROM (SELECT * FROM tenuto.batches WHERE id > $1 ORDER BY id DESC LIMIT 100) AS batch
) AS sums
WHERE sums.total <> sums.open + sums.ended - sums.again
ORDER BY sums.id
LIMIT $2;

-- name: batch_half_done
-- Items that wait in a batch which is not paused, or go on in one that was cancelled: whoever did it was interrupted, or
-- is at it still. Resuming and cancelling go by the order of ids, so whoever is at it has got past the first such item
-- when this is asked again.
SELECT batch.id, coalesce(batch.name, batch.external_id) AS name,
       CASE WHEN batch.cancelled_at IS NULL THEN 'resume' ELSE 'cancel' END AS verb,
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

-- name: manifest_not_planned
-- Enabled manifests whose next run nobody has worked out, changed longer than $1 ago.
SELECT external_id AS name
FROM tenuto.manifests
WHERE enabled AND NOT planned AND updated_at < clock_timestamp() - $1::interval
ORDER BY id
LIMIT $2;

-- name: old_snapshot
-- Who keeps rows from being cleaned away: transactions open for longer than $1, here or prepared and forgotten.
SELECT backend.pid::text AS who,
       coalesce(nullif(backend.application_name, ''), 'unnamed') || ', ' || backend.state AS what,
       round(extract(epoch FROM clock_timestamp() - backend.xact_start))::bigint AS seconds,
       'SELECT pg_terminate_backend(' || backend.pid || ')' AS cure
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

-- name: repaired
-- What the nets beneath the workers have found so far.
SELECT net, count, last_at
FROM tenuto.repairs
WHERE count > 0
ORDER BY net
LIMIT $1;

-- name: ledgers
-- Of enabled schedules, $1 of them, the newest $2 rows of the ledger since their last change: what is due comes from the
-- trigger, so this is held against it.
SELECT schedule.id, schedule.name, schedule.trigger, schedule.next_run_at, told.instants, told.untils
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
) AS told
WHERE told.instants IS NOT NULL
ORDER BY schedule.name;

-- name: enabled_schedules
-- Enabled schedules: $1 that have a clock and no next run, and of the others $1, those that are due first.
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
-- The same of manifests.
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
-- Runs by hand that wait for their turn, $1 of them.
SELECT schedule_name AS name, due_at, request
FROM tenuto.occurrences
WHERE decision = 'queued' AND request IS NOT NULL
ORDER BY schedule_id, due_at, id
LIMIT $1;

-- name: texts
-- What stands in the open, where a secret must not: the $1 newest records, open tasks, entries of the audit trail,
-- executions, definitions and lines of logs.
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
