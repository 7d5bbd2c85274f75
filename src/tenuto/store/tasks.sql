-- name: start_one
-- Create one task and wake who may take it. A repeated id or a unique key in use changes nothing. To be sent once, with an
-- id that was made for it: whoever got no reply must ask start_many, which also looks whether the task has been and gone.
INSERT INTO tenuto.tasks (
    id, activity_id, state, queue, rank, run_at, kind, name, input, policy, created_at, unique_key, limit_key, limit_max,
    tags, initiator_type, initiator_id, initiator_name, correlation_id, parent_id, origin
)
VALUES ($1, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)
ON CONFLICT DO NOTHING
RETURNING id, pg_notify(
    'tenuto',
    concat_ws(' ', CASE WHEN limit_key IS NULL OR state <> 'queued' THEN state ELSE 'limited' END, queue, rank)
);

-- name: start_many
-- Create many tasks at once; those whose id (as a task or as an activity) or unique key is there already are left out of
-- the answer.
INSERT INTO tenuto.tasks (
    id, activity_id, state, queue, rank, run_at, kind, name, input, policy, created_at, unique_key, limit_key,
    limit_max, tags, initiator_type, initiator_id, initiator_name, correlation_id, parent_id, origin
)
SELECT id, id, state, queue, rank, run_at, kind, name, input, policy, created_at, unique_key, limit_key,
       limit_max, tags::text[], initiator_type, initiator_id, initiator_name, correlation_id, parent_id,
       origin
FROM unnest(
    $1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::timestamptz[], $6::text[], $7::text[], $8::jsonb[],
    $9::jsonb[], $10::timestamptz[], $11::text[], $12::text[], $13::integer[], $14::text[], $15::text[], $16::text[],
    $17::text[], $18::text[], $19::uuid[], $20::text[]
) AS new (
    id, state, queue, rank, run_at, kind, name, input, policy, created_at, unique_key, limit_key, limit_max, tags,
    initiator_type, initiator_id, initiator_name, correlation_id, parent_id, origin
)
WHERE (SELECT activities.id FROM tenuto.activities WHERE activities.id = new.id) IS NULL
ON CONFLICT DO NOTHING
RETURNING id;

-- name: take_back
-- Of tasks that were created just now, those that have been before: they had ended since the statement that created them began
-- to look. Seen by a second look, because whoever ends a task is out of the way before it can be created anew.
DELETE FROM tenuto.tasks
WHERE id = ANY (ARRAY(SELECT id FROM tenuto.activities WHERE id = ANY ($1::uuid[])))
RETURNING id;

-- name: standing
-- The task that stands for a request which created nothing: the one with the id $1, open or past, or the open one with
-- the unique key $2. None if that one has ended meanwhile.
SELECT coalesce(
    (SELECT id FROM tenuto.tasks WHERE id = $1),
    (SELECT id FROM tenuto.activities WHERE id = $1),
    (SELECT id FROM tenuto.tasks WHERE unique_key = $2)
) AS id;

-- name: wake
-- Tell the services: "queued mail", "queued mail -5" (new, with this rank), "limited mail" (with a limited key),
-- "scheduled mail", "cancel <worker>", "limits".
SELECT pg_notify('tenuto', word)
FROM unnest($1::text[]) AS word;

-- name: promote
-- What has fallen due becomes free to take. Says how many, when the next one is due, and whether claims of the queues
-- $3 must heed a limit: one of them is limited or paused, or holds tasks with a limited key.
WITH due AS (
    UPDATE tenuto.tasks
    SET state = 'queued'
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM tenuto.tasks
        WHERE state = 'scheduled' AND run_at <= $1
        ORDER BY run_at
        LIMIT $2
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING queue, limit_key IS NOT NULL AS limited
), woken AS (
    SELECT pg_notify('tenuto', CASE WHEN limited THEN 'limited ' ELSE 'queued ' END || queue)
    FROM (SELECT DISTINCT queue, limited FROM due) AS words
)
SELECT (SELECT count(*) FROM due) AS promoted,
       (SELECT count(*) FROM woken) AS woken,
       (SELECT min(run_at) FROM tenuto.tasks WHERE state = 'scheduled' AND run_at > $1) AS next_due,
       EXISTS (SELECT FROM due WHERE limited)
       OR EXISTS (
           SELECT FROM tenuto.queues
           WHERE name = ANY ($3::text[]) AND (max_running IS NOT NULL OR paused_at IS NOT NULL)
       )
       OR EXISTS (
           SELECT FROM tenuto.tasks
           WHERE state = 'queued' AND limit_key IS NOT NULL AND queue = ANY ($3::text[])
       ) AS limited;

-- name: claim
-- Take up to $4 free tasks of the queues $3 that have no limit, most urgent first, each queue from its own bound on, but
-- not the tasks $8. The array form keeps the index scan under a generic plan. A worker declared dead takes nothing.
UPDATE tenuto.tasks
SET state = 'running',
    worker_id = $1,
    fence = fence + 1,
    claimed_at = clock_timestamp(),
    lease_until = clock_timestamp() + $2::interval
