-- name: lock
-- Hold executions until the transaction ends, always in the same order: whoever ends, cancels or pauses must have them
-- first, so that of two steps ending at the same moment exactly one sees the group empty.
SELECT id, state
FROM tenuto.executions
WHERE id = ANY ($1::uuid[])
ORDER BY id
FOR UPDATE;

-- name: groups_that_ended
-- Of these executions, those whose current group has no task left, with what failed in it. To be asked under their lock,
-- after the tasks have been written. Here and below, what is found by id first and then looked up for each of them stands
-- behind a fence (MATERIALIZED, OFFSET 0): a plan that joins it with everything there is looks cheap while there is
-- little, and is kept.
WITH execution AS MATERIALIZED (
    SELECT id, state, plan, current_group, failed_steps, ended_at
    FROM tenuto.executions
    WHERE id = ANY ($1::uuid[])
)
SELECT execution.id, execution.state, execution.plan, execution.current_group, execution.failed_steps,
       (
           SELECT json_agg(json_build_array(
                      past.step_index, past.status, past.reason, left(past.error ->> 'message', 500)
                  ) ORDER BY past.step_index)
           FROM tenuto.activities AS past
           WHERE past.execution_id = execution.id
             AND past.group_index = execution.current_group
             AND past.final
             -- (coalesce: no planner is to think of the index of all that did not complete)
             AND coalesce(past.status, '') NOT IN ('completed', 'completed_with_warning')
       ) AS failures
FROM execution
WHERE execution.ended_at IS NULL
  AND NOT EXISTS (
      SELECT
      FROM tenuto.tasks
      WHERE tasks.execution_id = execution.id
        AND tasks.group_index = execution.current_group
      OFFSET 0
  )
ORDER BY execution.id;

-- name: go_on
-- The next group of each execution begins, unless the execution is paused. Whoever has just ended the last one, the worker
-- $5 (null: nobody), goes on with up to $8 of its tasks itself, under the same conditions as any claim; whoever may take
-- the others is woken. Each row also tells which executions have no task left in their next group, because all its steps
-- were cancelled beforehand; one without a task tells nothing else.
WITH moved AS (
    UPDATE tenuto.executions AS execution
    SET current_group = next.group_index, failed_steps = next.failed
    FROM unnest($1::uuid[], $2::integer[], $3::integer[]) AS next (id, group_index, failed)
    WHERE execution.id = ANY ($1::uuid[])
      AND execution.id = next.id
      AND execution.state = 'in_progress'
    RETURNING execution.id, execution.current_group, execution.paused_at
), next AS MATERIALIZED (
    SELECT task.id, task.queue, task.rank, task.limit_key, moved.paused_at
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
      AND queue NOT IN (SELECT name FROM tenuto.queues WHERE max_running IS NOT NULL OR paused_at IS NOT NULL)
      AND EXISTS (SELECT FROM tenuto.workers WHERE workers.id = $5::uuid AND ended_at IS NULL)
    ORDER BY rank, id
    LIMIT $8
), begun AS (
    UPDATE tenuto.tasks AS task
    SET state = CASE
            WHEN next.paused_at IS NOT NULL THEN 'waiting'
            WHEN chosen.id IS NULL THEN 'queued'
            ELSE 'running'
        END,
        run_at = coalesce($4::timestamptz, clock_timestamp()),
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
), told AS MATERIALIZED (
    SELECT ARRAY(
               SELECT moved.id
               FROM moved
               WHERE NOT EXISTS (
                   SELECT
                   FROM tenuto.tasks
                   WHERE tasks.execution_id = moved.id AND tasks.group_index = moved.current_group
                   OFFSET 0
               )
           ) AS empty,
           (SELECT count(pg_notify('tenuto', concat_ws(' ', CASE WHEN limited THEN 'limited' ELSE 'queued' END, queue, rank)))
            FROM (
                SELECT DISTINCT queue, rank, limit_key IS NOT NULL AS limited FROM begun WHERE state = 'queued'
            ) AS words) AS woken
)
SELECT told.empty, told.woken, begun.id, activity_id, fence, worker_id, kind, name, input, policy, attempt, failures,
       losses, queue, -rank AS priority, run_at, initiator_type, initiator_id, initiator_name, correlation_id, tags,
       execution_id, manifest_id, batch_id
