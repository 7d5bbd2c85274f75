-- name: lock_executions
-- Lock executions until the transaction ends, ordered by id. Every transaction that ends, cancels or pauses
-- executions or their steps locks them first, so that of two steps ending at the same moment exactly one sees the
-- group empty.
SELECT id, state
FROM tenuto.executions
WHERE id = ANY ($1::uuid[])
ORDER BY id
FOR UPDATE;

-- name: list_finished_groups
-- Return those of the executions whose current group has no task left, with the failures in it, and those whose steps
-- have edges, which may start whenever a step ends. Run it under their lock, after the tasks were written. Here and below, MATERIALIZED and OFFSET 0 keep the lookup per row: a join with
-- the whole table looks cheap while the table is small, and the plan is cached.
WITH execution AS MATERIALIZED (
    SELECT id, state, plan, current_group, failed_steps, ended_at, step_dependencies
    FROM tenuto.executions
    WHERE id = ANY ($1::uuid[])
)
SELECT execution.id AS execution_id, execution.state AS execution_state, execution.plan AS plan_json,
       execution.current_group AS group_index, execution.failed_steps AS failed_before,
       execution.step_dependencies IS NOT NULL AS has_dependencies,
       (
           SELECT json_agg(json_build_array(
                      past.step_index, past.status, past.reason, left(past.error ->> 'message', 500)
                  ) ORDER BY past.step_index)
           FROM tenuto.activities AS past
           WHERE past.execution_id = execution.id
             AND past.group_index = execution.current_group
             AND past.final
             -- coalesce: keeps the planner from the index of attempts that did not complete
             AND coalesce(past.status, '') NOT IN ('completed', 'completed_with_warning')
       ) AS failures_json
FROM execution
WHERE execution.ended_at IS NULL
  AND (
      execution.step_dependencies = 'by_step' -- guard: executions.edges_are_decided_at_each_end
      OR NOT EXISTS (
          SELECT
          FROM tenuto.tasks
          WHERE tasks.execution_id = execution.id
            AND tasks.group_index = execution.current_group
          OFFSET 0
      )
  )
ORDER BY execution.id;

-- name: load_step_dependencies
-- Return what decides about the steps of an execution, all of which depend on earlier ones. Run it under its lock.
SELECT plan AS plan_json, state, current_group, first_group, failed_steps AS failed_step_count,
       paused_at IS NOT NULL AS is_paused, kept_results::text AS kept_json, due_at, interval_start
FROM tenuto.executions
WHERE id = $1
  AND step_dependencies IS NOT NULL
  AND ended_at IS NULL;

-- name: load_kept_results
-- Return the results of the steps that a retry did not repeat.
SELECT kept_results::text
FROM tenuto.executions
WHERE id = $1;

-- name: list_step_progress
-- Return the state of every step of an execution, open and ended ones.
SELECT step_index, CASE WHEN state = 'waiting' AND waits_for IS NULL THEN 'waiting' ELSE 'open' END AS state,
       NULL AS reason, NULL AS message
FROM tenuto.tasks
WHERE execution_id = $1
UNION ALL
SELECT step_index, status, reason, left(error ->> 'message', 500)
FROM tenuto.activities
WHERE execution_id = $1 AND final
ORDER BY step_index
LIMIT $2;

-- name: list_step_outputs
-- Return the outputs of ended steps.
SELECT step_index, output::text AS output_json
FROM tenuto.activities
WHERE execution_id = $1 AND final AND step_index = ANY ($2::integer[])
ORDER BY step_index
LIMIT $3;

-- name: start_steps
-- Queue waiting steps of an execution, with the input $3 that contains values of earlier steps (null: their input remains),
-- and notify workers. A step that was held during a pause continues at its time.
WITH started AS (
    UPDATE tenuto.tasks AS task
    SET state = CASE WHEN task.fence > 0 AND task.run_at > coalesce($4::timestamptz, clock_timestamp())
                     THEN 'scheduled' ELSE 'queued' END,
        run_at = greatest(task.run_at, coalesce($4::timestamptz, clock_timestamp())),
        -- guard: expiry.start_of_step
        expires_at = task.expires_at + (greatest(task.run_at, coalesce($4::timestamptz, clock_timestamp())) - task.run_at),
        parked_for = NULL,
        input = coalesce(new.input, task.input)
    FROM unnest($2::integer[], $3::jsonb[]) AS new (step_index, input)
    WHERE task.execution_id = $1
      AND task.step_index = new.step_index
      AND task.state = 'waiting'
      AND task.waits_for IS NULL
    RETURNING task.state, task.queue, task.rank, task.limit_key IS NOT NULL AS limited
)
SELECT count(pg_notify('tenuto', CASE WHEN state = 'scheduled' THEN 'scheduled ' || queue
                                      ELSE concat_ws(' ', CASE WHEN limited THEN 'limited' ELSE 'queued' END, queue, rank) END))
FROM (SELECT DISTINCT state, queue, rank, limited FROM started) AS events;

-- name: move_execution
-- Set the current group of an execution and the number of its failed steps.
UPDATE tenuto.executions
SET current_group = $2, failed_steps = $3
WHERE id = $1 AND state = 'in_progress';