WHERE id = ANY (ARRAY(
    SELECT picked.id
    FROM unnest($3::text[], $5::smallint[], $6::timestamptz[], $7::uuid[]) AS wanted (queue, rank, run_at, id)
    CROSS JOIN LATERAL (
        SELECT free.id, free.rank, free.run_at
        FROM tenuto.tasks AS free
        WHERE free.state = 'queued'
          AND free.limit_key IS NULL
          AND free.queue = wanted.queue
          AND (free.rank, free.run_at, free.id) > (wanted.rank, wanted.run_at, wanted.id)
          AND free.id <> ALL ($8::uuid[])
        ORDER BY free.rank, free.run_at, free.id
        LIMIT $4
        FOR UPDATE SKIP LOCKED
    ) AS picked
    WHERE wanted.queue NOT IN (
        SELECT name FROM tenuto.queues WHERE max_running IS NOT NULL OR paused_at IS NOT NULL
    )
    ORDER BY picked.rank, picked.run_at, picked.id
    LIMIT $4
))
  AND EXISTS (SELECT FROM tenuto.workers WHERE workers.id = $1 AND ended_at IS NULL)
RETURNING id, activity_id, fence, worker_id, kind, name, input, policy, attempt, failures, losses, queue,
          -rank AS priority, run_at, initiator_type, initiator_id, initiator_name, correlation_id, tags, execution_id,
          manifest_id, batch_id;

-- name: lock_limits
-- Only one claim under limits at a time, so that what it counts stays true until it has taken. All others wait for it: one
-- that stalls in the middle, because its process is frozen or its line silent, is thrown out.
SELECT set_config('idle_in_transaction_session_timeout', '2000', true),
       pg_advisory_xact_lock(hashtext('tenuto limits'));