FROM told
LEFT JOIN begun ON begun.state = 'running';

-- name: end_group
-- The common case, in one statement: the steps $2 that end here, all of them well, are the last of the current group of the
-- execution $6, nothing in the group has failed, and the execution is neither paused nor cancelled. Then there is nothing to
-- decide: the tasks leave, and the execution goes on to its next group, of which the worker $1 takes up to $9 as in go_on, or
-- comes to its end as in end_executions. If anything is different, nothing is changed and nothing is answered; so it is at the
-- end of what somebody waits for.
-- The snapshot may be older than the lock on the execution. It then shows siblings that have left since, never one too few,
-- and whoever has left as failed is in it as a task, or as failed. What must be there still is locked. Whoever waits for the
-- end has said so on the row that is locked, which is never old.
WITH execution AS MATERIALIZED (
    SELECT id, schedule_id, awaited, current_group, current_group + 1 >= total_groups AS at_its_end
    FROM tenuto.executions
    WHERE id = $6::uuid AND state = 'in_progress' AND paused_at IS NULL AND ended_at IS NULL
    FOR UPDATE
), outcome AS (
    SELECT o.*,
           coalesce(word, 'completed') AS status,
           timestamptz 'epoch' + ended * interval '1 microsecond' AS ended_at,
           timestamptz 'epoch' + started * interval '1 microsecond' AS started_at
    FROM unnest(
        $2::uuid[], $3::text::bigint[], $4::text[], $5::text::bigint[], $10::text[], $11::text::bigint[], $12::jsonb[],
        $13::jsonb[], $14::text[], $15::jsonb[]
    ) AS o (id, fence, word, ended, reason, started, output, error, log, progress)
), mine AS MATERIALIZED (
    SELECT task.id
    FROM tenuto.tasks AS task
    JOIN outcome ON outcome.id = task.id AND outcome.fence = task.fence
    WHERE task.id = ANY ($2::uuid[])
      AND task.worker_id = $1::uuid
      AND task.execution_id = (SELECT id FROM execution)
      AND task.group_index = (SELECT current_group FROM execution)
    ORDER BY task.id
    FOR UPDATE OF task
), next AS MATERIALIZED (
    -- held: who is still there then, is there
    SELECT task.id, task.queue, task.rank, task.limit_key
    FROM tenuto.tasks AS task
    WHERE task.execution_id = (SELECT id FROM execution)
      AND task.group_index = (SELECT current_group + 1 FROM execution)
      AND task.state = 'waiting'
    ORDER BY task.id
    FOR UPDATE
), ready AS MATERIALIZED (
    SELECT execution.*
    FROM execution
    WHERE (SELECT count(*) FROM mine) = cardinality($2::uuid[])
      AND NOT EXISTS (
          SELECT
          FROM tenuto.tasks AS sibling
          WHERE sibling.execution_id = $6::uuid
            AND sibling.group_index = execution.current_group
            AND sibling.id <> ALL ($2::uuid[])
          OFFSET 0
      )
      AND NOT EXISTS (
          SELECT
          FROM tenuto.activities AS past
          WHERE past.execution_id = $6::uuid
            AND past.group_index = execution.current_group
            AND past.final
            AND coalesce(past.status, '') NOT IN ('completed', 'completed_with_warning')
          OFFSET 0
      )
      -- a group may have lost all its steps beforehand
      AND CASE WHEN execution.at_its_end THEN NOT execution.awaited ELSE EXISTS (SELECT FROM next) END
), left_now AS (
    DELETE FROM tenuto.tasks AS task
    USING outcome
    WHERE EXISTS (SELECT FROM ready)
      AND task.id = ANY ($2::uuid[])
      AND task.id = outcome.id
    RETURNING task.activity_id, task.id, task.attempt, outcome.status, outcome.reason, true AS final, task.kind,
              task.name, task.queue, -task.rank AS priority, task.created_at, task.run_at, task.claimed_at,
              coalesce(task.began_at, outcome.started_at), outcome.ended_at, task.fence, task.worker_id, task.failures,
              task.losses, task.input, outcome.output, outcome.error, outcome.log,
              coalesce(outcome.progress, task.progress) AS progress, task.unique_key, task.limit_key, task.tags,
              task.initiator_type, task.initiator_id, task.initiator_name, task.correlation_id, task.parent_id,
              task.execution_id, task.group_index, task.step_index, task.manifest_id, task.batch_id, task.item_key,
              task.origin
), recorded AS (
    INSERT INTO tenuto.activities (
        id, task_id, attempt, status, reason, final, kind, name, queue, priority, created_at, run_at, claimed_at,
        started_at, ended_at, fence, worker_id, failures, losses, input, output, error, log, progress, unique_key,
        limit_key, tags, initiator_type, initiator_id, initiator_name, correlation_id, parent_id, execution_id,
        group_index, step_index, manifest_id, batch_id, item_key, origin
    )
    SELECT * FROM left_now
), moved AS (
    UPDATE tenuto.executions AS execution
    SET current_group = CASE WHEN ready.at_its_end THEN execution.current_group ELSE execution.current_group + 1 END,
        state = CASE WHEN ready.at_its_end THEN 'completed' ELSE execution.state END,
        ended_at = CASE WHEN ready.at_its_end THEN (SELECT max(outcome.ended_at) FROM outcome) END
    FROM ready
    WHERE execution.id = $6::uuid AND execution.id = ready.id
    RETURNING execution.id, execution.schedule_id, execution.current_group, ready.at_its_end
), chosen AS MATERIALIZED (
    SELECT id
    FROM next
    WHERE limit_key IS NULL
      AND queue = ANY ($8::text[])
      AND queue NOT IN (SELECT name FROM tenuto.queues WHERE max_running IS NOT NULL OR paused_at IS NOT NULL)
      AND EXISTS (SELECT FROM tenuto.workers WHERE workers.id = $1::uuid AND ended_at IS NULL)
    ORDER BY rank, id
    LIMIT $9
), begun AS (
    UPDATE tenuto.tasks AS task
    SET state = CASE WHEN chosen.id IS NULL THEN 'queued' ELSE 'running' END,
        run_at = (SELECT max(outcome.ended_at) FROM outcome),
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
), told AS MATERIALIZED (
    SELECT (SELECT count(pg_notify('tenuto', concat_ws(' ', CASE WHEN limited THEN 'limited' ELSE 'queued' END, queue, rank)))
            FROM (
                SELECT DISTINCT queue, rank, limit_key IS NOT NULL AS limited FROM begun WHERE state = 'queued'
            ) AS words) AS woken,
           (SELECT count(pg_notify('tenuto', 'schedules'))
            FROM moved
            WHERE at_its_end AND EXISTS (
                SELECT FROM tenuto.occurrences WHERE decision = 'queued' AND occurrences.schedule_id = moved.schedule_id
            )) AS schedulers,
           (SELECT count(pg_notify('tenuto_ended', id::text)) FROM moved WHERE at_its_end) AS ended
)
SELECT told.*, begun.id, activity_id, fence, worker_id, kind, name, input, policy, attempt, failures, losses, queue,
       -rank AS priority, run_at, initiator_type, initiator_id, initiator_name, correlation_id, tags, execution_id,
       manifest_id, batch_id
