-- name: lock_events
-- Take turns with all transactions that send, await or receive events of this name and key: each sees what the one
-- before has committed. Without it, an event and a wait that are stored at the same moment would miss each other.
SELECT pg_advisory_xact_lock(hashtext('tenuto events'), hashtext($1::text || ' ' || $2::text));

-- name: insert_event
-- Store an event, unless its id is known.
INSERT INTO tenuto.sent_events (id, name, key, payload, sent_at, expires_at, sender_type, sender_id, sender_name)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (id) DO NOTHING -- guard: events.one_per_id
RETURNING id;

-- name: load_event
-- Return one event.
SELECT id, name, key, payload, sent_at, expires_at, delivered_at, delivery_count, sender_type, sender_id, sender_name
FROM tenuto.sent_events
WHERE id = $1;

-- name: deliver_to_open_waits
-- End the open waits of this name and key with the event, and return their tasks. A wait whose deadline has passed or
-- whose task has ended does not receive it.
WITH open AS MATERIALIZED (
    SELECT task_id, step, number
    FROM tenuto.event_waits
    WHERE name = $1
      AND key = $2
      AND outcome IS NULL
      AND expires_at > $5 -- guard: events.not_after_the_deadline
      AND EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = task_id) -- guard: events.not_to_ended_tasks
    ORDER BY task_id, step, number
    FOR UPDATE
)
UPDATE tenuto.event_waits AS wait
SET outcome = 'received', ended_at = $5, event_id = $3, payload = $4
FROM open
WHERE wait.task_id = open.task_id
  AND wait.step = open.step
  AND wait.number = open.number
RETURNING wait.task_id;

-- name: mark_delivered
-- Record that an event was delivered to so many waits.
UPDATE tenuto.sent_events
SET delivered_at = $2, delivery_count = $3
WHERE id = $1;

-- name: wake_tasks
-- Queue the tasks that gave up their slots, now. A task that is held by a pause becomes due and stays held; a running
-- task finds what it waited for when it gives up its slot (lock_open_waits).
WITH parked AS MATERIALIZED (
    SELECT id
    FROM tenuto.tasks
    WHERE id = ANY ($1::uuid[])
      AND state IN ('scheduled', 'waiting')
      AND waits_for IS NULL
      AND began_at IS NOT NULL -- guard: events.only_deferred_tasks
    ORDER BY id
    FOR UPDATE
), woken AS (
    UPDATE tenuto.tasks AS task
    SET state = CASE WHEN task.state = 'scheduled' THEN 'queued' ELSE task.state END, -- guard: events.paused_stays_held
        parked_for = NULL,
        run_at = $2
    FROM parked
    WHERE task.id = parked.id
      AND task.id = ANY ($1::uuid[])
    RETURNING task.id, task.state, task.queue, task.limit_key IS NOT NULL AS limited
)
SELECT id,
       (SELECT count(pg_notify('tenuto', CASE WHEN limited THEN 'limited ' ELSE 'queued ' END || queue))
        FROM (SELECT DISTINCT queue, limited FROM woken WHERE state = 'queued') AS events) AS notified
FROM woken;

-- name: insert_wait
-- Begin the n-th wait of a step. Only the worker that holds the task may do so, and a stored wait stays. The lock keeps
-- other workers from claiming the task before this is committed. With $11 a task that is being cancelled begins none.
INSERT INTO tenuto.event_waits (task_id, step, number, name, key, registered_at, expires_at, attempt, log)
SELECT tasks.id, $4, $5, $6, $7, $8, $9, tasks.attempt, $10
FROM tenuto.tasks
WHERE tasks.id = $1
  AND tasks.fence = $2 -- guard: events.wait_fence
  AND tasks.worker_id = $3 -- guard: events.wait_worker
  AND tasks.state = 'running'
  AND tasks.lease_until > clock_timestamp() -- guard: events.wait_lease
  AND (NOT $11::boolean OR tasks.cancel_at IS NULL) -- guard: workflows.cancelled_starts_no_child
FOR SHARE -- guard: events.wait_row_lock
ON CONFLICT (task_id, step, number) DO UPDATE
SET name = event_waits.name
RETURNING task_id, step, number, name, key, registered_at, expires_at, outcome, ended_at, event_id, payload;

-- name: take_kept_event
-- Take the oldest kept event of this name and key that was sent before the deadline of the wait: no other wait gets it.
UPDATE tenuto.sent_events
SET delivered_at = $3, delivery_count = 1
WHERE id = (
    SELECT id
    FROM tenuto.sent_events
    WHERE name = $1
      AND key = $2
      AND delivered_at IS NULL -- guard: events.kept_event_is_taken_once
      AND expires_at > $3 -- guard: events.expired_event_is_not_taken
      AND sent_at <= $4
    ORDER BY sent_at, id
    LIMIT 1
)
RETURNING id, payload;