-- name: claim_under_limits
-- As claim, for all tasks of the queues $3 but not the tasks $7: never more running than the limit of a queue, a key, a
-- manifest, its group or all manifests, counting live leases, but not what stands by, and never two on their last chance.
-- Of each queue at most $6 keys are looked at, from the one after $5 on. Each row also tells where that ended (null: at the
-- last key; unchanged: the queue had no room); one without a task tells nothing else.
WITH RECURSIVE room AS MATERIALIZED (
    SELECT wanted.queue,
           wanted.after,
           wanted.place,
           CASE
               WHEN queues.paused_at IS NOT NULL THEN 0
               WHEN queues.max_running IS NULL THEN $4::integer
               ELSE greatest(0, queues.max_running - (
                   SELECT count(*)
                   FROM tenuto.tasks AS held
                   WHERE held.state = 'running' AND NOT held.standby AND held.queue = wanted.queue
                     AND held.lease_until > clock_timestamp()
               ))
           END AS free
    FROM unnest($3::text[], $5::text[]) WITH ORDINALITY AS wanted (queue, after, place)
    LEFT JOIN tenuto.queues ON queues.name = wanted.queue
), keys AS (
    -- keys that have something to take, found by hopping along the index
    SELECT room.queue,
           (SELECT min(limit_key) FROM tenuto.tasks
            WHERE state = 'queued' AND limit_key IS NOT NULL AND tasks.queue = room.queue AND limit_key > room.after) AS key,
           1 AS hops
    FROM room
    WHERE room.free > 0
    UNION ALL
    SELECT keys.queue,
           (SELECT min(limit_key) FROM tenuto.tasks
            WHERE state = 'queued' AND limit_key IS NOT NULL AND tasks.queue = keys.queue AND limit_key > keys.key),
           keys.hops + 1
    FROM keys
    WHERE keys.key IS NOT NULL AND keys.hops < $6::integer
), reached AS MATERIALIZED (
    SELECT array_agg(CASE WHEN room.free > 0 THEN last.key ELSE room.after END ORDER BY room.place) AS ends
    FROM room
    LEFT JOIN (SELECT queue, key FROM keys WHERE hops = $6::integer) AS last ON last.queue = room.queue
), key_room AS MATERIALIZED (
    SELECT keys.queue, keys.key,
           CASE
               -- the items of a batch share its key: of one that is paused or cancelled nothing begins
               WHEN (SELECT coalesce(paused_at, cancelled_at) FROM tenuto.batches WHERE batches.id = foremost.batch_id)
                    IS NOT NULL THEN 0
               ELSE foremost.limit_max -
                    (SELECT count(*) FROM tenuto.tasks AS held
                     WHERE held.state = 'running' AND NOT held.standby AND held.limit_key = keys.key
                       AND held.lease_until > clock_timestamp())
           END AS free
    FROM keys
    CROSS JOIN LATERAL (
        SELECT limit_max, batch_id
        FROM tenuto.tasks
        WHERE state = 'queued' AND limit_key = keys.key AND tasks.queue = keys.queue
        ORDER BY rank, run_at, id
        LIMIT 1
    ) AS foremost
    WHERE keys.key IS NOT NULL
), candidates AS MATERIALIZED (
    SELECT room.queue, NULL AS key, NULL::bigint AS key_free, picked.*
    FROM room
    CROSS JOIN LATERAL (
        SELECT free.id, free.rank, free.run_at, NULL::uuid AS manifest_id, NULL AS limit_group, free.last_chance
        FROM tenuto.tasks AS free
        WHERE free.state = 'queued' AND free.limit_key IS NULL AND free.queue = room.queue AND free.id <> ALL ($7::uuid[])
        ORDER BY free.rank, free.run_at, free.id
        LIMIT room.free
        FOR UPDATE SKIP LOCKED
    ) AS picked
    UNION ALL
    SELECT key_room.queue, key_room.key, key_room.free, picked.*
    FROM key_room
    CROSS JOIN LATERAL (
        SELECT free.id, free.rank, free.run_at, free.manifest_id, free.limit_group, free.last_chance
        FROM tenuto.tasks AS free
        WHERE free.state = 'queued'
          AND free.limit_key = key_room.key
          AND free.queue = key_room.queue
          AND NOT free.last_chance
          AND free.id <> ALL ($7::uuid[])
        ORDER BY free.rank, free.run_at, free.id
        LIMIT least($4::integer, key_room.free)
    ) AS picked
    WHERE key_room.free > 0
    UNION ALL
    -- of those on their last chance the first of each key, unless one runs already; in the end at most one of them is taken
    SELECT key_room.queue, key_room.key, key_room.free, picked.*
    FROM key_room
    CROSS JOIN LATERAL (
        SELECT free.id, free.rank, free.run_at, free.manifest_id, free.limit_group, free.last_chance
        FROM tenuto.tasks AS free
        WHERE free.last_chance
          AND free.state = 'queued'
          AND free.limit_key = key_room.key
          AND free.queue = key_room.queue
          AND free.id <> ALL ($7::uuid[])
        ORDER BY free.rank, free.run_at, free.id
        LIMIT 1
    ) AS picked
    WHERE key_room.free > 0
      AND NOT EXISTS (
          SELECT
          FROM tenuto.tasks AS alone
          WHERE alone.last_chance AND alone.state = 'running' AND alone.lease_until > clock_timestamp()
      )
), held AS MATERIALIZED (
    -- what is active of manifests; looked at only if there is something to take of one
    SELECT tasks.manifest_id, tasks.limit_group, count(*) AS active
    FROM tenuto.tasks
    WHERE state = 'running' AND NOT standby AND manifest_id IS NOT NULL AND lease_until > clock_timestamp()
      AND EXISTS (SELECT FROM candidates WHERE candidates.manifest_id IS NOT NULL)
    GROUP BY tasks.manifest_id, tasks.limit_group
), within_key AS (
    -- each cut to its room in turn: a key shared by several queues, manifests, groups, all manifests, the queue. Within a
    -- rank the keys take turns, so that nobody who has little waiting is shut out by who has much.
    SELECT *,
           CASE WHEN key IS NULL THEN row_number() OVER (PARTITION BY queue, key ORDER BY rank, run_at, id)
                ELSE row_number() OVER (PARTITION BY key ORDER BY rank, run_at, id) END AS turn,
           min(key_free) OVER (PARTITION BY key) AS room_in_key
    FROM candidates
), within_manifest AS (
    SELECT within_key.*,
           row_number() OVER (PARTITION BY within_key.manifest_id ORDER BY rank, turn, run_at, within_key.id) AS place,
           (SELECT manifests.max_active - coalesce(
                (SELECT sum(active) FROM held WHERE held.manifest_id = manifests.id), 0)
            FROM tenuto.manifests WHERE manifests.id = within_key.manifest_id) AS room_in_manifest
    FROM within_key
    WHERE key IS NULL OR turn <= room_in_key
), within_group AS (
    SELECT within_manifest.id, rank, run_at, turn, queue, manifest_id, limit_group, last_chance,
           row_number() OVER (PARTITION BY limit_group ORDER BY rank, turn, run_at, within_manifest.id) AS place,
           (SELECT CASE
                       WHEN NOT enabled THEN 0
                       ELSE max_active - coalesce(
                           (SELECT sum(active) FROM held WHERE held.limit_group = manifest_groups.name), 0)
                   END
            FROM tenuto.manifest_groups WHERE manifest_groups.name = within_manifest.limit_group) AS room_in_group
    FROM within_manifest
    WHERE manifest_id IS NULL OR room_in_manifest IS NULL OR place <= room_in_manifest
), within_all AS (
    SELECT id, rank, run_at, turn, queue, manifest_id, last_chance,
           count(manifest_id) OVER (ORDER BY rank, turn, run_at, id) AS place,
           (SELECT CASE
                       WHEN NOT enabled THEN 0
                       ELSE max_active - coalesce((SELECT sum(active) FROM held), 0)
                   END
            FROM tenuto.manifest_groups WHERE name = '*') AS room_in_all
    FROM within_group
    WHERE limit_group IS NULL OR room_in_group IS NULL OR place <= room_in_group
), placed AS (
    SELECT within_all.id, rank, run_at, turn, room.free, last_chance,
           row_number() OVER (PARTITION BY within_all.queue ORDER BY rank, turn, run_at, within_all.id) AS place_in_queue
    FROM within_all
    JOIN room ON room.queue = within_all.queue
    WHERE manifest_id IS NULL OR room_in_all IS NULL OR within_all.place <= room_in_all
), fitting AS (
    SELECT id, rank, run_at, turn, last_chance,
           row_number() OVER (PARTITION BY last_chance ORDER BY rank, turn, run_at, id) AS place
    FROM placed
    WHERE place_in_queue <= free
), taken AS (
    UPDATE tenuto.tasks
    SET state = 'running',
        worker_id = $1,
        fence = fence + 1,
        claimed_at = clock_timestamp(),
        lease_until = clock_timestamp() + $2::interval
    WHERE id = ANY (ARRAY(
        -- only what is chosen is locked, and only if nobody has cancelled it meanwhile
        SELECT chosen.id
        FROM tenuto.tasks AS chosen
        WHERE chosen.state = 'queued'
          AND chosen.id = ANY (ARRAY(
              SELECT id
              FROM fitting
              WHERE NOT last_chance OR place = 1
              ORDER BY rank, turn, run_at, id
              LIMIT $4
          ))
        FOR UPDATE SKIP LOCKED
    ))
      AND EXISTS (SELECT FROM tenuto.workers WHERE workers.id = $1 AND ended_at IS NULL)
    RETURNING id, activity_id, fence, worker_id, kind, name, input, policy, attempt, failures, losses, queue,
              -rank AS priority, run_at, initiator_type, initiator_id, initiator_name, correlation_id, tags, execution_id,
              manifest_id, batch_id,
              CASE WHEN limit_key IS NOT NULL AND execution_id IS NULL
                   THEN json_build_array(queue, limit_key, limit_max, manifest_id, limit_group, batch_id)::text END AS seat
)
SELECT reached.ends, taken.*
FROM reached
LEFT JOIN taken ON true;