-- name: lock_waiting_steps
-- Return and lock waiting steps of an execution.
SELECT {claimed_task}
FROM tenuto.tasks
WHERE execution_id = $1 AND step_index = ANY ($2::integer[]) AND state = 'waiting'
ORDER BY step_index
FOR UPDATE;

-- name: start_groups
-- Start the next group of each execution, unless it is paused. The worker $5 (null: none) that ended the previous
-- group claims up to $8 tasks of it under the conditions of claim_tasks, of the known jobs $9 and step kinds $10; the
-- other tasks are queued and workers notified. Every row also lists the executions without a task in their next group,
-- because all its steps were cancelled before; a row without a task contains nothing else.
WITH moved AS (
    UPDATE tenuto.executions AS execution
    SET current_group = next.group_index, failed_steps = next.failed
    FROM unnest($1::uuid[], $2::integer[], $3::integer[]) AS next (id, group_index, failed)
    WHERE execution.id = ANY ($1::uuid[])
      AND execution.id = next.id
      AND execution.state = 'in_progress' -- guard: executions.cancelled_does_not_advance
    RETURNING execution.id, execution.current_group, execution.paused_at
), next AS MATERIALIZED (
    SELECT task.id, task.queue, task.rank, task.limit_key, task.kind, task.name, moved.paused_at
    FROM tenuto.tasks AS task
    JOIN moved ON task.execution_id = moved.id AND task.group_index = moved.current_group
    WHERE task.execution_id = ANY ($1::uuid[])
      AND task.group_index = ANY ($2::integer[])
      AND task.state = 'waiting'
), chosen AS MATERIALIZED (
    SELECT id
    FROM next
    WHERE paused_at IS NULL
      AND limit_key IS NULL
      AND queue = ANY ($7::text[])
      AND queue NOT IN (SELECT name FROM tenuto.queues WHERE {queue_is_limited})
      -- guard: executions.dead_worker_does_not_advance
      AND EXISTS (SELECT FROM tenuto.workers WHERE workers.id = $5::uuid AND ended_at IS NULL)
      -- guard: executions.known_handler
      AND CASE WHEN $9::jsonb IS NULL THEN true WHEN kind = 'job' THEN $9::jsonb ? name ELSE $10::jsonb ? kind END
    ORDER BY rank, id
    LIMIT $8
), started_steps AS (
    UPDATE tenuto.tasks AS task
    SET state = CASE
            WHEN next.paused_at IS NOT NULL THEN 'waiting' -- guard: executions.next_group_waits_while_paused
            WHEN chosen.id IS NULL THEN 'queued'
            ELSE 'running'
        END,
        run_at = coalesce($4::timestamptz, clock_timestamp()),
        -- guard: expiry.start_of_group
        expires_at = task.expires_at + (coalesce($4::timestamptz, clock_timestamp()) - task.run_at),
        worker_id = CASE WHEN chosen.id IS NOT NULL THEN $5::uuid END,
        fence = task.fence + (chosen.id IS NOT NULL)::integer,
        claimed_at = CASE WHEN chosen.id IS NOT NULL THEN clock_timestamp() END,
        lease_until = CASE WHEN chosen.id IS NOT NULL THEN clock_timestamp() + $6::interval END
    FROM next
    LEFT JOIN chosen ON chosen.id = next.id
    WHERE task.id = ANY (ARRAY(SELECT id FROM next))
      AND task.id = next.id
      AND task.state = 'waiting'
    RETURNING task.*
), summary AS MATERIALIZED (
    SELECT ARRAY(
               SELECT moved.id
               FROM moved
               WHERE NOT EXISTS (
                   SELECT
                   FROM tenuto.tasks
                   WHERE tasks.execution_id = moved.id AND tasks.group_index = moved.current_group
                   OFFSET 0
               )
           ) AS empty_executions,
           (SELECT count(pg_notify('tenuto', concat_ws(' ', CASE WHEN limited THEN 'limited' ELSE 'queued' END, queue, rank)))
            FROM (
                SELECT DISTINCT queue, rank, limit_key IS NOT NULL AS limited FROM started_steps WHERE state = 'queued'
            ) AS events) AS notified
)
SELECT summary.empty_executions, summary.notified, claimed.*
FROM summary
LEFT JOIN (SELECT {claimed_task} FROM started_steps WHERE state = 'running') AS claimed ON true;