FROM moved
CROSS JOIN told
LEFT JOIN begun ON begun.state = 'running';

-- name: end_executions
-- Executions come to their end; the step of another that waited for one is free to be taken again (the caller holds it
-- back if that other is paused), schedulers look whether something was waiting for room, and whoever waits for one of
-- them hears of it.
WITH ended AS (
    UPDATE tenuto.executions AS execution
    SET state = CASE WHEN execution.state = 'in_progress' THEN verdict.state ELSE execution.state END,
        ended_at = coalesce($5::timestamptz, clock_timestamp()),
        failed_steps = verdict.failed,
        error = coalesce(execution.error, verdict.error),
        paused_at = NULL,
        paused_by = NULL
    FROM unnest($1::uuid[], $2::text[], $3::integer[], $4::text[]) AS verdict (id, state, failed, error)
    WHERE execution.id = ANY ($1::uuid[])
      AND execution.id = verdict.id
      AND coalesce(execution.ended_at, 'infinity') = 'infinity'   -- not over the index of all that are active
    RETURNING execution.id, execution.schedule_id
), woken AS (
    UPDATE tenuto.tasks AS task
    SET state = 'queued', waits_for = NULL
    FROM ended
    WHERE task.waits_for = ANY ($1::uuid[])
      AND task.waits_for = ended.id
      AND task.state = 'waiting'
    RETURNING task.queue, task.execution_id, CASE WHEN task.limit_key IS NULL THEN 'queued ' ELSE 'limited ' END AS word
)
SELECT (SELECT array_agg(DISTINCT execution_id) FROM woken) AS waited,
       (SELECT count(pg_notify('tenuto', word || queue)) FROM (SELECT DISTINCT word, queue FROM woken) AS words),
       (SELECT count(pg_notify('tenuto', 'schedules'))
        WHERE EXISTS (
            SELECT
            FROM tenuto.occurrences
            WHERE decision = 'queued' AND schedule_id = ANY (ARRAY(SELECT schedule_id FROM ended))
        )),
       (SELECT count(pg_notify('tenuto_ended', id::text)) FROM ended);