-- name: stand_by
-- Take up to $4 of the tasks that share all their limits with what a worker holds, for each such seat $3 as
-- claim_under_limits tells it, each from its own bound on, but not the tasks $5. They begin only once such a one has ended, in
-- its seat; until then they count under no limit, so nobody needs to count, and nobody waits. Batches are held first, so that
-- nobody pauses or cancels one in between.
WITH lots AS MATERIALIZED (
    SELECT id
    FROM tenuto.batches
    WHERE id = ANY (ARRAY(SELECT (seat ->> 5)::uuid FROM unnest($3::jsonb[]) AS seat))
      AND paused_at IS NULL
      AND cancelled_at IS NULL
    ORDER BY id
    FOR SHARE
), wanted AS MATERIALIZED (
    SELECT *
    FROM unnest($3::jsonb[], $6::smallint[], $7::timestamptz[], $8::uuid[]) AS wanted (seat, rank, run_at, id)
    WHERE (seat ->> 5 IS NULL OR (seat ->> 5)::uuid IN (SELECT id FROM lots))
      AND seat ->> 0 NOT IN (SELECT name FROM tenuto.queues WHERE paused_at IS NOT NULL)
      AND (seat ->> 3 IS NULL
           OR NOT EXISTS (SELECT FROM tenuto.manifest_groups WHERE name IN (seat ->> 4, '*') AND NOT enabled))
)
UPDATE tenuto.tasks
SET state = 'running',
    standby = true,
    worker_id = $1,
    fence = fence + 1,
    claimed_at = clock_timestamp(),
    lease_until = clock_timestamp() + $2::interval
WHERE id = ANY (ARRAY(
    SELECT picked.id
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT free.id, free.limit_max, free.manifest_id, free.limit_group, free.batch_id, free.execution_id,
               free.last_chance
        FROM tenuto.tasks AS free
        WHERE free.state = 'queued'
          AND free.limit_key IS NOT NULL
          AND free.queue = wanted.seat ->> 0
          AND free.limit_key = wanted.seat ->> 1
          AND (free.rank, free.run_at, free.id) > (wanted.rank, wanted.run_at, wanted.id)
        ORDER BY free.rank, free.run_at, free.id
        LIMIT $4
        FOR UPDATE SKIP LOCKED
    ) AS picked
    -- (not in there, where the planner would take them for so rare that it sorts all there is)
    WHERE picked.limit_max = (wanted.seat ->> 2)::integer
      AND picked.manifest_id IS NOT DISTINCT FROM (wanted.seat ->> 3)::uuid
      AND picked.limit_group IS NOT DISTINCT FROM wanted.seat ->> 4
      AND picked.batch_id IS NOT DISTINCT FROM (wanted.seat ->> 5)::uuid
      AND picked.execution_id IS NULL
      AND NOT picked.last_chance
      AND picked.id <> ALL ($5::uuid[])
))
  AND EXISTS (SELECT FROM tenuto.workers WHERE workers.id = $1 AND ended_at IS NULL)
RETURNING id, activity_id, fence, worker_id, kind, name, input, policy, attempt, failures, losses, queue,
          -rank AS priority, run_at, initiator_type, initiator_id, initiator_name, correlation_id, tags, execution_id,
          manifest_id, batch_id, json_build_array(queue, limit_key, limit_max, manifest_id, limit_group, batch_id)::text AS seat;