-- name: finish_group
-- Fast path of completion, equivalent to finish_tasks, list_finished_groups and start_groups or end_executions:
-- the successful steps $2 are the last of the current group of execution $6, no step of the group failed, the execution
-- is neither paused nor cancelled, and only its groups order its steps. The statement ends the tasks and starts the next group, of which the
-- worker $1 claims up to $9 (of the known jobs $16 and step kinds $17), or ends the execution. In any other case, and
-- at the end of an awaited execution, it changes and returns nothing. The snapshot may be older than the lock on the
-- execution. It may then show siblings that have ended since, never one too few; a failed sibling is visible as a task
-- or as failed. Rows that must still exist are locked. The flag awaited is set under the lock on the execution, so it
-- is never outdated.
-- A measured fast path (benchmark executions). Equivalence test: tests/lifecycle/test_advancement.py, which runs on both
-- paths.
WITH execution AS MATERIALIZED (
    SELECT id, schedule_id, awaited, current_group, current_group + 1 >= total_groups AS is_last_group
    FROM tenuto.executions
    -- guard: fast_advance.paused_execution, fast_advance.cancelled_execution
    WHERE id = $6::uuid AND state = 'in_progress' AND paused_at IS NULL AND ended_at IS NULL
      AND step_dependencies IS NULL -- guard: fast_advance.step_dependencies
    FOR UPDATE -- guard: fast_advance.execution_lock
), outcome AS (
    SELECT o.*,
           coalesce(given_status, 'completed') AS status,
           timestamptz 'epoch' + ended * interval '1 microsecond' AS ended_at,
           timestamptz 'epoch' + started * interval '1 microsecond' AS started_at
    FROM unnest(
        $2::uuid[], $3::text::bigint[], $4::text[], $5::text::bigint[], $10::text[], $11::text::bigint[], $12::jsonb[],
        $13::jsonb[], $14::text[], $15::jsonb[]
    ) AS o (id, fence, given_status, ended, reason, started, output, error, log, progress)
), mine AS MATERIALIZED (
    SELECT task.id
    FROM tenuto.tasks AS task
    JOIN outcome ON outcome.id = task.id AND outcome.fence = task.fence -- guard: fast_advance.fence
    WHERE task.id = ANY ($2::uuid[])
      AND task.worker_id = $1::uuid
      AND task.execution_id = (SELECT id FROM execution)
      AND task.group_index = (SELECT current_group FROM execution)
    ORDER BY task.id
    FOR UPDATE OF task
), next AS MATERIALIZED (
    -- locked, so that the steps still exist
    SELECT task.id, task.queue, task.rank, task.limit_key, task.kind, task.name
    FROM tenuto.tasks AS task
    WHERE task.execution_id = (SELECT id FROM execution)
      AND task.group_index = (SELECT current_group + 1 FROM execution)
      AND task.state = 'waiting'
    ORDER BY task.id
    FOR UPDATE -- guard: fast_advance.lock_of_next_steps
), ready AS MATERIALIZED (
    SELECT execution.*
    FROM execution
    WHERE (SELECT count(*) FROM mine) = cardinality($2::uuid[])
      AND NOT EXISTS (
          SELECT
          FROM tenuto.tasks AS sibling
          WHERE sibling.execution_id = $6::uuid
            AND sibling.group_index = execution.current_group
            AND sibling.id <> ALL ($2::uuid[]) -- guard: fast_advance.last_step
          OFFSET 0
      )
      AND NOT EXISTS (
          SELECT
          FROM tenuto.activities AS past
          WHERE past.execution_id = $6::uuid
            AND past.group_index = execution.current_group
            AND past.final
            -- guard: fast_advance.failed_step
            AND coalesce(past.status, '') NOT IN ('completed', 'completed_with_warning')
          OFFSET 0
      )
      -- all steps of a group may have been cancelled before
      -- guard: fast_advance.awaited_execution
      AND CASE WHEN execution.is_last_group THEN NOT execution.awaited ELSE EXISTS (SELECT FROM next) END
), ended AS (
    DELETE FROM tenuto.tasks AS task
    USING outcome
    WHERE EXISTS (SELECT FROM ready)
      AND task.id = ANY ($2::uuid[])
      AND task.id = outcome.id
    RETURNING {ended_attempt}, true AS final
), recorded AS (
    {record_attempts}
), moved AS (
    UPDATE tenuto.executions AS execution
    SET current_group = CASE WHEN ready.is_last_group THEN execution.current_group ELSE execution.current_group + 1 END,
        state = CASE WHEN ready.is_last_group THEN 'completed' ELSE execution.state END,
        ended_at = CASE WHEN ready.is_last_group THEN (SELECT max(outcome.ended_at) FROM outcome) END,
        ended_transaction_id = CASE WHEN ready.is_last_group THEN pg_current_xact_id()::text::bigint END
    FROM ready
    WHERE execution.id = $6::uuid AND execution.id = ready.id
    RETURNING execution.id, execution.schedule_id, execution.current_group, ready.is_last_group
), chosen AS MATERIALIZED (
    SELECT id
    FROM next
    WHERE limit_key IS NULL
      AND queue = ANY ($8::text[])
      AND queue NOT IN (SELECT name FROM tenuto.queues WHERE {queue_is_limited})
      AND EXISTS (SELECT FROM tenuto.workers WHERE workers.id = $1::uuid AND ended_at IS NULL)
      -- guard: fast_advance.known_handler
      AND CASE WHEN $16::jsonb IS NULL THEN true WHEN kind = 'job' THEN $16::jsonb ? name ELSE $17::jsonb ? kind END
    ORDER BY rank, id
    LIMIT $9
), started_steps AS (
    UPDATE tenuto.tasks AS task
    SET state = CASE WHEN chosen.id IS NULL THEN 'queued' ELSE 'running' END,
        run_at = (SELECT max(outcome.ended_at) FROM outcome),
        -- guard: expiry.start_of_group
        expires_at = task.expires_at + ((SELECT max(outcome.ended_at) FROM outcome) - task.run_at),
        worker_id = CASE WHEN chosen.id IS NOT NULL THEN $1::uuid END,
        fence = task.fence + (chosen.id IS NOT NULL)::integer,
        claimed_at = CASE WHEN chosen.id IS NOT NULL THEN clock_timestamp() END,
        lease_until = CASE WHEN chosen.id IS NOT NULL THEN clock_timestamp() + $7::interval END
    FROM next
    LEFT JOIN chosen ON chosen.id = next.id
    WHERE EXISTS (SELECT FROM ready)
      AND task.id = ANY (ARRAY(SELECT id FROM next))
      AND task.id = next.id
    RETURNING task.*
), summary AS MATERIALIZED (
    SELECT (SELECT count(pg_notify('tenuto', concat_ws(' ', CASE WHEN limited THEN 'limited' ELSE 'queued' END, queue, rank)))
            FROM (
                SELECT DISTINCT queue, rank, limit_key IS NOT NULL AS limited FROM started_steps WHERE state = 'queued'
            ) AS events) AS notified,
           (SELECT count(pg_notify('tenuto', 'schedules'))
            FROM moved
            WHERE is_last_group AND EXISTS (
                SELECT FROM tenuto.occurrences WHERE decision = 'queued' AND occurrences.schedule_id = moved.schedule_id
            )) AS schedulers,
           (SELECT count(pg_notify('tenuto_ended', id::text)) FROM moved WHERE is_last_group) AS ended_count
)
SELECT summary.*, claimed.*
FROM moved
CROSS JOIN summary
LEFT JOIN (SELECT {claimed_task} FROM started_steps WHERE state = 'running') AS claimed ON true;