-- name: end_wait
-- End an open wait.
UPDATE tenuto.event_waits
SET outcome = $4, ended_at = $5, event_id = $6, payload = $7
WHERE task_id = $1 AND step = $2 AND number = $3 AND outcome IS NULL
RETURNING task_id, step, number, name, key, registered_at, expires_at, outcome, ended_at, event_id, payload;

-- name: end_waits_of_task
-- End the open waits of a task for an event that Tenuto itself delivers.
UPDATE tenuto.event_waits
SET outcome = 'received', ended_at = $3
WHERE task_id = $1 AND name = $2 AND outcome IS NULL
RETURNING task_id;

-- name: end_child_waits
-- End the open waits of workflows (task $1, step $2) for child tasks ($3) that have ended, with how they ended ($4).
UPDATE tenuto.event_waits AS wait
SET outcome = 'received', ended_at = $5, payload = given.payload
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::jsonb[]) AS given (task_id, step, child, payload)
WHERE wait.task_id = ANY ($1::uuid[])
  AND wait.task_id = given.task_id
  AND wait.step = given.step
  AND wait.key = given.child -- guard: workflows.end_of_this_child
  AND wait.outcome IS NULL
RETURNING wait.task_id;

-- name: list_open_children
-- Return the open child tasks that a workflow waits for.
SELECT wait.key::uuid AS id
FROM tenuto.event_waits AS wait
WHERE wait.task_id = $1
  AND wait.name LIKE 'tenuto.child %'
  AND wait.outcome IS NULL
ORDER BY wait.step
LIMIT 10000;

-- name: list_abandoned_children
-- Return open child tasks whose workflow has ended.
SELECT child.id
FROM tenuto.event_waits AS wait
JOIN tenuto.tasks AS child ON child.id = wait.key::uuid
WHERE wait.name >= 'tenuto.child '
  AND wait.name < 'tenuto.child!'
  AND wait.outcome IS NULL
  AND child.cancel_at IS NULL
  -- guard: workflows.children_of_open_workflows
  AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = wait.task_id OFFSET 0)
ORDER BY child.id
LIMIT $1;

-- name: list_waits_of_task
-- Return the waits of a task, in the order in which they began.
SELECT task_id, step, number, name, key, registered_at, expires_at, outcome, ended_at, event_id, payload
FROM tenuto.event_waits
WHERE task_id = $1
ORDER BY registered_at, step, number
LIMIT 10000;

-- name: load_deferred_log
-- Return the log of the attempt before it last gave up its slot. Each stored log contains the ones before it, so the
-- longest is the last.
SELECT log
FROM (
    SELECT log
    FROM tenuto.event_waits
    WHERE task_id = $1 AND attempt = $2
    UNION ALL
    SELECT output ->> 'log'
    FROM tenuto.chain_steps
    WHERE task_id = $1 AND name LIKE 'sleep in %' AND (output ->> 'attempt')::integer = $2::integer
) AS stored
WHERE log IS NOT NULL
ORDER BY length(log) DESC
LIMIT 1;

-- name: lock_open_waits
-- Return which of these waits (task $1, step $2, number $3) are open, and let no sender end them until the transaction
-- ends: their tasks are about to give up their slots.
SELECT wait.task_id, wait.step, wait.number
FROM tenuto.event_waits AS wait
JOIN unnest($1::uuid[], $2::text[], $3::integer[]) AS given (task_id, step, number)
  ON wait.task_id = given.task_id AND wait.step = given.step AND wait.number = given.number
WHERE wait.task_id = ANY ($1::uuid[])
  AND wait.outcome IS NULL
ORDER BY wait.task_id, wait.step, wait.number
-- guard: events.lock_before_defer
FOR UPDATE OF wait;

-- name: copy_received_waits
-- Copy what the old tasks $1 have received to the new tasks $2. Waits that timed out begin again.
INSERT INTO tenuto.event_waits (
    task_id, step, number, name, key, registered_at, expires_at, attempt, outcome, ended_at, event_id, payload
)
SELECT pair.new, wait.step, wait.number, wait.name, wait.key, wait.registered_at, wait.expires_at, 0, wait.outcome,
       wait.ended_at, wait.event_id, wait.payload
FROM unnest($1::uuid[], $2::uuid[]) AS pair (old, new)
JOIN tenuto.event_waits AS wait ON wait.task_id = pair.old
WHERE wait.task_id = ANY ($1::uuid[])
  AND wait.outcome = 'received'
  AND wait.name <> 'tenuto.approval'
  -- guard: workflows.retry_starts_failed_child_again
  AND NOT (wait.name LIKE 'tenuto.child %' AND wait.payload ->> 'status' NOT IN ('completed', 'completed_with_warning'))