-- name: hand_on
-- The seats of tasks that are about to leave without ending go to the heirs that stood by for them; as in end_tasks.
WITH leaving AS MATERIALIZED (
    SELECT said.heir
    FROM unnest($2::uuid[], $3::bigint[], $4::uuid[]) AS said (id, fence, heir)
    JOIN tenuto.tasks ON tasks.id = said.id AND tasks.fence = said.fence
    WHERE tasks.id = ANY ($2::uuid[])
      AND tasks.cancel_at IS NULL AND tasks.worker_id = $1
      AND tasks.lease_until > clock_timestamp()
    ORDER BY tasks.id
    FOR UPDATE OF tasks
)
UPDATE tenuto.tasks AS next
SET standby = false
FROM leaving
WHERE next.id = ANY ($4::uuid[])
  AND next.id = leaving.heir
  AND next.worker_id = $1
  AND next.standby
RETURNING next.id;

-- name: renew
-- Prolong what this worker still holds, and write progress along. A task missing from the answer is no longer held, or
-- somebody is at it just now: they are passed over, because whoever holds one for long must not cost us all the others.
UPDATE tenuto.tasks
SET lease_until = clock_timestamp() + $2::interval,
    progress = coalesce(held.progress, tasks.progress)
FROM unnest($3::uuid[], $4::bigint[], $5::jsonb[]) AS held (id, fence, progress)
WHERE tasks.id = ANY (ARRAY(
    SELECT mine.id
    FROM tenuto.tasks AS mine
    WHERE mine.id = ANY ($3::uuid[])
    ORDER BY mine.id
    FOR UPDATE SKIP LOCKED
))
  AND tasks.id = held.id
  AND tasks.fence = held.fence
  AND tasks.worker_id = $1
  AND tasks.state = 'running'
  AND tasks.lease_until > clock_timestamp()
RETURNING tasks.id;

-- name: still_held
-- Which of these this worker holds, as far as anybody has committed anything else.
SELECT tasks.id
FROM tenuto.tasks
JOIN unnest($2::uuid[], $3::bigint[]) AS held (id, fence) ON tasks.id = held.id AND tasks.fence = held.fence
WHERE tasks.id = ANY ($2::uuid[])
  AND tasks.worker_id = $1
  AND tasks.state = 'running'
  AND tasks.lease_until > clock_timestamp();

-- name: let_go
-- What this worker holds and will renew no more, because it runs far over its time limit.
UPDATE tenuto.tasks
SET ran_over = true
FROM unnest($2::uuid[], $3::bigint[]) AS held (id, fence)
WHERE tasks.id = ANY ($2::uuid[])
  AND tasks.id = held.id
  AND tasks.fence = held.fence
  AND tasks.worker_id = $1
  AND tasks.state = 'running'
RETURNING tasks.id;

-- name: cancellations
-- Which tasks of this worker somebody wants stopped.
SELECT id, fence, cancel_type, cancel_id, cancel_name
FROM tenuto.tasks
WHERE state = 'running' AND worker_id = $1 AND cancel_at IS NOT NULL
ORDER BY cancel_at, id
LIMIT 1000;