-- name: end_executions
-- End executions. Steps of other executions that waited for them are queued (the caller holds them if their execution
-- is paused); schedulers are notified if a run of the schedule is queued or if it belongs to a backfill, and callers
-- that wait for the end are notified.
WITH ended AS (
    UPDATE tenuto.executions AS execution
    -- guard: executions.cancelled_at_its_end
    SET state = CASE WHEN execution.state = 'in_progress' THEN result.state ELSE execution.state END,
        ended_at = coalesce($5::timestamptz, clock_timestamp()),
        ended_transaction_id = pg_current_xact_id()::text::bigint,
        failed_steps = result.failed,
        error = coalesce(execution.error, result.error),
        paused_at = NULL,
        paused_by = NULL
    FROM unnest($1::uuid[], $2::text[], $3::integer[], $4::text[]) AS result (id, state, failed, error)
    WHERE execution.id = ANY ($1::uuid[])
      AND execution.id = result.id
      AND coalesce(execution.ended_at, 'infinity') = 'infinity'   -- keeps the planner from the index of open executions
    RETURNING execution.id, execution.schedule_id, execution.origin
), released AS (
    UPDATE tenuto.tasks AS task
    SET state = 'queued', waits_for = NULL
    FROM ended
    WHERE task.waits_for = ANY ($1::uuid[])
      AND task.waits_for = ended.id
      AND task.state = 'waiting'
    RETURNING task.queue, task.execution_id, CASE WHEN task.limit_key IS NULL THEN 'queued ' ELSE 'limited ' END AS event
)
SELECT (SELECT array_agg(DISTINCT execution_id) FROM released) AS parent_ids,
       (SELECT count(pg_notify('tenuto', event || queue)) FROM (SELECT DISTINCT event, queue FROM released) AS events),
       (SELECT count(pg_notify('tenuto', 'schedules'))
        WHERE EXISTS (
            SELECT
            FROM tenuto.occurrences
            WHERE decision = 'queued' AND schedule_id = ANY (ARRAY(SELECT schedule_id FROM ended))
        )),
       (SELECT count(pg_notify('tenuto', 'operations')) FROM ended WHERE origin = 'backfill'),
       (SELECT count(pg_notify('tenuto_ended', id::text)) FROM ended);

-- name: hold_steps_of_paused
-- Set queued and scheduled steps of paused executions to waiting; see pause_execution for their expiry.
UPDATE tenuto.tasks
SET state = 'waiting',
    parked_for = NULL,
    expires_at = expires_at - (clock_timestamp() - run_at) -- guard: expiry.step_held_after_its_attempt
WHERE execution_id = ANY ($1::uuid[])
  AND state IN ('queued', 'scheduled')
  AND EXISTS (SELECT FROM tenuto.executions WHERE executions.id = execution_id AND paused_at IS NOT NULL OFFSET 0);

-- name: lock_unclaimed_steps
-- Return and lock the unclaimed tasks of executions.
SELECT {claimed_task}
FROM tenuto.tasks
WHERE id = ANY (ARRAY(SELECT id FROM tenuto.tasks WHERE execution_id = ANY ($1::uuid[])))
  AND state <> 'running'
ORDER BY id
FOR UPDATE;