-- name: hold_back
-- What would be tried again, of executions that are paused, waits for them to be resumed.
UPDATE tenuto.tasks
SET state = 'waiting'
WHERE execution_id = ANY ($1::uuid[])
  AND state IN ('queued', 'scheduled')
  AND EXISTS (SELECT FROM tenuto.executions WHERE executions.id = execution_id AND paused_at IS NOT NULL OFFSET 0);

-- name: not_begun
-- The tasks of executions that nobody holds, as who ends them needs to see them.
SELECT id, activity_id, fence, worker_id, kind, name, input, policy, attempt, failures, losses, queue,
       -rank AS priority, run_at, initiator_type, initiator_id, initiator_name, correlation_id, tags, execution_id,
       manifest_id, batch_id
FROM tenuto.tasks
WHERE id = ANY (ARRAY(SELECT id FROM tenuto.tasks WHERE execution_id = ANY ($1::uuid[])))
  AND state <> 'running'
ORDER BY id
FOR UPDATE;

-- name: begin
-- Executions come to be, with all their tasks: those of the first group may be taken, the others wait for theirs.
WITH execution AS (
    INSERT INTO tenuto.executions (
        id, schedule_id, schedule_name, version, origin, state, alone, plan, current_group, first_group, total_groups,
        total_steps, due_at, started_at, initiator_type, initiator_id, initiator_name, parent_task_id, retry_of
    )
    SELECT id, schedule_id, schedule_name, version, origin, 'in_progress', alone, plan, first_group, first_group,
           total_groups, total_steps, due_at, started_at, initiator_type, initiator_id, initiator_name, parent_task_id,
           retry_of
    FROM unnest(
        $1::uuid[], $2::uuid[], $3::text[], $4::integer[], $5::text[], $6::boolean[], $7::jsonb[], $8::integer[],
        $9::integer[], $10::integer[], $11::timestamptz[], $12::timestamptz[], $13::text[], $14::text[], $15::text[],
        $16::uuid[], $17::uuid[]
    ) AS new (
        id, schedule_id, schedule_name, version, origin, alone, plan, first_group, total_groups, total_steps, due_at,
        started_at, initiator_type, initiator_id, initiator_name, parent_task_id, retry_of
    )
), step AS (
    INSERT INTO tenuto.tasks (
        id, activity_id, state, queue, rank, run_at, kind, name, input, policy, created_at, limit_key, limit_max,
        initiator_type, initiator_id, initiator_name, correlation_id, execution_id, group_index, step_index
    )
    SELECT id, id, CASE WHEN first THEN 'queued' ELSE 'waiting' END, queue, rank, created_at, kind, name, input,
           policy, created_at, limit_key, limit_max, initiator_type, initiator_id, initiator_name, correlation_id,
           execution_id, group_index, step_index
    FROM unnest(
        $18::uuid[], $19::boolean[], $20::text[], $21::smallint[], $22::text[], $23::text[], $24::jsonb[], $25::jsonb[],
        $26::timestamptz[], $27::text[], $28::integer[], $29::text[], $30::text[], $31::text[], $32::text[],
        $33::uuid[], $34::integer[], $35::integer[]
    ) AS new (
        id, first, queue, rank, kind, name, input, policy, created_at, limit_key, limit_max, initiator_type,
        initiator_id, initiator_name, correlation_id, execution_id, group_index, step_index
    )
    RETURNING state, queue, rank, limit_key IS NOT NULL AS limited
)
SELECT count(pg_notify('tenuto', concat_ws(' ', CASE WHEN limited THEN 'limited' ELSE 'queued' END, queue, rank)))
FROM (SELECT DISTINCT queue, rank, limited FROM step WHERE state = 'queued') AS words;