-- name: end_tasks
-- The tasks leave and their last activities remain, in one statement. Only the holder $1 may (null: nobody holds them):
-- a stale fence or another worker's id matches nothing and changes nothing. The list of ids is named twice so that the
-- rows are reached by index whatever the planner believes about the size of the table; the join then only pairs them
-- with their outcomes, by hash: it would not if it believed that hardly any row had this holder, so the holder is matched
-- there too. Numbers come as text, and instants as such numbers, which the driver writes many times faster; no
-- status: completed.
-- The answer names the tasks that were ended only if not all of them were. The executions $12 are held first, in the order
-- of all (see the lock of executions). Under a limit the seat of each goes to its heir $13, which stood by for it; the
-- answer names the heirs that got one.
WITH held AS MATERIALIZED (
    SELECT id
    FROM tenuto.executions
    WHERE id = ANY ($12::uuid[])
    ORDER BY id
    FOR UPDATE
), outcome AS MATERIALIZED (
    SELECT o.*,
           $1::uuid AS holder,
           coalesce(word, 'completed') AS status,
           timestamptz 'epoch' + ended * interval '1 microsecond' AS ended_at,
           timestamptz 'epoch' + started * interval '1 microsecond' AS started_at
    FROM unnest(
        $2::uuid[], $3::text::bigint[], $4::text[], $5::text::bigint[], $6::text[], $7::text::bigint[], $8::jsonb[],
        $9::jsonb[], $10::text[], $11::jsonb[], $13::uuid[]
    ) AS o (id, fence, word, ended, reason, started, output, error, log, progress, heir)
), ended AS (
    DELETE FROM tenuto.tasks AS task
    USING outcome
    WHERE (SELECT count(*) FROM held) >= 0
      AND task.id = ANY ($2::uuid[])
      AND task.id = outcome.id
      AND task.fence = outcome.fence
      AND task.worker_id IS NOT DISTINCT FROM outcome.holder
    RETURNING task.activity_id AS id, task.id AS task_id, task.attempt, outcome.status, outcome.reason, true AS final,
              task.kind, task.name, task.queue, -task.rank AS priority, task.created_at, task.run_at, task.claimed_at,
              coalesce(task.began_at, outcome.started_at) AS started_at, outcome.ended_at, task.fence, task.worker_id,
              task.failures + (outcome.status = 'failed' AND outcome.reason IS DISTINCT FROM 'lost')::integer AS failures,
              task.losses + coalesce(outcome.reason = 'lost', false)::integer AS losses,
              task.input, outcome.output, outcome.error, outcome.log,
              coalesce(outcome.progress, task.progress) AS progress, task.unique_key, task.limit_key, task.tags,
              task.initiator_type, task.initiator_id, task.initiator_name, task.correlation_id, task.parent_id,
              task.execution_id, task.group_index, task.step_index, task.manifest_id, task.batch_id, task.item_key,
              task.origin, outcome.heir, task.lease_until
), handed_on AS (
    UPDATE tenuto.tasks AS next
    SET standby = false
    WHERE next.id = ANY (ARRAY(
        SELECT heir
        FROM ended
        WHERE heir IS NOT NULL AND lease_until > clock_timestamp()      -- else it had no seat any more
    ))
      AND next.worker_id = $1::uuid
      AND next.standby
    RETURNING next.id
), recorded AS (
    INSERT INTO tenuto.activities (
        id, task_id, attempt, status, reason, final, kind, name, queue, priority, created_at, run_at, claimed_at,
        started_at, ended_at, fence, worker_id, failures, losses, input, output, error, log, progress, unique_key,
        limit_key, tags, initiator_type, initiator_id, initiator_name, correlation_id, parent_id, execution_id,
        group_index, step_index, manifest_id, batch_id, item_key, origin
    )
    SELECT id, task_id, attempt, status, reason, final, kind, name, queue, priority, created_at, run_at, claimed_at,
           started_at, ended_at, fence, worker_id, failures, losses, input, output, error, log, progress, unique_key,
           limit_key, tags, initiator_type, initiator_id, initiator_name, correlation_id, parent_id, execution_id,
           group_index, step_index, manifest_id, batch_id, item_key, origin
    FROM ended
    RETURNING task_id
)
SELECT CASE WHEN count(*) < cardinality($2::uuid[]) THEN coalesce(array_agg(task_id), '{}') END AS only_these,
       CASE WHEN $13::uuid[] IS NOT NULL THEN ARRAY(SELECT id FROM handed_on) END AS seated
FROM recorded;

-- name: repeat_tasks
-- The attempts are recorded and the tasks stay, to be tried again: in one statement, fenced like end_tasks. Not those
-- that somebody has asked to stop. Tasks on their last chance run one at a time (see claim_under_limits): those without a
-- limited key of their own share one, so that only who counts takes them.
WITH outcome AS (
    SELECT o.*,
           $1::uuid AS holder,
           coalesce(word, 'completed') AS status,
           timestamptz 'epoch' + ended * interval '1 microsecond' AS ended_at,
           timestamptz 'epoch' + started * interval '1 microsecond' AS started_at
    FROM unnest(
        $2::uuid[], $3::text::bigint[], $4::text[], $5::text::bigint[], $6::text[], $7::text::bigint[], $8::jsonb[],
        $9::jsonb[], $10::text[], $11::jsonb[], $12::timestamptz[], $13::uuid[], $14::integer[], $15::integer[],
        $16::boolean[]
    ) AS o (
        id, fence, word, ended, reason, started, output, error, log, progress, run_at, activity_id, failures, losses,
        last_chance
    )
), before AS MATERIALIZED (
    SELECT task.*
    FROM tenuto.tasks AS task
    JOIN outcome ON outcome.id = task.id
    WHERE task.id = ANY ($2::uuid[])
      AND task.fence = outcome.fence
      AND task.worker_id IS NOT DISTINCT FROM outcome.holder
      AND task.cancel_at IS NULL
    ORDER BY task.id
    FOR UPDATE OF task
), again AS (
    UPDATE tenuto.tasks AS task
    SET state = CASE WHEN outcome.run_at > clock_timestamp() THEN 'scheduled' ELSE 'queued' END,
        activity_id = outcome.activity_id,
        attempt = task.attempt + 1,
        failures = outcome.failures,
        losses = outcome.losses,
        run_at = outcome.run_at,
        limit_key = CASE WHEN outcome.last_chance THEN coalesce(task.limit_key, 'tenuto:last-chance') ELSE task.limit_key END,
        limit_max = CASE WHEN outcome.last_chance THEN coalesce(task.limit_max, 1) ELSE task.limit_max END,
        last_chance = outcome.last_chance,
        worker_id = NULL,
        standby = false,
        ran_over = false,
        lease_until = NULL,
        claimed_at = NULL,
        began_at = NULL,
        progress = NULL
    FROM outcome, before
    WHERE task.id = ANY ($2::uuid[])
      AND task.id = outcome.id
      AND task.id = before.id
    RETURNING task.queue, CASE WHEN task.limit_key IS NULL OR task.state <> 'queued' THEN task.state ELSE 'limited' END AS word
), woken AS (
    SELECT pg_notify('tenuto', word || ' ' || queue)
    FROM (SELECT DISTINCT word, queue FROM again) AS words
), recorded AS (
    INSERT INTO tenuto.activities (
        id, task_id, attempt, status, reason, final, kind, name, queue, priority, created_at, run_at, claimed_at,
        started_at, ended_at, fence, worker_id, failures, losses, input, output, error, log, progress, unique_key,
        limit_key, tags, initiator_type, initiator_id, initiator_name, correlation_id, parent_id, execution_id,
        group_index, step_index, manifest_id, batch_id, item_key, origin
    )
    SELECT before.activity_id, before.id, before.attempt, outcome.status, outcome.reason, false, before.kind,
           before.name, before.queue, -before.rank, before.created_at, before.run_at, before.claimed_at,
           coalesce(before.began_at, outcome.started_at), outcome.ended_at, before.fence, before.worker_id, outcome.failures, outcome.losses,
           before.input, outcome.output, outcome.error, outcome.log, coalesce(outcome.progress, before.progress),
           before.unique_key, before.limit_key, before.tags, before.initiator_type, before.initiator_id,
           before.initiator_name, before.correlation_id, before.parent_id, before.execution_id, before.group_index,
           before.step_index, before.manifest_id, before.batch_id, before.item_key,
           before.origin
    FROM before
    JOIN outcome ON outcome.id = before.id
    RETURNING task_id
)
SELECT task_id, (SELECT count(*) FROM woken) AS woken
FROM recorded;