-- name: create_executions
-- Insert executions with all their tasks: the first group is queued, the others wait. One statement, so that a submission
-- is one round trip before its commit (benchmark executions, submitted one by one; benchmark schedules, due at once).
WITH execution AS (
    INSERT INTO tenuto.executions (
        id, schedule_id, schedule_name, version, origin, state, alone, plan, current_group, first_group, total_groups,
        total_steps, due_at, started_at, initiator_type, initiator_id, initiator_name, parent_task_id, retry_of,
        interval_start, awaited, step_dependencies, kept_results
    )
    SELECT id, schedule_id, schedule_name, version, origin, 'in_progress', alone, plan, first_group, first_group,
           total_groups, total_steps, due_at, started_at, initiator_type, initiator_id, initiator_name, parent_task_id,
           retry_of, interval_start, origin = 'backfill', -- a backfill waits for the end of its executions
           step_dependencies, kept_results
    FROM unnest(
        $1::uuid[], $2::uuid[], $3::text[], $4::integer[], $5::text[], $6::boolean[], $7::jsonb[], $8::integer[],
        $9::integer[], $10::integer[], $11::timestamptz[], $12::timestamptz[], $13::text[], $14::text[], $15::text[],
        $16::uuid[], $17::uuid[], $18::timestamptz[], $19::text[], $20::jsonb[]
    ) AS new (
        id, schedule_id, schedule_name, version, origin, alone, plan, first_group, total_groups, total_steps, due_at,
        started_at, initiator_type, initiator_id, initiator_name, parent_task_id, retry_of, interval_start, step_dependencies,
        kept_results
    )
), step AS (
    {create_tasks}
    FROM unnest({new_task.arrays 21}) AS new ({new_task.names})
    RETURNING state, queue, rank, limit_key IS NOT NULL AS limited
)
SELECT count(pg_notify('tenuto', concat_ws(' ', CASE WHEN limited THEN 'limited' ELSE 'queued' END, queue, rank)))
FROM (SELECT DISTINCT queue, rank, limited FROM step WHERE state = 'queued') AS events;

-- name: create_manual_execution
-- Fast path of a manual run (benchmark executions, a single one), with its ledger entry: the schedule $2 still has name $3 and version $4, and, if its
-- runs must not overlap ($5), no run is active or queued. If a run started after this statement took its snapshot,
-- the unique index on non-overlapping runs rejects this one. Equivalence test:
-- tests/scheduling/test_immediate_runs.py::test_immediate_run_leaves_the_same_rows_as_the_transaction.
WITH schedule AS (
    UPDATE tenuto.schedules
    SET last_run_at = $9
    WHERE id = $2
      AND name = $3
      AND version = $4 -- guard: run_now.schedule_version
      AND (NOT $5
           -- guard: run_now.active_execution
           OR NOT EXISTS (SELECT FROM tenuto.executions WHERE schedule_id = $2 AND ended_at IS NULL AND origin <> 'backfill' OFFSET 0)
              -- guard: run_now.queued_run
              AND NOT EXISTS (SELECT FROM tenuto.occurrences WHERE schedule_id = $2 AND decision = 'queued' OFFSET 0))
    RETURNING id
), entry AS (
    INSERT INTO tenuto.occurrences (
        id, schedule_id, schedule_name, due_at, origin, decision, execution_id, decided_at, decided_by
    )
    SELECT $1, id, $3, $9, 'manual', 'fired', $1, $9, $12
    FROM schedule
), execution AS (
    INSERT INTO tenuto.executions (
        id, schedule_id, schedule_name, version, origin, state, alone, plan, current_group, first_group, total_groups,
        total_steps, due_at, started_at, initiator_type, initiator_id, initiator_name, step_dependencies
    )
    SELECT $1, id, $3, $4, 'manual', 'in_progress', $5, $6, 0, 0, $7, $8, $9, $9, $10, $11, $12, $13
    FROM schedule
), step AS (
    {create_tasks}
    FROM schedule
    CROSS JOIN unnest({new_task.arrays 14}) AS new ({new_task.names})
    RETURNING state, queue, rank, limit_key IS NOT NULL AS limited
)
SELECT pg_notify('tenuto', concat_ws(' ', CASE WHEN limited THEN 'limited' ELSE 'queued' END, queue, rank))
FROM (SELECT DISTINCT queue, rank, limited FROM step WHERE state = 'queued') AS events;

-- name: mark_cancelled
-- Mark executions as cancelled. This is final, whatever the outcome of their running steps.
UPDATE tenuto.executions
SET state = 'cancelled',
    cancelled_at = $2,
    cancel_type = $3,
    cancel_id = $4,
    cancel_name = $5,
    cancel_reason = $6,
    error = 'cancelled by ' || $5::text || coalesce(': ' || $6::text, ''),
    paused_at = NULL,
    paused_by = NULL
WHERE id = ANY ($1::uuid[])
  AND state = 'in_progress'
RETURNING id;