-- name: begin_at_once
-- The common case of a run by hand, in one statement: the schedule $2 is still the version $4 of that name, and if its runs
-- must be alone ($5) nothing of it is active or waits. Should another run have begun since this statement began to look,
-- the unique key of those that are alone refuses this one.
WITH schedule AS (
    UPDATE tenuto.schedules
    SET last_run_at = $9
    WHERE id = $2
      AND name = $3
      AND version = $4
      AND (NOT $5
           OR NOT EXISTS (SELECT FROM tenuto.executions WHERE schedule_id = $2 AND ended_at IS NULL OFFSET 0)
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
        total_steps, due_at, started_at, initiator_type, initiator_id, initiator_name
    )
    SELECT $1, id, $3, $4, 'manual', 'in_progress', $5, $6, 0, 0, $7, $8, $9, $9, $10, $11, $12
    FROM schedule
), step AS (
    INSERT INTO tenuto.tasks (
        id, activity_id, state, queue, rank, run_at, kind, name, input, policy, created_at, limit_key, limit_max,
        initiator_type, initiator_id, initiator_name, correlation_id, execution_id, group_index, step_index
    )
    SELECT new.id, new.id, CASE WHEN new.group_index = 0 THEN 'queued' ELSE 'waiting' END, queue, rank, $9, kind, name,
           input, policy, $9, limit_key, limit_max, $10, $11, $12, $1::uuid::text, $1, group_index, step_index
    FROM schedule
    CROSS JOIN unnest(
        $13::uuid[], $14::text[], $15::smallint[], $16::text[], $17::text[], $18::jsonb[], $19::jsonb[], $20::text[],
        $21::integer[], $22::integer[], $23::integer[]
    ) AS new (id, queue, rank, kind, name, input, policy, limit_key, limit_max, group_index, step_index)
    RETURNING state, queue, rank, limit_key IS NOT NULL AS limited
)
SELECT pg_notify('tenuto', concat_ws(' ', CASE WHEN limited THEN 'limited' ELSE 'queued' END, queue, rank))
FROM (SELECT DISTINCT queue, rank, limited FROM step WHERE state = 'queued') AS words;

-- name: cancel_executions
-- Executions are cancelled: final, whatever their running steps still come to.
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