-- name: put_aside
-- Attempts that asked to be called again later leave their slot; no attempt has ended. Not those that somebody has asked
-- to stop. What is to wait for an execution that has ended meanwhile need not wait; one that goes on learns that it is awaited.
WITH aside AS (
    UPDATE tenuto.tasks AS task
    SET state = CASE
            WHEN later.execution IS NOT NULL AND executions.id IS NOT NULL THEN 'waiting'
            WHEN later.until > clock_timestamp() THEN 'scheduled'
            ELSE 'queued'
        END,
        waits_for = executions.id,
        began_at = coalesce(task.began_at, later.started),
        run_at = coalesce(later.until, task.run_at),
        worker_id = NULL,
        standby = false,
        ran_over = false,
        lease_until = NULL,
        claimed_at = NULL,
        progress = coalesce(later.progress, task.progress)
    FROM unnest($2::uuid[], $3::bigint[], $4::timestamptz[], $5::uuid[], $6::jsonb[], $7::timestamptz[])
             AS later (id, fence, until, execution, progress, started)
    LEFT JOIN tenuto.executions ON executions.id = later.execution AND executions.ended_at IS NULL
    WHERE task.id = ANY ($2::uuid[])
      AND task.id = later.id
      AND task.fence = later.fence
      AND task.worker_id = $1
      AND task.cancel_at IS NULL
    RETURNING task.id, task.queue, task.waits_for,
              CASE WHEN task.limit_key IS NULL OR task.state <> 'queued' THEN task.state ELSE 'limited' END AS word
), awaited AS (
    UPDATE tenuto.executions
    SET awaited = true
    WHERE id IN (SELECT waits_for FROM aside) AND NOT awaited
), woken AS (
    SELECT pg_notify('tenuto', word || ' ' || queue)
    FROM (SELECT DISTINCT word, queue FROM aside WHERE word <> 'waiting') AS words
)
SELECT id, (SELECT count(*) FROM woken) AS woken
FROM aside;

-- name: asked_to_stop
-- Which of these tasks of one worker somebody wants stopped, and who.
SELECT id, cancel_type, cancel_id, cancel_name
FROM tenuto.tasks
WHERE id = ANY ($2::uuid[])
  AND state = 'running'
  AND worker_id = $1
  AND cancel_at IS NOT NULL
ORDER BY id
LIMIT 1000
FOR UPDATE;

-- name: put_back
-- Tasks that were claimed but never started return as if they had not been touched; no attempt was made. What somebody
-- has asked to stop stays: the sweep ends it as cancelled.
WITH runs AS MATERIALIZED (
    -- held first, so that nobody pauses them in between
    SELECT id, paused_at
    FROM tenuto.executions
    WHERE id = ANY (ARRAY(SELECT execution_id FROM tenuto.tasks WHERE tasks.id = ANY ($2::uuid[])))
    ORDER BY id
    FOR SHARE
), lots AS MATERIALIZED (
    SELECT id, paused_at
    FROM tenuto.batches
    WHERE id = ANY (ARRAY(SELECT batch_id FROM tenuto.tasks WHERE tasks.id = ANY ($2::uuid[])))
    ORDER BY id
    FOR SHARE
), returned AS (
    UPDATE tenuto.tasks AS task
    SET state = CASE
            WHEN task.execution_id IN (SELECT id FROM runs WHERE paused_at IS NOT NULL) THEN 'waiting'
            WHEN task.batch_id IN (SELECT id FROM lots WHERE paused_at IS NOT NULL) THEN 'waiting'
            ELSE 'queued'
        END,
        worker_id = NULL,
        standby = false,
        lease_until = NULL,
        claimed_at = NULL
    FROM unnest($2::uuid[], $3::bigint[]) AS held (id, fence)
    WHERE task.id = ANY ($2::uuid[])
      AND task.id = held.id
      AND task.fence = held.fence
      AND task.worker_id = $1
      AND task.state = 'running'
      AND task.cancel_at IS NULL
    RETURNING task.id, task.queue, task.limit_key IS NOT NULL AS limited
), woken AS (
    SELECT pg_notify('tenuto', CASE WHEN limited THEN 'limited ' ELSE 'queued ' END || queue)
    FROM (SELECT DISTINCT queue, limited FROM returned) AS words
)
SELECT id, (SELECT count(*) FROM woken) AS woken
FROM returned;