-- name: request_cancellation
-- Request cancellation of the running tasks of executions and notify their workers.
WITH requested AS (
    UPDATE tenuto.tasks
    SET cancel_at = coalesce(cancel_at, clock_timestamp()),
        cancel_type = coalesce(cancel_type, $2),
        cancel_id = CASE WHEN cancel_at IS NULL THEN $3 ELSE cancel_id END,
        cancel_name = coalesce(cancel_name, $4)
    WHERE execution_id = ANY ($1::uuid[])
      AND state = 'running'
    RETURNING worker_id
)
SELECT count(pg_notify('tenuto', 'cancel ' || worker_id::text))
FROM (SELECT DISTINCT worker_id FROM requested) AS holders;

-- name: list_execution_trees
-- Return executions and their open descendants: executions that their steps started, recursively.
WITH RECURSIVE family AS (
    SELECT id
    FROM tenuto.executions
    WHERE id = ANY ($1::uuid[])
    UNION
    SELECT child.id
    FROM family
    CROSS JOIN LATERAL (
        SELECT id, ended_at
        FROM tenuto.executions
        WHERE parent_task_id = ANY (ARRAY(SELECT tasks.id FROM tenuto.tasks WHERE tasks.execution_id = family.id))
        OFFSET 0
    ) AS child
    WHERE child.ended_at IS NULL
)
SELECT id
FROM family
ORDER BY id;

-- name: is_finished
-- Return whether an execution has ended.
SELECT ended_at IS NOT NULL
FROM tenuto.executions
WHERE id = $1;

-- name: waits_for
-- Return whether an execution waits, through its steps and their executions, for another one.
WITH RECURSIVE chain AS (
    SELECT $1::uuid AS id
    UNION
    SELECT tasks.waits_for
    FROM chain
    JOIN tenuto.tasks ON tasks.execution_id = chain.id
    WHERE tasks.waits_for IS NOT NULL
)
SELECT EXISTS (SELECT FROM chain WHERE id = $2);

-- name: load_last_child_of_step
-- Return the execution that this attempt at a step started, otherwise the last one that an earlier attempt started.
-- Not ordered by id: the ids were made on different machines.
SELECT id, schedule_id, schedule_name, version, origin, state, alone, plan AS plan_json, current_group, first_group,
       total_groups AS group_count, total_steps AS step_count, failed_steps AS failed_step_count, error, due_at,
       started_at, ended_at, initiator_type, initiator_id, initiator_name, parent_task_id, retry_of, paused_at, paused_by,
       cancelled_at, cancel_type, cancel_id, cancel_name, cancel_reason, interval_start
FROM tenuto.executions
WHERE parent_task_id = $1
-- guard: executions.child_of_this_attempt, executions.child_of_earlier_attempt
ORDER BY id = $2 DESC, started_at DESC, id DESC
LIMIT 1;

-- name: lock_step
-- Lock a step that is about to start an execution, unless its cancellation was requested or its worker lost it. A
-- later cancellation finds the started execution.
SELECT id
FROM tenuto.tasks
WHERE id = $1
  AND fence = $2 -- guard: executions.child_fence
  AND worker_id = $3 -- guard: executions.child_worker
  AND cancel_at IS NULL -- guard: executions.cancelled_step_starts_no_child
-- guard: executions.step_lock_before_child
FOR UPDATE;

-- name: list_open_children
-- Return the open executions that a step has started.
SELECT id
FROM tenuto.executions
WHERE parent_task_id = $1 AND ended_at IS NULL
ORDER BY id;

-- name: pause_execution
-- Pause an execution: unclaimed steps wait until it is resumed, running steps continue. A waiting step does not expire;
-- whatever lets it continue adds the time since its run_at to expires_at, so that here the time before the pause is
-- subtracted.
WITH paused AS (
    UPDATE tenuto.executions
    SET paused_at = $2, paused_by = $3
    WHERE id = $1 AND state = 'in_progress' AND paused_at IS NULL
    RETURNING id
), held AS (
    UPDATE tenuto.tasks
    SET state = 'waiting',
        parked_for = NULL, -- when resumed, claims check the rate again
        expires_at = expires_at - ($2::timestamptz - run_at) -- guard: expiry.paused_step
    WHERE execution_id = ANY (ARRAY(SELECT id FROM paused))
      -- also steps that wait for another execution: conflicts with a transaction that releases them now
      AND (state IN ('queued', 'scheduled') OR waits_for IS NOT NULL)
      AND state <> 'running'
    RETURNING id
)
SELECT id, (SELECT count(*) FROM held) AS held
FROM paused;