-- name: ask_to_stop
-- The running tasks of executions are asked to stop, and their workers hear of it.
WITH asked AS (
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
FROM (SELECT DISTINCT worker_id FROM asked) AS holders;

-- name: family
-- An execution and all that were started by its steps, and by theirs, as far as they have not ended.
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

-- name: is_over
-- Whether nothing of an execution is left.
SELECT ended_at IS NOT NULL
FROM tenuto.executions
WHERE id = $1;

-- name: waits_for
-- Whether an execution waits, by way of its steps and of theirs, for another.
WITH RECURSIVE chain AS (
    SELECT $1::uuid AS id
    UNION
    SELECT tasks.waits_for
    FROM chain
    JOIN tenuto.tasks ON tasks.execution_id = chain.id
    WHERE tasks.waits_for IS NOT NULL
)
SELECT EXISTS (SELECT FROM chain WHERE id = $2);

-- name: last_of_step
-- The execution that this attempt at a step has started, else the last that an earlier one has. Not by their ids: those were
-- made on different machines.
SELECT *
FROM tenuto.executions
WHERE parent_task_id = $1
ORDER BY id = $2 DESC, started_at DESC, id DESC
LIMIT 1;

-- name: lock_step
-- Hold a step that is about to start something, unless somebody has asked it to stop or has taken it over: who asks after
-- this finds what it has started.
SELECT id
FROM tenuto.tasks
WHERE id = $1
  AND fence = $2
  AND worker_id = $3
  AND cancel_at IS NULL
FOR UPDATE;

-- name: children_of_task
-- The executions a step has started that have not ended.
SELECT id
FROM tenuto.executions
WHERE parent_task_id = $1 AND ended_at IS NULL
ORDER BY id;

-- name: pause
-- What has not begun stays back until it is resumed; what runs goes on to its end.
WITH paused AS (
    UPDATE tenuto.executions
    SET paused_at = $2, paused_by = $3
    WHERE id = $1 AND state = 'in_progress' AND paused_at IS NULL
    RETURNING id
), held AS (
    UPDATE tenuto.tasks
    SET state = 'waiting'
    WHERE execution_id = ANY (ARRAY(SELECT id FROM paused))
      -- those that wait for another execution too, to meet whoever is just letting them go
      AND (state IN ('queued', 'scheduled') OR waits_for IS NOT NULL)
      AND state <> 'running'
    RETURNING id
)
SELECT id, (SELECT count(*) FROM held) AS held
FROM paused;

-- name: resume
-- What was held back of the current group goes on. What waits for another execution stays as it is, and is written all the
-- same, to meet whoever is just letting it go: that one may still see a pause, and hold it back.
WITH resumed AS (
    UPDATE tenuto.executions
    SET paused_at = NULL, paused_by = NULL
    WHERE id = $1 AND state = 'in_progress' AND paused_at IS NOT NULL
    RETURNING id, current_group
), released AS (
    UPDATE tenuto.tasks
    SET state = CASE
            WHEN waits_for IS NOT NULL THEN 'waiting'
            WHEN run_at > $2 THEN 'scheduled'
            ELSE 'queued'
        END
    FROM resumed
    WHERE tasks.execution_id = $1
      AND tasks.execution_id = resumed.id
      AND tasks.group_index = resumed.current_group
      AND tasks.state = 'waiting'
    RETURNING tasks.state, tasks.queue, tasks.limit_key IS NOT NULL AS limited
)
SELECT id,
       (SELECT count(pg_notify('tenuto', CASE WHEN state = 'queued' AND limited THEN 'limited' ELSE state END || ' ' || queue))
        FROM (SELECT DISTINCT state, queue, limited FROM released WHERE state <> 'waiting') AS words) AS woken
FROM resumed;

-- name: execution
-- One execution with everything known of it.
SELECT id, schedule_id, schedule_name, version, origin, state, alone, plan, current_group, first_group, total_groups,
       total_steps, failed_steps, error, due_at, started_at, ended_at, initiator_type, initiator_id, initiator_name,
       parent_task_id, retry_of, paused_at, paused_by, cancelled_at, cancel_type, cancel_id, cancel_name, cancel_reason
FROM tenuto.executions
WHERE id = $1;

-- name: steps
-- What there is of the steps of an execution: past attempts, and tasks that are open.
SELECT step_index, group_index, id, task_id, attempt, status, reason, final, created_at, run_at, claimed_at,
       started_at, ended_at, error, progress, worker_id, failures, losses,
       (SELECT workers.name FROM tenuto.workers WHERE workers.id = worker_id) AS worker
FROM tenuto.all_activities
WHERE execution_id = $1
ORDER BY step_index, attempt
LIMIT $2;

-- name: list_executions
-- Executions, newest first, below a key; every filter may be left out.
SELECT id, schedule_id, schedule_name, version, origin, state, current_group, first_group, total_groups, total_steps,
       failed_steps, error, due_at, started_at, ended_at, paused_at, paused_by, initiator_type, initiator_id,
       initiator_name, parent_task_id, retry_of, cancelled_at, cancel_name
FROM tenuto.executions
WHERE ($1::uuid IS NULL OR id < $1)
  AND ($2::text IS NULL OR state = $2)
  AND ($3::uuid IS NULL OR schedule_id = $3)
ORDER BY id DESC
LIMIT $4;

-- name: find_executions
-- Ids that begin with what a person typed.
SELECT id
FROM tenuto.executions
WHERE id BETWEEN $1 AND $2
ORDER BY id
LIMIT 3;

-- name: stuck
-- Executions that nothing moves any more: no task of their current group is left, or only waiting ones though the
-- execution is not paused. In normal operation there are none; those just being finished are left alone by their lock.
SELECT execution.id
FROM tenuto.executions AS execution
WHERE execution.ended_at IS NULL
  AND NOT EXISTS (
      SELECT
      FROM tenuto.tasks
      WHERE tasks.execution_id = execution.id
        AND tasks.group_index = execution.current_group
        AND (tasks.state <> 'waiting' OR tasks.waits_for IS NOT NULL OR execution.paused_at IS NOT NULL)
  )
ORDER BY execution.id
LIMIT $1;

-- name: lock_stuck
-- Of these, those that nobody else is working on.
SELECT id
FROM tenuto.executions
WHERE id = ANY ($1::uuid[]) AND ended_at IS NULL
ORDER BY id
FOR UPDATE SKIP LOCKED;

-- name: release_current
-- Tasks of the current group that wait though nothing holds them back.
WITH released AS (
    UPDATE tenuto.tasks AS task
    SET state = 'queued'
    FROM tenuto.executions AS execution
    WHERE task.execution_id = ANY ($1::uuid[])
      AND execution.id = task.execution_id
      AND execution.id = ANY ($1::uuid[])
      AND execution.state = 'in_progress'
      AND execution.paused_at IS NULL
      AND task.group_index = execution.current_group
      AND task.state = 'waiting'
      AND task.waits_for IS NULL
    RETURNING task.execution_id, task.queue, CASE WHEN task.limit_key IS NULL THEN 'queued ' ELSE 'limited ' END AS word
)
SELECT execution_id, pg_notify('tenuto', word || queue)
FROM (SELECT DISTINCT execution_id, word, queue FROM released) AS words;

-- name: waiting_for_the_ended
-- Steps that wait for an execution which has ended, or which never was.
WITH concerned AS MATERIALIZED (
    SELECT execution.id, execution.paused_at IS NOT NULL AS is_paused  -- held, so that nobody pauses it in between
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
    RETURNING task.id, task.queue, CASE WHEN task.limit_key IS NULL THEN 'queued ' ELSE 'limited ' END AS word
)
SELECT id, pg_notify('tenuto', word || queue)
FROM released;

-- name: abandoned
-- Executions in progress that a step of another has started which is no longer there. That such have not ended is said
-- for the index, which knows no states.
SELECT id
FROM tenuto.executions
WHERE parent_task_id IS NOT NULL
  AND state = 'in_progress'
  AND ended_at IS NULL
  AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = parent_task_id OFFSET 0)
ORDER BY id
LIMIT $1;

-- name: circles
-- Steps that wait for an execution which, by way of its own steps and of theirs, waits for the end of theirs: none would ever
-- end. Each with whether it has started what it waits for; of every circle one step has not.
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

-- name: oldest_open
-- The execution that has been open for longest.
SELECT id, schedule_name, started_at
FROM tenuto.executions
WHERE ended_at IS NULL
ORDER BY started_at, id
LIMIT 1;

-- name: forget_old
-- A small batch of executions that ended before the cut-off. Not what an open step has started: it has yet to read what that
-- came to, and would start it a second time.
DELETE FROM tenuto.executions
WHERE id = ANY (ARRAY(
    SELECT id
    FROM tenuto.executions
    WHERE ended_at < $1
      AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = parent_task_id OFFSET 0)
    ORDER BY ended_at
    LIMIT $2
))
RETURNING id;