-- name: anything_slipped
-- Whether a lease has run out, or a worker that has ended still holds something: the cheap look before a sweep.
SELECT EXISTS (
    SELECT
    FROM tenuto.tasks
    LEFT JOIN tenuto.workers ON workers.id = tasks.worker_id
    WHERE tasks.state = 'running'
      AND (tasks.lease_until < clock_timestamp() OR workers.ended_at IS NOT NULL OR workers.id IS NULL)
) AS slipped;

-- name: what_expired_belongs_to
-- The executions, batches and manifests of held tasks whose lease has run out, but for the tasks $2: to be held before the
-- tasks.
SELECT DISTINCT execution_id, batch_id, manifest_id
FROM (
    SELECT execution_id, batch_id, manifest_id
    FROM tenuto.tasks
    WHERE state = 'running' AND lease_until < clock_timestamp() AND id <> ALL ($2::uuid[])
    ORDER BY queue, id
    LIMIT $1
) AS expired;

-- name: what_is_held_belongs_to
-- The same for what a worker holds.
SELECT DISTINCT execution_id, batch_id, manifest_id
FROM (
    SELECT execution_id, batch_id, manifest_id
    FROM tenuto.tasks
    WHERE state = 'running' AND worker_id = $3 AND id <> ALL ($2::uuid[])
    ORDER BY queue, id
    LIMIT $1
) AS held;

-- name: expired
-- Held tasks whose lease has run out, locked so that no late renewal slips in between; only those without an execution,
-- batch and manifest or with one that is held ($3, $4, $5), and none of the tasks $2.
-- (Ordered by queue first, so that the planner takes the index of what is held and not a walk along all ids.)
SELECT id, activity_id, fence, worker_id, kind, name, input, policy, attempt, failures, losses, queue,
       -rank AS priority, run_at, initiator_type, initiator_id, initiator_name, correlation_id, tags, execution_id,
       manifest_id, batch_id, claimed_at, cancel_name, cancel_type, cancel_id, NULL AS seat, ran_over
FROM tenuto.tasks
WHERE state = 'running' AND lease_until < clock_timestamp()
  AND id <> ALL ($2::uuid[])
  AND (execution_id IS NULL OR execution_id = ANY ($3::uuid[]))
  AND (batch_id IS NULL OR batch_id = ANY ($4::uuid[]))
  AND (manifest_id IS NULL OR manifest_id = ANY ($5::uuid[]))
ORDER BY queue, id
LIMIT $1
FOR UPDATE SKIP LOCKED;

-- name: held_by
-- The same for what a worker that is known to be dead, $6, still holds.
SELECT id, activity_id, fence, worker_id, kind, name, input, policy, attempt, failures, losses, queue,
       -rank AS priority, run_at, initiator_type, initiator_id, initiator_name, correlation_id, tags, execution_id,
       manifest_id, batch_id, claimed_at, cancel_name, cancel_type, cancel_id, NULL AS seat, ran_over
FROM tenuto.tasks
WHERE state = 'running' AND worker_id = $6
  AND id <> ALL ($2::uuid[])
  AND (execution_id IS NULL OR execution_id = ANY ($3::uuid[]))
  AND (batch_id IS NULL OR batch_id = ANY ($4::uuid[]))
  AND (manifest_id IS NULL OR manifest_id = ANY ($5::uuid[]))
ORDER BY queue, id
LIMIT $1
FOR UPDATE SKIP LOCKED;

-- name: to_cancel
-- One task as a canceller needs to see it.
SELECT id, activity_id, fence, worker_id, kind, name, input, policy, attempt, failures, losses, queue,
       -rank AS priority, run_at, initiator_type, initiator_id, initiator_name, correlation_id, tags, execution_id,
       manifest_id, batch_id, claimed_at, cancel_name, cancel_type, cancel_id
FROM tenuto.tasks
WHERE id = $1;

-- name: began_at
-- When the attempt at a task began that has been put aside since.
SELECT began_at
FROM tenuto.tasks
WHERE id = $1;

-- name: ask_to_cancel
-- A running task is asked to stop; its worker hears of it at once.
WITH asked AS (
    UPDATE tenuto.tasks
    SET cancel_at = coalesce(cancel_at, clock_timestamp()),
        cancel_type = coalesce(cancel_type, $3),
        cancel_id = CASE WHEN cancel_at IS NULL THEN $4 ELSE cancel_id END,
        cancel_name = coalesce(cancel_name, $5)
    WHERE id = $1 AND fence = $2 AND state = 'running'
    RETURNING id, worker_id
)
SELECT id, pg_notify('tenuto', 'cancel ' || worker_id::text)
FROM asked;