ON CONFLICT (task_id, step, number) DO NOTHING
RETURNING task_id;

-- name: list_events
-- Return events, newest first, below a cursor.
SELECT id, name, key, payload, sent_at, expires_at, delivered_at, delivery_count, sender_type, sender_id, sender_name
FROM tenuto.sent_events
WHERE ($1::text IS NULL OR name = $1)
  AND ($2::text IS NULL OR key = $2)
  AND ($3::boolean IS NULL OR (delivered_at IS NOT NULL) = $3)
  AND ($4::timestamptz IS NULL OR (sent_at, id) < ($4, $5::uuid))
ORDER BY sent_at DESC, id DESC
LIMIT $6;

-- name: list_events_since
-- Return the events that were sent after an instant, the first one first.
SELECT id, name, key, sent_at
FROM tenuto.sent_events
WHERE sent_at > $1
ORDER BY sent_at, id
LIMIT $2;

-- name: list_open_waits
-- Return the tasks that wait for events, the first deadline first, above a cursor.
SELECT wait.task_id, wait.step, wait.number, wait.name, wait.key, wait.registered_at, wait.expires_at,
       task.name AS job, task.kind, task.queue, task.execution_id
FROM tenuto.event_waits AS wait
JOIN tenuto.tasks AS task ON task.id = wait.task_id
WHERE wait.outcome IS NULL
  AND wait.name NOT LIKE 'tenuto.child %'
  AND ($1::text IS NULL OR wait.name = $1)
  AND ($2::text IS NULL OR wait.key = $2)
  AND ($3::timestamptz IS NULL OR (wait.expires_at, wait.task_id) > ($3, $4::uuid))
ORDER BY wait.expires_at, wait.task_id, wait.step, wait.number
LIMIT $5;

-- name: delete_expired_events
-- Delete a small batch of events whose time has passed.
DELETE FROM tenuto.sent_events
WHERE id = ANY (ARRAY(SELECT id FROM tenuto.sent_events WHERE expires_at < $1 ORDER BY expires_at LIMIT $2))
RETURNING id;

-- name: delete_orphaned_waits
-- Delete a small batch of waits whose task no longer exists.
DELETE FROM tenuto.event_waits
WHERE (task_id, step, number) IN (
    SELECT task_id, step, number
    FROM tenuto.event_waits
    WHERE registered_at < $1
      AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = task_id) -- guard: events.waits_of_open_tasks
    ORDER BY registered_at
    LIMIT $2
)
RETURNING task_id;

-- name: list_kept_events
-- Return events sent before $1 that no task has received, and that have not expired, oldest first.
SELECT id, name, key, sent_at, expires_at
FROM tenuto.sent_events
WHERE delivered_at IS NULL AND sent_at < $1 AND expires_at > $2
ORDER BY sent_at, id
LIMIT $3;

-- name: list_overdue_waits
-- Return waits whose deadline was before $1, although their tasks neither run nor are held by a pause.
SELECT wait.task_id, wait.name, wait.key, wait.expires_at, task.state
FROM tenuto.event_waits AS wait
JOIN tenuto.tasks AS task ON task.id = wait.task_id
WHERE wait.outcome IS NULL
  AND wait.expires_at < $1
  AND task.state IN ('scheduled', 'queued')
  AND task.run_at < $1 -- else it failed, and is retried later
ORDER BY wait.expires_at, wait.task_id
LIMIT $2;

-- name: count_events
-- Count open waits, kept events and pending approvals, each up to $1, and return the age of the oldest approval. Waits of
-- ended tasks and expired events stay until they are deleted, and are not counted.
SELECT (SELECT count(*)
        FROM (
            SELECT
            FROM tenuto.event_waits
            WHERE outcome IS NULL
              AND name NOT LIKE 'tenuto.child %'
              AND EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = task_id)
            LIMIT $1
        ) AS waits) AS wait_count,
       (SELECT count(*)
        FROM (
            SELECT
            FROM tenuto.sent_events
            WHERE delivered_at IS NULL AND expires_at > clock_timestamp()
            LIMIT $1
        ) AS kept) AS kept_count,
       (SELECT count(*)
        FROM (
            SELECT
            FROM tenuto.approvals
            WHERE state = 'pending' AND EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = approvals.id)
            LIMIT $1
        ) AS pending) AS approval_count,
       (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(requested_at)), 0)::double precision
        FROM tenuto.approvals
        WHERE state = 'pending' AND EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = approvals.id)) AS approval_age_seconds;
