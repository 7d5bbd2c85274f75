-- name: enqueue_task
-- Create one task and notify the workers of its queue, or return that the caller must do so (`may_notify`). An existing
-- id or a unique key in use changes nothing. Send it once, with a new id: a caller without a reply must use
-- enqueue_tasks, which also checks whether the task has already ended.
{create_tasks}
FROM (VALUES ({new_task.scalars 1})) AS new ({new_task.names})
ON CONFLICT DO NOTHING -- guard: enqueue.existing_task
RETURNING id, CASE WHEN {may_notify} THEN pg_notify('tenuto', concat_ws(' ', {arrival}, queue, rank))::text END
    IS NOT NULL AS notified;

-- name: enqueue_tasks
-- Create many tasks and notify the workers of their queues. With $1, return that the caller must notify them if
-- `may_notify` says so. Tasks whose id (of a task or an activity), unique key or item key exists are not returned.
WITH created AS (
    {create_tasks}
    FROM unnest({new_task.arrays 2}) AS new ({new_task.names})
    -- guard: enqueue.ended_tasks, manifests.ended_run
    WHERE (SELECT activities.id FROM tenuto.activities WHERE activities.id = new.id) IS NULL
    ON CONFLICT DO NOTHING -- guard: enqueue.existing_tasks
    RETURNING id, queue, rank, {arrival} AS event
), events AS MATERIALIZED (
    SELECT DISTINCT event, queue, rank
    FROM created
    WHERE event <> 'waiting'
), notifier AS MATERIALIZED (
    -- decided once: if the lock becomes free in between, some queues would be notified and others not
    SELECT CASE WHEN $1 THEN {may_notify} ELSE true END AS notifies -- guard: enqueue.notification_of_transactions
    FROM events
    LIMIT 1
), notified AS (
    SELECT count(pg_notify('tenuto', concat_ws(' ', event, queue, rank))) AS notified_count
    FROM events
    WHERE (SELECT notifies FROM notifier) -- guard: enqueue.one_notifier_of_all_queues
)
SELECT id, (SELECT notified_count FROM notified) > 0 AS notified
FROM created;

-- name: enqueue_audited_tasks
-- Create tasks, each with its audit entry and, if given, its idempotency key, in one statement, because it is the most
-- frequent request to the web service (benchmark api); one result row for each, in their order. A key that was used for another request
-- creates nothing. A key that was used for this request created the task, and it may have ended after this statement
-- took its snapshot. With $1, return that the caller must notify the workers if `may_notify` says so.
WITH asked AS MATERIALIZED (
    SELECT *
    FROM ROWS FROM (
        unnest(
            $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
            $11::jsonb[], $12::jsonb[], $13::text[], $14::text[], $15::bytea[], $16::uuid[]
        ),
        unnest({new_task.arrays 17})
    ) WITH ORDINALITY AS a (
        audit_id, actor_type, actor_id, actor_name, source, request_id, action, target, reason, before, after, asker,
        key, fingerprint, subject, {new_task.names}, place
    )
), kept AS (
    INSERT INTO tenuto.requests (actor, key, fingerprint, subject, at)
    SELECT asker, key, fingerprint, subject, clock_timestamp()
    FROM asked
    WHERE key IS NOT NULL
    ORDER BY asker, key
    ON CONFLICT (actor, key) DO UPDATE
    SET at = requests.at
    WHERE requests.subject = excluded.subject
    RETURNING actor, key, xmax = 0 AS is_new
), allowed AS MATERIALIZED (
    SELECT asked.*, coalesce(kept.is_new, true) AS is_new,
           row_number() OVER (PARTITION BY asked.id ORDER BY asked.place) AS turn
    FROM asked
    LEFT JOIN kept ON kept.actor = asked.asker AND kept.key = asked.key
    WHERE asked.key IS NULL OR kept.key IS NOT NULL -- guard: one_shots.done_elsewhere
), made AS (
    {create_tasks}
    FROM allowed AS new
    WHERE is_new -- guard: one_shots.replayed_request
      AND turn = 1
      AND (SELECT past.id FROM tenuto.activities AS past WHERE past.id = new.id) IS NULL
    ON CONFLICT DO NOTHING
    RETURNING id, queue, rank, {arrival} AS event
), events AS MATERIALIZED (
    SELECT DISTINCT event, queue, rank
    FROM made
), notifier AS MATERIALIZED (
    -- decided once, as in enqueue_tasks
    SELECT CASE WHEN $1 THEN {may_notify} ELSE true END AS notifies -- guard: one_shots.notification_of_transactions
    FROM events
    LIMIT 1
), notified AS MATERIALIZED (
    SELECT count(pg_notify('tenuto', concat_ws(' ', event, queue, rank))) AS notified_count
    FROM events
    WHERE (SELECT notifies FROM notifier) -- guard: one_shots.one_notifier_of_all_queues
), entry AS (
    INSERT INTO tenuto.audit (
        id, at, actor_type, actor_id, actor_name, source, request_id, action, target, reason, before, after
    )
    SELECT audit_id, clock_timestamp(), actor_type, actor_id, actor_name, source, request_id, action, target, reason,
           before, after
    FROM allowed
    JOIN made ON made.id = allowed.id
    WHERE turn = 1
    ON CONFLICT DO NOTHING
    RETURNING id
), waiting AS (
    INSERT INTO tenuto.audit_unsealed (audit_id)
    SELECT id
    FROM entry
)
SELECT made.id IS NOT NULL AND allowed.turn = 1 AS created, -- guard: one_shots.equal_ids
       allowed.id IS NOT NULL AS allowed, (SELECT notified_count FROM notified) > 0 AS notified
FROM asked
LEFT JOIN allowed ON allowed.place = asked.place
LEFT JOIN made ON made.id = asked.id
ORDER BY asked.place;

-- name: delete_reinserted_tasks
-- Delete re-inserted tasks whose activity already exists. A task may have ended after enqueue_tasks took its
-- snapshot; a second statement sees it, because the worker that ended it has committed before the id can be inserted
-- again.
DELETE FROM tenuto.tasks
WHERE id = ANY (ARRAY(SELECT id FROM tenuto.activities WHERE id = ANY ($1::uuid[])))
RETURNING id;

-- name: has_first_activity
-- Return whether an activity of the first attempt at a task exists.
SELECT EXISTS (SELECT FROM tenuto.activities WHERE id = $1);

-- name: find_existing_task
-- Return the task for a request that created nothing: the task with id $1, open or ended, or the open task with
-- unique key $2. Null if the task with that key has ended in the meantime.
SELECT coalesce(
    (SELECT id FROM tenuto.tasks WHERE id = $1),
    (SELECT id FROM tenuto.activities WHERE id = $1),
    (SELECT id FROM tenuto.tasks WHERE unique_key = $2)
) AS id;

-- name: find_existing_tasks
-- Return those of the ids $1 that are ids of tasks, open or ended.
SELECT id FROM tenuto.tasks WHERE id = ANY ($1::uuid[])
UNION
SELECT id FROM tenuto.activities WHERE id = ANY ($1::uuid[])
ORDER BY id;