-- name: resume_execution
-- Resume an execution: held steps of the current group continue. If its steps depend on earlier ones, only steps that
-- have started before continue, also those of later groups; the caller decides about the others. Steps that wait for another execution keep their
-- state but are written, to conflict with a transaction that releases them now and may still see the pause.
WITH resumed AS (
    UPDATE tenuto.executions
    SET paused_at = NULL, paused_by = NULL
    WHERE id = $1 AND state = 'in_progress' AND paused_at IS NOT NULL
    RETURNING id, current_group, step_dependencies
), released AS (
    UPDATE tenuto.tasks
    SET state = CASE
            WHEN waits_for IS NOT NULL THEN 'waiting' -- guard: executions.resume_keeps_awaiting_steps
            WHEN resumed.step_dependencies IS NOT NULL AND fence = 0 THEN 'waiting' -- guard: executions.resume_decides_again
            WHEN run_at > $2 THEN 'scheduled'
            ELSE 'queued'
        END,
        parked_for = NULL,
        expires_at = CASE
            WHEN resumed.step_dependencies IS NOT NULL AND fence = 0 THEN expires_at
            ELSE expires_at + ($2::timestamptz - run_at) -- guard: expiry.paused_step
        END
    FROM resumed
    WHERE tasks.execution_id = $1
      AND tasks.execution_id = resumed.id
      AND (tasks.group_index = resumed.current_group OR resumed.step_dependencies IS NOT NULL)
      AND tasks.state = 'waiting' -- guard: executions.resume_locks_awaiting_steps
    RETURNING tasks.state, tasks.queue, tasks.limit_key IS NOT NULL AS limited
)
SELECT id, step_dependencies IS NOT NULL AS has_dependencies,
       (SELECT count(pg_notify('tenuto', CASE WHEN state = 'queued' AND limited THEN 'limited' ELSE state END || ' ' || queue))
        FROM (SELECT DISTINCT state, queue, limited FROM released WHERE state <> 'waiting') AS events) AS notified
FROM resumed;

-- name: load_execution
-- Return one execution with all columns.
SELECT id, schedule_id, schedule_name, version, origin, state, alone, plan AS plan_json, current_group, first_group,
       total_groups AS group_count, total_steps AS step_count, failed_steps AS failed_step_count, error, due_at,
       started_at, ended_at, initiator_type, initiator_id, initiator_name, parent_task_id, retry_of, paused_at, paused_by,
       cancelled_at, cancel_type, cancel_id, cancel_name, cancel_reason, interval_start
FROM tenuto.executions
WHERE id = $1;

-- name: list_step_attempts
-- Return past attempts and open tasks of the steps of an execution.
SELECT step_index, group_index, id, task_id, attempt, status AS state, reason, final, created_at, run_at, claimed_at,
       started_at, ended_at, error, progress, worker_id, failures AS failure_count, losses AS loss_count,
       (SELECT workers.name FROM tenuto.workers WHERE workers.id = worker_id) AS worker
FROM tenuto.all_activities
WHERE execution_id = $1
ORDER BY step_index, attempt
LIMIT $2;

-- name: list_executions
-- Return executions that meet a filter, newest first, below a cursor.
SELECT id, schedule_id, schedule_name, version, origin, state, current_group, first_group,
       total_groups AS group_count, total_steps AS step_count, failed_steps AS failed_step_count, error, due_at, started_at, ended_at, paused_at, paused_by, initiator_type, initiator_id,
       initiator_name, parent_task_id, retry_of, cancelled_at, cancel_name
FROM tenuto.executions
WHERE id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
  AND (/* filter */ true)
ORDER BY id DESC
LIMIT $2;

-- name: count_executions
-- Count executions that meet a filter, up to a limit.
SELECT count(*) AS count
FROM (SELECT FROM tenuto.executions WHERE (/* filter */ true) LIMIT $1) AS found;

-- name: list_usual_seconds
-- Return the median duration of the last completed executions of schedules, found by the index of their executions.
SELECT wanted.id AS schedule_id,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM lately.ended_at - lately.started_at)) AS seconds
FROM unnest($1::uuid[]) AS wanted (id)
CROSS JOIN LATERAL (
    SELECT started_at, ended_at
    FROM (
        SELECT started_at, ended_at, state
        FROM tenuto.executions
        WHERE schedule_id = wanted.id AND ended_at IS NOT NULL
        ORDER BY id DESC
        LIMIT 2 * $2::integer
    ) AS ended
    WHERE state = 'completed'
    LIMIT $2
) AS lately
GROUP BY wanted.id
ORDER BY wanted.id;

-- name: list_recent_outcomes
-- Return the last executions of schedules, found by the index of their executions.
SELECT lately.id, lately.schedule_id, lately.state, lately.failed_step_count, lately.started_at, lately.ended_at,
       lately.paused_at
FROM unnest($1::uuid[]) AS wanted (id)
CROSS JOIN LATERAL (
    SELECT id, schedule_id, state, failed_steps AS failed_step_count, started_at, ended_at, paused_at
    FROM tenuto.executions
    WHERE schedule_id = wanted.id
    ORDER BY id DESC
    LIMIT $2
) AS lately
ORDER BY lately.schedule_id, lately.id;

-- name: find_executions
-- Return ids in a range, for a prefix that a user entered.
SELECT id
FROM tenuto.executions
WHERE id BETWEEN $1 AND $2
ORDER BY id
LIMIT 3;

-- name: find_stuck_executions
-- Return open executions without progress: no task is left in their current group, or only waiting tasks although the
-- execution is not paused. Normally there are none; executions that are just being advanced are locked and skipped
-- later.
SELECT execution.id
FROM tenuto.executions AS execution
WHERE execution.ended_at IS NULL
  AND NOT EXISTS (
      SELECT
      FROM tenuto.tasks
      WHERE tasks.execution_id = execution.id
        -- steps with edges may run before their group, and a failing execution waits for them
        AND (tasks.group_index = execution.current_group OR execution.step_dependencies = 'by_step')
        AND (tasks.state <> 'waiting' OR tasks.waits_for IS NOT NULL OR execution.paused_at IS NOT NULL)
  )
ORDER BY execution.id
LIMIT $1;

-- name: lock_stuck_executions
-- Lock those of these executions that no other transaction has locked.
SELECT id
FROM tenuto.executions
WHERE id = ANY ($1::uuid[]) AND ended_at IS NULL
ORDER BY id
-- guard: executions.repair_skips_locked
FOR UPDATE SKIP LOCKED;

-- name: release_waiting_steps
-- Queue tasks of the current group that wait without a reason. A step that depends on earlier ones may have to be
-- skipped: `lifecycle.advancement` decides about it.
WITH released AS (
    UPDATE tenuto.tasks AS task
    SET state = 'queued',
        parked_for = NULL,
        expires_at = task.expires_at + (clock_timestamp() - task.run_at) -- guard: expiry.repaired_step
    FROM tenuto.executions AS execution
    WHERE task.execution_id = ANY ($1::uuid[])
      AND execution.id = task.execution_id
      AND execution.id = ANY ($1::uuid[])
      AND execution.state = 'in_progress'
      AND execution.paused_at IS NULL
      AND execution.step_dependencies IS NULL -- guard: executions.repair_decides_again
      AND task.group_index = execution.current_group
      AND task.state = 'waiting'
      AND task.waits_for IS NULL
    RETURNING task.execution_id, task.queue, CASE WHEN task.limit_key IS NULL THEN 'queued ' ELSE 'limited ' END AS event
)
SELECT execution_id, pg_notify('tenuto', event || queue)
FROM (SELECT DISTINCT execution_id, event, queue FROM released) AS events;

-- name: release_orphaned_waits
-- Queue steps that wait for an execution that has ended or never existed.
WITH concerned AS MATERIALIZED (
    SELECT execution.id, execution.paused_at IS NOT NULL AS is_paused  -- locked, so that none is paused in between
    FROM tenuto.executions AS execution
    WHERE execution.id = ANY (ARRAY(
        SELECT task.execution_id FROM tenuto.tasks AS task WHERE task.waits_for IS NOT NULL AND task.state = 'waiting'
    ))
    ORDER BY execution.id
    FOR SHARE
), released AS (
    UPDATE tenuto.tasks AS task
    SET state = CASE WHEN EXISTS (SELECT FROM concerned WHERE concerned.id = task.execution_id AND is_paused)
                     THEN 'waiting' ELSE 'queued' END,
        waits_for = NULL
    WHERE task.waits_for IS NOT NULL
      AND task.state = 'waiting'
      AND NOT EXISTS (
          SELECT FROM tenuto.executions WHERE executions.id = task.waits_for AND executions.ended_at IS NULL
      )
    RETURNING task.id, task.queue, CASE WHEN task.limit_key IS NULL THEN 'queued ' ELSE 'limited ' END AS event
)
SELECT id, pg_notify('tenuto', event || queue)
FROM released;

-- name: find_abandoned_executions
-- Return running executions whose parent step no longer exists. The condition on ended_at is there for the index.
SELECT id
FROM tenuto.executions
WHERE parent_task_id IS NOT NULL
  AND state = 'in_progress'
  AND ended_at IS NULL
  AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = parent_task_id OFFSET 0)
ORDER BY id
LIMIT $1;

-- name: find_wait_cycles
-- Return steps that wait for an execution that waits, through its steps, for the end of theirs: none of them would
-- ever end. Each row says whether the step started the execution it waits for; in every cycle one step did not.
WITH RECURSIVE waiting AS MATERIALIZED (
    SELECT id, execution_id, waits_for
    FROM tenuto.tasks
    WHERE waits_for IS NOT NULL AND execution_id IS NOT NULL
), way AS (
    SELECT id, execution_id, waits_for AS leads_to
    FROM waiting
    UNION
    SELECT way.id, way.execution_id, waiting.waits_for
    FROM way
    JOIN waiting ON waiting.execution_id = way.leads_to
)
SELECT waiting.id, waiting.execution_id, waiting.waits_for, awaited.schedule_name,
       coalesce(awaited.parent_task_id = waiting.id, false) AS started_it
FROM way
JOIN waiting ON waiting.id = way.id
JOIN tenuto.executions AS awaited ON awaited.id = waiting.waits_for
WHERE way.leads_to = way.execution_id
ORDER BY waiting.id DESC
LIMIT $1;

-- name: load_oldest_open_execution
-- Return the oldest open execution.
SELECT id, schedule_name, started_at
FROM tenuto.executions
WHERE ended_at IS NULL
ORDER BY started_at, id
LIMIT 1;

-- name: delete_old_executions
-- Delete a small batch of executions that ended before the cut-off, except children of open steps: such a step has
-- yet to read the result, and would otherwise start the execution again.
DELETE FROM tenuto.executions
WHERE id = ANY (ARRAY(
    SELECT id
    FROM tenuto.executions
    WHERE ended_at < $1
      -- guard: retention.children_of_open_steps
      AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = parent_task_id OFFSET 0)
    ORDER BY ended_at
    LIMIT $2
))
RETURNING id;
