-- name: promote_due_tasks
-- Queue due tasks, and parked tasks for which their rate limit has a token again, as many as it has tokens. Return the
-- number of both, when the next one is due, has a token or expires, whether claims from the queues $3 must check limits
-- (a queue is limited or paused, or has queued tasks with a limit key), and whether tasks have expired. Parked tasks are
-- found by the index of their scope, scopes by the index of their next release.
WITH due AS (
    UPDATE tenuto.tasks
    SET state = 'queued'
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM tenuto.tasks
        WHERE state = 'scheduled' AND parked_for IS NULL AND run_at <= $1
        ORDER BY run_at
        LIMIT $2
        FOR UPDATE SKIP LOCKED -- guard: claim.promotion_lock
    ))
    RETURNING queue, limit_key IS NOT NULL AS limited
), buckets AS MATERIALIZED (
    SELECT scope, rate_limit, next_at, coalesce(tenuto.rate_tokens(rate_limit, next_at, $1), $2::integer) AS tokens
    FROM tenuto.rate_buckets
    WHERE release_at <= $1
    ORDER BY release_at
    LIMIT 100
    FOR UPDATE SKIP LOCKED
), parked AS MATERIALIZED (
    SELECT buckets.scope, head.id
    FROM buckets
    CROSS JOIN LATERAL (
        SELECT id
        FROM tenuto.tasks
        WHERE state = 'scheduled' AND parked_for = buckets.scope AND run_at <= $1
        ORDER BY rank, run_at, id
        LIMIT greatest(buckets.tokens, 1)
        FOR UPDATE SKIP LOCKED
    ) AS head
), released AS (
    UPDATE tenuto.tasks
    SET state = 'queued', parked_for = NULL
    WHERE id = ANY (ARRAY(SELECT id FROM parked))
    RETURNING queue
), rearmed AS (
    -- A claim that takes the token sets the next release. If none does, look again: a bucket without parked tasks is
    -- forgotten only after a minute, because tasks may have been parked after this statement took its snapshot.
    UPDATE tenuto.rate_buckets AS bucket
    SET release_at = CASE
            WHEN bucket.next_at < $1 - interval '1 minute'
             AND NOT EXISTS (SELECT FROM parked WHERE parked.scope = bucket.scope) THEN NULL
            WHEN bucket.rate_limit IS NULL THEN $1
            ELSE $1 + interval '1 second'
        END
    FROM buckets
    WHERE bucket.scope = buckets.scope
    RETURNING bucket.scope
), notified AS (
    SELECT pg_notify('tenuto', CASE WHEN limited THEN 'limited ' ELSE 'queued ' END || queue)
    FROM (SELECT queue, limited FROM due UNION SELECT queue, true FROM released) AS events
)
SELECT (SELECT count(*) FROM due) + (SELECT count(*) FROM released) AS promoted,
       (SELECT count(*) FROM notified) + (SELECT count(*) FROM rearmed) AS notified,
       least(
           (SELECT min(run_at) FROM tenuto.tasks WHERE state = 'scheduled' AND parked_for IS NULL AND run_at > $1),
           (SELECT min(release_at) FROM tenuto.rate_buckets WHERE release_at > $1),
           (SELECT min(expires_at) FROM tenuto.tasks WHERE state <> 'running' AND (state <> 'waiting' OR execution_id IS NULL) AND expires_at > $1)
       ) AS next_due,
       EXISTS (SELECT FROM due WHERE limited)
       OR EXISTS (SELECT FROM released)
       OR EXISTS (SELECT FROM tenuto.queues WHERE name = ANY ($3::text[]) AND {queue_is_limited})
       OR EXISTS (
           SELECT FROM tenuto.tasks
           WHERE state = 'queued' AND limit_key IS NOT NULL AND queue = ANY ($3::text[])
       ) AS limited,
       EXISTS (SELECT FROM tenuto.tasks WHERE state <> 'running' AND (state <> 'waiting' OR execution_id IS NULL) AND expires_at <= $1) AS has_expired;

-- name: claim_tasks
-- Claim up to $4 tasks of the queues $3 that have no limit, most urgent first, from the cursor position of each
-- queue, without the tasks $8: tasks of the jobs $9 and step kinds $10 that the worker knows (null: all). The array
-- form keeps the index scan under a generic plan; the CASE keeps the planner from expecting few known tasks and
-- sorting all of them. An ended worker claims nothing.
UPDATE tenuto.tasks
SET state = 'running',
    worker_id = $1,
    fence = fence + 1, -- guard: claim.new_fence, state_machine.new_fence
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
          AND {unexpired} -- guard: expiry.claim
          -- guard: claim.known_handler
          AND CASE WHEN $9::jsonb IS NULL THEN true WHEN free.kind = 'job' THEN $9::jsonb ? free.name ELSE $10::jsonb ? free.kind END
        ORDER BY free.rank, free.run_at, free.id
        LIMIT $4
        FOR UPDATE SKIP LOCKED -- guard: claim.skip_locked, claim.row_lock
    ) AS picked
    WHERE wanted.queue NOT IN (
        -- guard: claim.limited_queues
        SELECT name FROM tenuto.queues WHERE {queue_is_limited}
    )
    ORDER BY picked.rank, picked.run_at, picked.id
    LIMIT $4
))
  -- guard: claim.dead_worker, state_machine.dead_worker
  AND EXISTS (SELECT FROM tenuto.workers WHERE workers.id = $1 AND ended_at IS NULL)
RETURNING {claimed_task};

-- name: lock_limits
-- First statement of a claim under limits: find the limit keys with queued tasks of the queues $1, at most $3 per queue
-- and starting after $2, and lock the scopes whose limits apply to them, until the claim commits. A scope is a queue, a
-- limit key, a manifest, a manifest group, all manifests, or all last-chance tasks; $4 names further ones. The lock of a
-- scope with a cap is exclusive: counts stay true until the claim commits. The lock of a manifest, of a group and of all
-- manifests without a cap is shared: such claims do not wait for each other, but a claim under a cap that was set
-- meanwhile waits for them. The claim itself reads the caps again and takes nothing whose scope is not locked. Locks have
-- one order. Their number is bounded, because the lock table of the server is: one per queue, at most 256 of each of
-- limit keys, manifests and rate keys (`limit_lock_number`), and at most two groups for each of the $3 keys of a queue. A
-- session that stalls in between (frozen process, silent connection) is terminated, because claims under the same caps
-- wait for it.
WITH RECURSIVE wanted AS MATERIALIZED (
    SELECT wanted.queue, wanted.after, wanted.place, queues.paused_at IS NOT NULL AS is_paused,
           queues.max_running IS NOT NULL OR queues.rate_limit IS NOT NULL AS is_capped
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS wanted (queue, after, place)
    LEFT JOIN tenuto.queues ON queues.name = wanted.queue
), keys AS (
    -- keys with queued tasks, by a loose index scan
    SELECT wanted.queue,
           (SELECT min(limit_key) FROM tenuto.tasks
            WHERE state = 'queued' AND limit_key IS NOT NULL AND tasks.queue = wanted.queue
              AND limit_key > wanted.after) AS key,
           1 AS hops
    FROM wanted
    WHERE NOT wanted.is_paused
    UNION ALL
    SELECT keys.queue,
           (SELECT min(limit_key) FROM tenuto.tasks
            WHERE state = 'queued' AND limit_key IS NOT NULL AND tasks.queue = keys.queue AND limit_key > keys.key),
           keys.hops + 1
    FROM keys
    WHERE keys.key IS NOT NULL AND keys.hops < $3::integer
), heads AS MATERIALIZED (
    SELECT keys.queue, keys.key, first_task.manifest_id, first_task.limit_group, first_task.batch_id,
           first_task.rate_key
    FROM keys
    CROSS JOIN LATERAL (
        SELECT manifest_id, limit_group, batch_id, rate_key
        FROM tenuto.tasks
        WHERE state = 'queued' AND limit_key = keys.key AND tasks.queue = keys.queue
        ORDER BY rank, run_at, id
        LIMIT 1
    ) AS first_task
    WHERE keys.key IS NOT NULL
), owners AS MATERIALIZED (
    SELECT manifest_id,
           (SELECT max_active FROM tenuto.manifests WHERE manifests.id = manifest_id) AS max_active,
           (SELECT group_name FROM tenuto.manifests WHERE manifests.id = manifest_id) AS group_name
    FROM (SELECT DISTINCT manifest_id FROM heads WHERE manifest_id IS NOT NULL) AS manifests_of_heads
), scopes AS MATERIALIZED (
    SELECT scope, bool_or(is_capped) AS is_capped
    FROM (
        SELECT 'queue ' || queue AS scope, true AS is_capped FROM wanted WHERE is_capped
        UNION ALL
        SELECT 'key ' || key, true FROM heads WHERE manifest_id IS NULL -- the keys of manifest runs have no cap
        UNION ALL
        SELECT 'rate ' || rate_key, true FROM heads WHERE rate_key IS NOT NULL
        UNION ALL
        SELECT 'manifest ' || manifest_id, max_active IS NOT NULL FROM owners
        UNION ALL
        SELECT 'group ' || name,
               coalesce((SELECT {group_is_capped} FROM tenuto.manifest_groups WHERE manifest_groups.name = of_runs.name), false)
        FROM (SELECT limit_group AS name FROM heads UNION SELECT group_name FROM owners) AS of_runs
        WHERE name IS NOT NULL
        UNION ALL
        SELECT 'all manifests', coalesce((SELECT {group_is_capped} FROM tenuto.manifest_groups WHERE name = '*'), false)
        WHERE EXISTS (SELECT FROM owners)
        UNION ALL
        SELECT 'all last-chance', true
        WHERE EXISTS (SELECT FROM tenuto.tasks WHERE last_chance AND state = 'queued' AND queue = ANY ($1::text[]))
        UNION ALL
        SELECT further, true FROM unnest($4::text[]) AS further
    ) AS found
    GROUP BY scope
), locked AS MATERIALIZED (
    SELECT count(
               CASE
                   -- guard: claim.limited_claims_take_turns
                   WHEN is_capped THEN pg_advisory_xact_lock(kind, number)
                   -- guard: claim.uncapped_claims_are_waited_for
                   ELSE pg_advisory_xact_lock_shared(kind, number)
               END
           ) AS locked_count
    FROM (
        -- guard: claim.queue_lock_of_its_own
        SELECT {limit_lock_kind} AS kind, {limit_lock_number} AS number, bool_or(is_capped) AS is_capped
        FROM scopes
        GROUP BY 1, 2
        ORDER BY 1, 2 -- one order: otherwise claims might deadlock
        OFFSET 0
    ) AS ordered
)
SELECT set_config('idle_in_transaction_session_timeout', '2000', true), -- guard: claim.stalled_limited_claim
       (SELECT locked_count FROM locked) AS locked_count,
       ARRAY(SELECT last.key
             FROM wanted
             LEFT JOIN (SELECT queue, key FROM keys WHERE hops = $3::integer) AS last ON last.queue = wanted.queue
             ORDER BY wanted.place) AS end_keys,
       ARRAY(SELECT queue FROM heads ORDER BY queue, key) AS queues_of_keys,
       ARRAY(SELECT key FROM heads ORDER BY queue, key) AS keys,
       ARRAY(SELECT batch_id FROM heads ORDER BY queue, key) AS batches_of_keys,
       ARRAY(SELECT scope FROM scopes WHERE is_capped) AS capped_scopes,
       ARRAY(SELECT scope FROM scopes WHERE NOT is_capped) AS uncapped_scopes;

-- name: claim_uncapped_tasks
-- Like claim_limited_tasks where no cap applies: up to $4 tasks of the queues $3, without a key or of the keys $6 (of the
-- queues $5 and batches $12), whose manifests and groups are among the locked scopes $11. A measured fast path (benchmark
-- bulk, "without a cap"); the equivalence test is test_uncapped_claim_takes_what_a_claim_under_limits_takes. Claims skip
-- the rows of each other. Each key gives an equal share; if a key has more tasks than its share, tasks of a lower
-- priority than its last one have to wait for the next claim.
WITH sources AS MATERIALIZED (
    SELECT queue, key
    FROM (
        SELECT queue, NULL AS key, NULL::uuid AS batch_id
        FROM unnest($3::text[]) AS wanted (queue)
        UNION ALL
        SELECT queue, key, batch_id
        FROM unnest($5::text[], $6::text[], $12::uuid[]) AS keys (queue, key, batch_id)
        WHERE NOT EXISTS (
            SELECT FROM tenuto.manifest_groups
            WHERE name = '*' AND (NOT enabled OR {group_is_capped}) -- guard: limits.new_cap_of_all_manifests
        )
    ) AS found
    CROSS JOIN LATERAL (
        (SELECT rank, run_at FROM tenuto.tasks
         WHERE found.key IS NULL AND state = 'queued' AND limit_key IS NULL AND tasks.queue = found.queue
         ORDER BY rank, run_at, id LIMIT 1)
        UNION ALL
        (SELECT rank, run_at FROM tenuto.tasks
         WHERE state = 'queued' AND limit_key = found.key AND tasks.queue = found.queue
         ORDER BY rank, run_at, id LIMIT 1)
    ) AS first_task
    -- guard: limits.new_cap_of_queue
    WHERE queue NOT IN (SELECT name FROM tenuto.queues WHERE {queue_is_limited})
      -- guard: batches.paused_batch_is_not_claimed_without_cap
      AND (SELECT coalesce(paused_at, cancelled_at) FROM tenuto.batches WHERE batches.id = found.batch_id) IS NULL
    ORDER BY first_task.rank, first_task.run_at
    LIMIT $4 -- each source locks a task
), shares AS MATERIALIZED (
    -- one more than an equal share shows whether a source has more
    SELECT CASE count(*) WHEN 1 THEN $4::integer ELSE ceil($4::numeric / greatest(count(*), 1))::integer + 1 END AS share
    FROM sources
), allowed AS MATERIALIZED (
    SELECT ARRAY(
               SELECT substr(scope, 10)::uuid
               FROM unnest($11::text[]) AS scope
               WHERE scope LIKE 'manifest %'
                 AND (SELECT max_active FROM tenuto.manifests WHERE id = substr(scope, 10)::uuid) IS NULL -- guard: limits.new_cap_of_manifest
           ) AS manifests,
           ARRAY(
               SELECT substr(scope, 7)
               FROM unnest($11::text[]) AS scope
               WHERE scope LIKE 'group %'
                 AND NOT EXISTS (
                     SELECT FROM tenuto.manifest_groups
                     WHERE name = substr(scope, 7) AND (NOT enabled OR {group_is_capped}) -- guard: limits.new_cap_of_group
                 )
           ) AS groups
), candidates AS MATERIALIZED (
    SELECT sources.queue, sources.key, picked.*
    FROM sources
    CROSS JOIN LATERAL (
        SELECT free.id, free.rank, free.run_at
        FROM tenuto.tasks AS free
        WHERE free.state = 'queued' AND free.limit_key IS NULL AND free.queue = sources.queue
          AND free.id <> ALL ($7::uuid[])
          AND {unexpired} -- guard: expiry.claim
          -- guard: claim.known_handler_under_limits
          AND CASE WHEN $8::jsonb IS NULL THEN true WHEN free.kind = 'job' THEN $8::jsonb ? free.name ELSE $9::jsonb ? free.kind END
        ORDER BY free.rank, free.run_at, free.id
        LIMIT (SELECT share FROM shares)
        FOR UPDATE SKIP LOCKED
    ) AS picked
    WHERE sources.key IS NULL
    UNION ALL
    SELECT sources.queue, sources.key, picked.*
    FROM sources
    CROSS JOIN LATERAL (
        SELECT free.id, free.rank, free.run_at
        FROM tenuto.tasks AS free
        WHERE free.state = 'queued' AND free.limit_key IS NOT NULL AND free.queue = sources.queue
          AND free.limit_key = sources.key
          AND free.id <> ALL ($7::uuid[])
          AND {unexpired} -- guard: expiry.claim
          -- guard: claim.known_handler_under_limits
          AND CASE WHEN $8::jsonb IS NULL THEN true WHEN free.kind = 'job' THEN $8::jsonb ? free.name ELSE $9::jsonb ? free.kind END
          -- guard: limits.unlocked_manifest_of_uncapped_claim
          AND CASE WHEN free.manifest_id = ANY ((SELECT manifests FROM allowed)::uuid[]) THEN true ELSE false END
          -- guard: limits.unlocked_group_of_uncapped_claim
          AND CASE WHEN free.limit_group IS NULL THEN true ELSE free.limit_group = ANY ((SELECT groups FROM allowed)::text[]) END
          AND CASE WHEN free.last_chance THEN false ELSE true END
          -- guard: rate_limits.uncapped_claim
          AND CASE WHEN free.rate_key IS NULL THEN true ELSE false END
        ORDER BY free.rank, free.run_at, free.id
        LIMIT (SELECT share FROM shares)
        FOR UPDATE SKIP LOCKED
    ) AS picked
    WHERE sources.key IS NOT NULL
), worst_rank AS MATERIALIZED (
    -- a source that gave its whole share may have more tasks of its last rank
    SELECT min(last_rank) AS rank
    FROM (
        SELECT max(rank) AS last_rank
        FROM candidates
        GROUP BY queue, key
        HAVING count(*) >= (SELECT share FROM shares)
    ) AS shared_out
), claimed AS (
    UPDATE tenuto.tasks
    SET state = 'running',
        worker_id = $1,
        fence = fence + 1, -- guard: claim.new_fence, state_machine.new_fence
        claimed_at = clock_timestamp(),
        lease_until = clock_timestamp() + $2::interval
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM (
            SELECT id, rank, run_at, row_number() OVER (PARTITION BY queue, key ORDER BY rank, run_at, id) AS turn
            FROM candidates
        ) AS taking_turns
        WHERE rank <= coalesce((SELECT rank FROM worst_rank), 32767) -- guard: limits.urgent_before_equal_shares
        ORDER BY rank, turn, run_at, id
        LIMIT $4
    ))
      -- guard: claim.dead_worker, state_machine.dead_worker
      AND EXISTS (SELECT FROM tenuto.workers WHERE workers.id = $1 AND ended_at IS NULL)
    RETURNING {claimed_task}
)
-- fewer than asked for, from as many sources as may be read: their first tasks may be locked or not claimable
SELECT worst_rank.rank IS NOT NULL
           OR (SELECT count(*) FROM sources) >= $4 AND (SELECT count(*) FROM claimed) < $4 AS is_incomplete,
       NULL::text[] AS full_queues, $10::text[] AS unlocked_scopes, NULL::text[] AS exhausted_scopes,
       NULL::timestamptz AS next_token_at, claimed.*, NULL::text AS limit_slot
FROM worst_rank
LEFT JOIN claimed ON true;

-- name: claim_limited_tasks
-- Like claim_tasks, for all tasks of the queues $3 without a key, and of the keys $6 (of the queues $5), without the tasks
-- $7, of the known jobs $8 and step kinds $9. Never exceeds the limit of a queue, limit key, manifest, manifest group or
-- of all manifests; counts tasks with a live lease, but no standby tasks. Never claims a second last-chance task. Claims
-- nothing under a cap that is not among the scopes $10 that this transaction has locked exclusively, and no manifest run
-- whose other scopes are not among $11. Every row contains whether another claim may find more, the queues without
-- capacity, and the scopes that were not locked. If no task is claimed, the only row contains just that.
WITH instant AS MATERIALIZED (
    -- read under the locks: the tokens of a rate limit are counted, and the tasks claimed, at the same instant
    SELECT clock_timestamp() AS at
), queue_capacity AS MATERIALIZED (
    SELECT wanted.queue,
           CASE
               WHEN queues.paused_at IS NOT NULL THEN 0 -- guard: claim.paused_queue
               WHEN queues.max_running IS NULL AND queues.rate_limit IS NULL THEN $4::integer
               WHEN 'queue ' || wanted.queue <> ALL ($10::text[]) THEN 0 -- guard: limits.unlocked_queue
               ELSE least(
                   CASE WHEN queues.max_running IS NOT NULL THEN greatest(0, queues.max_running - (
                       SELECT count(*)
                       FROM tenuto.tasks AS held
                       WHERE held.state = 'running' AND NOT held.standby AND held.queue = wanted.queue
                         AND held.lease_until > clock_timestamp()
                   )) END,
                   tenuto.rate_tokens(queues.rate_limit, bucket.next_at, instant.at), -- guard: rate_limits.queue
                   $4::integer
               )
           END AS free,
           queues.max_running IS NOT NULL OR queues.rate_limit IS NOT NULL AS is_capped, queues.rate_limit
    FROM unnest($3::text[]) AS wanted (queue)
    CROSS JOIN instant
    LEFT JOIN tenuto.queues ON queues.name = wanted.queue
    LEFT JOIN tenuto.rate_buckets AS bucket
        ON queues.rate_limit IS NOT NULL AND bucket.scope = 'queue ' || wanted.queue
), key_capacity AS MATERIALIZED (
    SELECT keys.queue, keys.key, first_task.manifest_id,
           CASE
               -- the items of a batch share its key; items of a paused or cancelled batch are not claimed
               WHEN (SELECT coalesce(paused_at, cancelled_at) FROM tenuto.batches WHERE batches.id = first_task.batch_id)
                    IS NOT NULL THEN 0 -- guard: batches.paused_batch_is_not_claimed
               WHEN first_task.manifest_id IS NOT NULL THEN $4::integer
               WHEN 'key ' || keys.key <> ALL ($10::text[]) THEN 0 -- guard: limits.unlocked_key
               ELSE first_task.limit_max -
                    (SELECT count(*) FROM tenuto.tasks AS held
                     WHERE held.state = 'running' AND NOT held.standby AND held.limit_key = keys.key
                       AND held.manifest_id IS NULL
                       AND held.lease_until > clock_timestamp()) -- guard: limits.key_counts_live_leases
           END AS free
    FROM unnest($5::text[], $6::text[]) AS keys (queue, key)
    JOIN queue_capacity ON queue_capacity.queue = keys.queue AND queue_capacity.free > 0
    CROSS JOIN LATERAL (
        SELECT limit_max, manifest_id, batch_id
        FROM tenuto.tasks
        WHERE state = 'queued' AND limit_key = keys.key AND tasks.queue = keys.queue
        ORDER BY rank, run_at, id
        LIMIT 1
    ) AS first_task
), candidates AS MATERIALIZED (
    SELECT queue_capacity.queue, NULL AS key, NULL::bigint AS key_free, picked.*
    FROM queue_capacity
    CROSS JOIN LATERAL (
        SELECT free.id, free.rank, free.run_at, NULL::uuid AS manifest_id, NULL AS limit_group, free.last_chance,
               NULL AS rate_key, NULL AS rate_limit
        FROM tenuto.tasks AS free
        WHERE free.state = 'queued' AND free.limit_key IS NULL AND free.queue = queue_capacity.queue
          AND free.id <> ALL ($7::uuid[])
          AND {unexpired} -- guard: expiry.claim
          -- guard: claim.known_handler_under_limits
          AND CASE WHEN $8::jsonb IS NULL THEN true WHEN free.kind = 'job' THEN $8::jsonb ? free.name ELSE $9::jsonb ? free.kind END
        ORDER BY free.rank, free.run_at, free.id
        LIMIT queue_capacity.free
        FOR UPDATE SKIP LOCKED
    ) AS picked
    UNION ALL
    SELECT key_capacity.queue, key_capacity.key, key_capacity.free, picked.*
    FROM key_capacity
    CROSS JOIN LATERAL (
        SELECT free.id, free.rank, free.run_at, free.manifest_id, free.limit_group, free.last_chance,
               free.rate_key, free.rate_limit
        FROM tenuto.tasks AS free
        WHERE free.state = 'queued'
          AND free.limit_key = key_capacity.key
          AND free.queue = key_capacity.queue
          AND NOT free.last_chance -- guard: standby.behind_last_chance_task
          AND CASE WHEN key_capacity.manifest_id IS NULL THEN free.manifest_id IS NULL ELSE free.manifest_id IS NOT NULL END
          AND free.id <> ALL ($7::uuid[])
          AND {unexpired} -- guard: expiry.claim
          -- guard: claim.known_handler_under_limits
          AND CASE WHEN $8::jsonb IS NULL THEN true WHEN free.kind = 'job' THEN $8::jsonb ? free.name ELSE $9::jsonb ? free.kind END
        ORDER BY free.rank, free.run_at, free.id
        LIMIT least($4::integer, key_capacity.free)
    ) AS picked
    WHERE key_capacity.free > 0
    UNION ALL
    -- first last-chance task of each key, unless one is running; in the end at most one of them is claimed
    SELECT key_capacity.queue, key_capacity.key, key_capacity.free, picked.*
    FROM key_capacity
    CROSS JOIN LATERAL (
        SELECT free.id, free.rank, free.run_at, free.manifest_id, free.limit_group, free.last_chance,
               free.rate_key, free.rate_limit
        FROM tenuto.tasks AS free
        WHERE free.last_chance
          AND free.state = 'queued'
          AND free.limit_key = key_capacity.key
          AND free.queue = key_capacity.queue
          AND free.id <> ALL ($7::uuid[])
          AND {unexpired} -- guard: expiry.claim
          -- guard: claim.known_handler_under_limits
          AND CASE WHEN $8::jsonb IS NULL THEN true WHEN free.kind = 'job' THEN $8::jsonb ? free.name ELSE $9::jsonb ? free.kind END
        ORDER BY free.rank, free.run_at, free.id
        LIMIT 1
    ) AS picked
    WHERE key_capacity.free > 0
      AND 'all last-chance' = ANY ($10::text[]) -- guard: limits.unlocked_last_chance
      AND NOT EXISTS (
          SELECT
          FROM tenuto.tasks AS alone
          -- guard: claim.running_last_chance_task
          WHERE alone.last_chance AND alone.state = 'running' AND alone.lease_until > clock_timestamp()
      )
), held AS MATERIALIZED (
    -- active runs of manifests; read only under a cap of manifests. By the index of running tasks: without a condition on
    -- the manifest, because the planner would read all its queued runs
    SELECT tasks.manifest_id, tasks.limit_group, count(*) AS active
    FROM tenuto.tasks
    -- guard: limits.manifest_counts_live_leases
    WHERE state = 'running' AND NOT standby AND lease_until > clock_timestamp()
      AND EXISTS (SELECT FROM candidates WHERE candidates.manifest_id IS NOT NULL)
    GROUP BY tasks.manifest_id, tasks.limit_group
    HAVING tasks.manifest_id IS NOT NULL
), rates AS MATERIALIZED (
    -- the rate limits that apply to candidates, and their tokens; of tasks with the same rate key that of the most urgent
    SELECT found.scope, found.rate_limit, bucket.next_at,
           tenuto.rate_tokens(found.rate_limit, bucket.next_at, instant.at) AS tokens
    FROM (
        SELECT 'queue ' || queue AS scope, rate_limit FROM queue_capacity WHERE rate_limit IS NOT NULL
        UNION ALL
        SELECT 'rate ' || rate_key, (array_agg(rate_limit ORDER BY rank, run_at, id))[1]
        FROM candidates
        WHERE rate_key IS NOT NULL
        GROUP BY rate_key
        UNION ALL
        SELECT 'group ' || name, rate_limit
        FROM tenuto.manifest_groups
        WHERE rate_limit IS NOT NULL AND name IN (SELECT limit_group FROM candidates)
        UNION ALL
        SELECT 'all manifests', rate_limit
        FROM tenuto.manifest_groups
        WHERE rate_limit IS NOT NULL AND name = '*' AND EXISTS (SELECT FROM candidates WHERE manifest_id IS NOT NULL)
    ) AS found
    CROSS JOIN instant
    LEFT JOIN tenuto.rate_buckets AS bucket ON bucket.scope = found.scope
), capacity_of_rates AS MATERIALIZED (
    SELECT substr(scope, 6) AS rate_key, scope,
           CASE WHEN scope <> ALL ($10::text[]) THEN 0 ELSE tokens END AS capacity -- guard: rate_limits.unlocked_key
    FROM rates
    WHERE scope LIKE 'rate %'
), capacity_of_manifests AS MATERIALIZED (
    SELECT manifest_id, scope,
           CASE
               WHEN max_active IS NULL AND scope = ANY ($10::text[] || $11::text[]) THEN NULL
               WHEN scope <> ALL ($10::text[]) THEN 0 -- guard: limits.unlocked_manifest
               ELSE max_active - coalesce((SELECT sum(active) FROM held WHERE held.manifest_id = found.manifest_id), 0)
           END AS capacity
    FROM (
        SELECT manifest_id, 'manifest ' || manifest_id AS scope,
               (SELECT max_active FROM tenuto.manifests WHERE manifests.id = manifest_id) AS max_active
        FROM (SELECT DISTINCT manifest_id FROM candidates WHERE manifest_id IS NOT NULL) AS of_candidates
    ) AS found
), capacity_of_groups AS MATERIALIZED (
    SELECT limit_group, scope,
           CASE
               WHEN NOT enabled THEN 0 -- guard: limits.disabled_group
               WHEN NOT is_capped AND scope = ANY ($10::text[] || $11::text[]) THEN NULL
               WHEN scope <> ALL ($10::text[]) THEN 0 -- guard: limits.unlocked_group
               ELSE least(
                   max_active - coalesce((SELECT sum(active) FROM held WHERE held.limit_group = found.limit_group), 0),
                   (SELECT tokens FROM rates WHERE rates.scope = found.scope) -- guard: rate_limits.group
               )
           END AS capacity,
           enabled
    FROM (
        SELECT limit_group, 'group ' || limit_group AS scope,
               (SELECT max_active FROM tenuto.manifest_groups WHERE name = limit_group) AS max_active,
               coalesce((SELECT {group_is_capped} FROM tenuto.manifest_groups WHERE name = limit_group), false) AS is_capped,
               coalesce((SELECT enabled FROM tenuto.manifest_groups WHERE name = limit_group), true) AS enabled
        FROM (SELECT DISTINCT limit_group FROM candidates WHERE limit_group IS NOT NULL) AS of_candidates
    ) AS found
), capacity_of_all AS MATERIALIZED (
    SELECT CASE
               WHEN NOT enabled THEN 0 -- guard: limits.disabled_group
               WHEN NOT is_capped AND 'all manifests' = ANY ($10::text[] || $11::text[]) THEN NULL
               WHEN 'all manifests' <> ALL ($10::text[]) THEN 0 -- guard: limits.unlocked_manifests
               ELSE least(
                   max_active - coalesce((SELECT sum(active) FROM held), 0),
                   (SELECT tokens FROM rates WHERE rates.scope = 'all manifests') -- guard: rate_limits.group
               )
           END AS capacity,
           enabled
    FROM (
        SELECT (SELECT max_active FROM tenuto.manifest_groups WHERE name = '*') AS max_active,
               coalesce((SELECT {group_is_capped} FROM tenuto.manifest_groups WHERE name = '*'), false) AS is_capped,
               coalesce((SELECT enabled FROM tenuto.manifest_groups WHERE name = '*'), true) AS enabled
    ) AS found
), unlocked AS MATERIALIZED (
    -- scopes of queued tasks that another claim must lock
    SELECT ARRAY(
        SELECT 'queue ' || queue FROM queue_capacity WHERE is_capped AND 'queue ' || queue <> ALL ($10::text[])
        UNION ALL
        SELECT scope FROM capacity_of_rates WHERE scope <> ALL ($10::text[])
        UNION ALL
        SELECT scope FROM capacity_of_manifests WHERE capacity = 0 AND scope <> ALL ($10::text[])
        UNION ALL
        SELECT scope FROM capacity_of_groups WHERE capacity = 0 AND enabled AND scope <> ALL ($10::text[])
        UNION ALL
        SELECT 'all manifests'
        FROM capacity_of_all
        WHERE capacity = 0 AND enabled AND 'all manifests' <> ALL ($10::text[])
          AND EXISTS (SELECT FROM candidates WHERE manifest_id IS NOT NULL)
    ) AS scopes
), within_key AS (
    -- apply each limit: key (shared by queues), manifest, group, all manifests, queue. Within a rank the keys
    -- alternate, so that a key with many queued tasks does not block a key with few
    SELECT *,
           CASE WHEN key IS NULL THEN row_number() OVER (PARTITION BY queue, key ORDER BY rank, run_at, id)
                ELSE row_number() OVER (PARTITION BY key ORDER BY rank, run_at, id) END AS turn,
           min(key_free) OVER (PARTITION BY key) AS capacity_of_key
    FROM candidates
), within_rate AS (
    SELECT within_key.*,
           -- guard: limits.keys_take_turns
           row_number() OVER (PARTITION BY within_key.rate_key ORDER BY rank, turn, run_at, within_key.id) AS place_in_rate,
           capacity_of_rates.capacity AS capacity_of_rate
    FROM within_key
    LEFT JOIN capacity_of_rates ON capacity_of_rates.rate_key = within_key.rate_key
    WHERE key IS NULL OR turn <= capacity_of_key -- guard: limits.key
), within_manifest AS (
    SELECT within_rate.*,
           -- guard: limits.keys_take_turns
           row_number() OVER (PARTITION BY within_rate.manifest_id ORDER BY rank, turn, run_at, within_rate.id) AS place,
           capacity_of_manifests.capacity AS capacity_of_manifest
    FROM within_rate
    LEFT JOIN capacity_of_manifests ON capacity_of_manifests.manifest_id = within_rate.manifest_id
    WHERE within_rate.rate_key IS NULL OR place_in_rate <= capacity_of_rate -- guard: rate_limits.key
), within_group AS (
    SELECT within_manifest.id, rank, run_at, turn, queue, manifest_id, within_manifest.limit_group, last_chance,
           -- guard: limits.keys_take_turns
           row_number() OVER (PARTITION BY within_manifest.limit_group ORDER BY rank, turn, run_at, within_manifest.id) AS place,
           capacity_of_groups.capacity AS capacity_of_group
    FROM within_manifest
    LEFT JOIN capacity_of_groups ON capacity_of_groups.limit_group = within_manifest.limit_group
    WHERE manifest_id IS NULL OR capacity_of_manifest IS NULL OR place <= capacity_of_manifest -- guard: limits.manifest
), within_all AS (
    SELECT id, rank, run_at, turn, queue, manifest_id, last_chance,
           count(manifest_id) OVER (ORDER BY rank, turn, run_at, id) AS place, -- guard: limits.keys_take_turns
           (SELECT capacity FROM capacity_of_all) AS capacity_of_all
    FROM within_group
    WHERE limit_group IS NULL OR capacity_of_group IS NULL OR place <= capacity_of_group -- guard: limits.group
), placed AS (
    SELECT within_all.id, rank, run_at, turn, queue_capacity.free, last_chance,
           -- guard: limits.keys_take_turns
           row_number() OVER (PARTITION BY within_all.queue ORDER BY rank, turn, run_at, within_all.id) AS place_in_queue
    FROM within_all
    JOIN queue_capacity ON queue_capacity.queue = within_all.queue
    WHERE manifest_id IS NULL OR capacity_of_all IS NULL OR within_all.place <= capacity_of_all -- guard: limits.all_manifests
), fitting AS (
    SELECT id, rank, run_at, turn, last_chance,
           -- guard: limits.keys_take_turns
           row_number() OVER (PARTITION BY last_chance ORDER BY rank, turn, run_at, id) AS place
    FROM placed
    WHERE place_in_queue <= free -- guard: limits.queue
), selected AS MATERIALIZED (
    SELECT id
    FROM fitting
    WHERE NOT last_chance OR place = 1 -- guard: claim.one_last_chance_task
    ORDER BY rank, turn, run_at, id -- guard: limits.keys_take_turns
    -- a task that has taken a token must start now: nothing is prefetched
    LIMIT CASE WHEN EXISTS (SELECT FROM rates) THEN least($4::integer, $12::integer) ELSE $4::integer END -- guard: rate_limits.no_prefetch
), claimed AS (
    UPDATE tenuto.tasks
    SET state = 'running',
        worker_id = $1,
        fence = fence + 1, -- guard: claim.new_fence, state_machine.new_fence
        claimed_at = (SELECT at FROM instant),
        lease_until = clock_timestamp() + $2::interval
    WHERE id = ANY (ARRAY(
        -- lock only the selected tasks, and only those not cancelled or claimed without a cap in the meantime
        SELECT chosen.id
        FROM tenuto.tasks AS chosen
        WHERE chosen.state = 'queued'
          AND chosen.id = ANY (ARRAY(SELECT id FROM selected))
        FOR UPDATE SKIP LOCKED
    ))
      -- guard: claim.dead_worker, state_machine.dead_worker
      AND EXISTS (SELECT FROM tenuto.workers WHERE workers.id = $1 AND ended_at IS NULL)
    RETURNING {claimed_task},
              -- no task on standby may take the limit slot of one under a rate limit without a token
              CASE WHEN limit_key IS NOT NULL AND execution_id IS NULL AND NOT EXISTS (SELECT FROM rates) -- guard: rate_limits.no_standby
                   THEN json_build_array(queue, limit_key, limit_max, manifest_id, limit_group, batch_id)::text END AS limit_slot
), taken AS MATERIALIZED (
    SELECT rates.scope, rates.rate_limit, rates.tokens, count(claimed.id) AS taken,
           tenuto.rate_next_at(rates.rate_limit, rates.next_at, instant.at, count(claimed.id)) AS next_at
    FROM rates
    CROSS JOIN instant
    LEFT JOIN (claimed JOIN candidates ON candidates.id = claimed.id)
        ON rates.scope IN (
            'queue ' || claimed.queue, 'rate ' || candidates.rate_key, 'group ' || candidates.limit_group,
            CASE WHEN candidates.manifest_id IS NOT NULL THEN 'all manifests' END
        )
    GROUP BY rates.scope, rates.rate_limit, rates.tokens, rates.next_at, instant.at
), spent AS (
    INSERT INTO tenuto.rate_buckets AS bucket (scope, rate_limit, next_at)
    SELECT scope, rate_limit, next_at
    FROM taken
    WHERE taken > 0 -- guard: rate_limits.tokens_are_spent
    ORDER BY scope
    ON CONFLICT (scope) DO UPDATE
    SET rate_limit = excluded.rate_limit,
        next_at = excluded.next_at,
        release_at = CASE WHEN bucket.release_at IS NOT NULL THEN excluded.next_at END
    RETURNING scope
)
SELECT (SELECT count(*) FROM claimed) < (SELECT count(*) FROM selected)
       AND EXISTS (SELECT FROM tenuto.workers WHERE workers.id = $1 AND ended_at IS NULL) AS is_incomplete,
       ARRAY(SELECT queue FROM queue_capacity WHERE free = 0) AS full_queues,
       unlocked.scopes AS unlocked_scopes,
       ARRAY(SELECT scope FROM taken WHERE tokens <= taken) AS exhausted_scopes,
       (SELECT min(CASE WHEN taken > 0 THEN taken.next_at ELSE rates.next_at END)
        FROM taken
        JOIN rates USING (scope)
        WHERE taken.tokens <= taken) AS next_token_at,
       claimed.*
FROM unlocked
LEFT JOIN claimed ON true;

-- name: park_tasks
-- Park up to $4 queued tasks of each of the scopes $1, whose tokens are used up: claims do not see them until the next
-- token comes (see promote_due_tasks). The caller holds the locks of the scopes; the tasks of a group are found by the
-- limit keys $3 of the queues $2. Return their number.
WITH found AS MATERIALIZED (
    SELECT exhausted.scope, head.id
    FROM unnest($1::text[]) AS exhausted (scope)
    CROSS JOIN LATERAL (
        (SELECT id FROM tenuto.tasks
         WHERE exhausted.scope LIKE 'queue %' AND state = 'queued' AND limit_key IS NULL AND queue = substr(exhausted.scope, 7)
         ORDER BY rank, run_at, id LIMIT $4::integer)
        UNION ALL
        (SELECT id FROM tenuto.tasks
         WHERE exhausted.scope LIKE 'queue %' AND state = 'queued' AND limit_key IS NOT NULL AND queue = substr(exhausted.scope, 7)
         LIMIT $4::integer)
        UNION ALL
        (SELECT id FROM tenuto.tasks
         WHERE exhausted.scope LIKE 'rate %' AND state = 'queued' AND rate_key = substr(exhausted.scope, 6)
         LIMIT $4::integer)
        UNION ALL
        (SELECT tasks.id
         FROM unnest($2::text[], $3::text[]) AS keys (queue, key)
         JOIN tenuto.tasks ON tasks.queue = keys.queue AND tasks.limit_key = keys.key
         WHERE state = 'queued' AND limit_key IS NOT NULL
           AND (exhausted.scope = 'all manifests' AND manifest_id IS NOT NULL
                OR exhausted.scope LIKE 'group %' AND limit_group = substr(exhausted.scope, 7))
         LIMIT $4::integer)
    ) AS head
), parked AS (
    UPDATE tenuto.tasks AS task
    SET state = 'scheduled', parked_for = found.scope
    FROM (SELECT id, min(scope) AS scope FROM found GROUP BY id) AS found
    WHERE task.id = ANY (ARRAY(
        SELECT chosen.id
        FROM tenuto.tasks AS chosen
        WHERE chosen.state = 'queued' AND chosen.id = ANY (ARRAY(SELECT id FROM found))
        FOR UPDATE SKIP LOCKED
    ))
      AND task.id = found.id
    RETURNING task.parked_for
), armed AS (
    UPDATE tenuto.rate_buckets
    SET release_at = next_at -- guard: rate_limits.parked_tasks_are_released
    WHERE scope IN (SELECT parked_for FROM parked)
    RETURNING scope
)
SELECT count(*) AS parked_count, (SELECT count(*) FROM armed) AS armed_count
FROM parked;

-- name: claim_standby_tasks
-- Claim up to $4 tasks for each limit slot $3 (as returned by claim_limited_tasks): tasks with exactly the limits of
-- a task that the worker holds, from the cursor position of each slot, without the tasks $5, of the known jobs $9 and
-- step kinds $10. A standby task starts when a task in such a slot ends, in its slot; until then it counts under no
-- limit, so this claim needs no lock_limits. Batches are locked first, so that none is paused or cancelled in between.
WITH locked_batches AS MATERIALIZED (
    SELECT id
    FROM tenuto.batches
    WHERE id = ANY (ARRAY(SELECT (limit_slot ->> 5)::uuid FROM unnest($3::jsonb[]) AS limit_slot))
      AND paused_at IS NULL
      AND cancelled_at IS NULL
    ORDER BY id
    FOR SHARE -- guard: standby.batch_being_cancelled
), wanted AS MATERIALIZED (
    SELECT *
    FROM unnest($3::jsonb[], $6::smallint[], $7::timestamptz[], $8::uuid[]) AS wanted (limit_slot, rank, run_at, id)
    WHERE (limit_slot ->> 5 IS NULL OR (limit_slot ->> 5)::uuid IN (SELECT id FROM locked_batches))
      AND limit_slot ->> 0 NOT IN (SELECT name FROM tenuto.queues WHERE paused_at IS NOT NULL OR rate_limit IS NOT NULL)
      AND (limit_slot ->> 3 IS NULL
           -- guard: standby.disabled_group
           OR NOT EXISTS (SELECT FROM tenuto.manifest_groups WHERE name IN (limit_slot ->> 4, '*') AND (NOT enabled OR rate_limit IS NOT NULL)))
)
UPDATE tenuto.tasks
SET state = 'running',
    standby = true, -- guard: standby.counts_under_no_limit
    worker_id = $1,
    fence = fence + 1, -- guard: claim.new_fence, state_machine.new_fence
    claimed_at = clock_timestamp(),
    lease_until = clock_timestamp() + $2::interval
WHERE id = ANY (ARRAY(
    SELECT picked.id
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT free.id, free.limit_max, free.manifest_id, free.limit_group, free.batch_id, free.execution_id,
               free.last_chance, free.kind, free.name, free.rate_key
        FROM tenuto.tasks AS free
        WHERE free.state = 'queued'
          AND free.limit_key IS NOT NULL
          AND free.queue = wanted.limit_slot ->> 0
          AND free.limit_key = wanted.limit_slot ->> 1 -- guard: standby.same_limit_key
          AND (free.rank, free.run_at, free.id) > (wanted.rank, wanted.run_at, wanted.id)
          AND {unexpired} -- guard: expiry.claim
        ORDER BY free.rank, free.run_at, free.id
        LIMIT $4
        FOR UPDATE SKIP LOCKED
    ) AS picked
    -- outside the subquery: inside, the planner expects hardly any match and sorts all tasks
    WHERE picked.limit_max = (wanted.limit_slot ->> 2)::integer
      AND picked.manifest_id IS NOT DISTINCT FROM (wanted.limit_slot ->> 3)::uuid
      AND picked.limit_group IS NOT DISTINCT FROM wanted.limit_slot ->> 4
      AND picked.batch_id IS NOT DISTINCT FROM (wanted.limit_slot ->> 5)::uuid
      AND picked.execution_id IS NULL
      AND NOT picked.last_chance -- guard: standby.last_chance_task
      AND picked.rate_key IS NULL -- guard: rate_limits.no_standby_with_key
      AND picked.id <> ALL ($5::uuid[])
      -- guard: standby.known_handler
      AND CASE WHEN $9::jsonb IS NULL THEN true WHEN picked.kind = 'job' THEN $9::jsonb ? picked.name ELSE $10::jsonb ? picked.kind END
))
  -- guard: claim.dead_worker, state_machine.dead_worker
  AND EXISTS (SELECT FROM tenuto.workers WHERE workers.id = $1 AND ended_at IS NULL)
RETURNING {claimed_task},
          json_build_array(queue, limit_key, limit_max, manifest_id, limit_group, batch_id)::text AS limit_slot;

-- name: pass_on_limit_slots
-- Give the limit slots of tasks that are retried or deferred to their standby successors, as finish_tasks does.
WITH leaving AS MATERIALIZED (
    SELECT given.successor
    FROM unnest($2::uuid[], $3::bigint[], $4::uuid[]) AS given (id, fence, successor)
    JOIN tenuto.tasks ON tasks.id = given.id AND tasks.fence = given.fence
    WHERE tasks.id = ANY ($2::uuid[])
      AND tasks.cancel_at IS NULL AND tasks.worker_id = $1
      AND tasks.lease_until > clock_timestamp() -- guard: handoff.expired_lease_of_retry
    ORDER BY tasks.id
    FOR UPDATE OF tasks
)
UPDATE tenuto.tasks AS next
SET standby = false
FROM leaving
WHERE next.id = ANY ($4::uuid[])
  AND next.id = leaving.successor
  AND next.worker_id = $1
  AND next.standby
RETURNING next.id;

-- name: renew_leases
-- Extend the leases of tasks that this worker holds, and store their progress. A task that is not returned is no
-- longer held, or is locked: locked rows are skipped, because one long lock must not cost the leases of all other
-- tasks.
UPDATE tenuto.tasks
SET lease_until = clock_timestamp() + $2::interval,
    progress = coalesce(held.progress, tasks.progress)
FROM unnest($3::uuid[], $4::bigint[], $5::jsonb[]) AS held (id, fence, progress)
WHERE tasks.id = ANY (ARRAY(
    SELECT mine.id
    FROM tenuto.tasks AS mine
    WHERE mine.id = ANY ($3::uuid[])
    ORDER BY mine.id
    FOR UPDATE SKIP LOCKED -- guard: renew.skip_locked
))
  AND tasks.id = held.id
  AND tasks.fence = held.fence -- guard: renew.fence
  AND tasks.worker_id = $1 -- guard: renew.worker
  AND tasks.state = 'running'
  AND tasks.lease_until > clock_timestamp() -- guard: renew.expired_lease
RETURNING tasks.id;

-- name: find_held_tasks
-- Return the tasks that this worker holds according to committed data.
SELECT tasks.id
FROM tenuto.tasks
-- guard: renew.held_fence
JOIN unnest($2::uuid[], $3::bigint[]) AS held (id, fence) ON tasks.id = held.id AND tasks.fence = held.fence
WHERE tasks.id = ANY ($2::uuid[])
  AND tasks.worker_id = $1 -- guard: renew.worker
  AND tasks.state = 'running'
  AND tasks.lease_until > clock_timestamp();

-- name: find_open_tasks
-- Return those of the tasks $1 that have not ended.
SELECT id FROM tenuto.tasks WHERE id = ANY ($1::uuid[]);

-- name: mark_overrun_tasks
-- Mark tasks that ran far over their time limit, and whose leases this worker no longer renews.
UPDATE tenuto.tasks
SET ran_over = true
FROM unnest($2::uuid[], $3::bigint[]) AS held (id, fence)
WHERE tasks.id = ANY ($2::uuid[])
  AND tasks.id = held.id
  AND tasks.fence = held.fence -- guard: watchdog.give_up_by_holder
  AND tasks.worker_id = $1 -- guard: watchdog.give_up_by_holder
  AND tasks.state = 'running'
RETURNING tasks.id;

-- name: list_cancel_requests
-- Return the tasks of this worker for which cancellation is requested.
SELECT id, fence, cancel_type, cancel_id, cancel_name
FROM tenuto.tasks
WHERE state = 'running' AND worker_id = $1 AND cancel_at IS NOT NULL
ORDER BY cancel_at, id
LIMIT 1000;

-- name: finish_tasks
-- Delete the tasks and insert their last activities, in one statement. Only the worker $1 may finish them (null:
-- unclaimed tasks): another fence or worker id matches nothing and changes nothing. The ids are given twice so that
-- the rows are found by index whatever the planner expects of the table size; the join only pairs rows and outcomes,
-- by hash. The worker id is part of the outcome, because otherwise the planner expects hardly any row of this worker.
-- Numbers arrive as text and instants as microseconds, which the driver encodes much faster. A null status means
-- completed. The result names the finished tasks only if some were not. The executions $12 are locked first, by id
-- (see lock_executions). Under a limit the slot of each task goes to its standby successor $13; the result names the
-- successors that received one. One statement and commit for a batch, and its forms of ids and numbers, are measured by
-- the benchmark drain.
WITH held AS MATERIALIZED (
    SELECT id
    FROM tenuto.executions
    WHERE id = ANY ($12::uuid[])
    ORDER BY id
    FOR UPDATE -- guard: executions.locked_in_finish_statement
), outcome AS MATERIALIZED (
    SELECT o.*,
           $1::uuid AS holder,
           coalesce(given_status, 'completed') AS status,
           timestamptz 'epoch' + ended * interval '1 microsecond' AS ended_at,
           timestamptz 'epoch' + started * interval '1 microsecond' AS started_at
    FROM unnest(
        $2::uuid[], $3::text::bigint[], $4::text[], $5::text::bigint[], $6::text[], $7::text::bigint[], $8::jsonb[],
        $9::jsonb[], $10::text[], $11::jsonb[], $13::uuid[]
    ) AS o (id, fence, given_status, ended, reason, started, output, error, log, progress, successor)
), ended AS (
    DELETE FROM tenuto.tasks AS task
    USING outcome
    WHERE (SELECT count(*) FROM held) >= 0
      AND task.id = ANY ($2::uuid[])
      AND task.id = outcome.id
      AND task.fence = outcome.fence -- guard: finish.fence_of_ended_task
      AND task.worker_id IS NOT DISTINCT FROM outcome.holder -- guard: finish.worker
    RETURNING {ended_attempt}, true AS final, outcome.successor, task.lease_until
), passed_on AS (
    UPDATE tenuto.tasks AS next
    SET standby = false
    WHERE next.id = ANY (ARRAY(
        SELECT successor
        FROM ended -- guard: handoff.accepted_outcome
        -- guard: handoff.accepted_outcome, handoff.expired_lease
        WHERE successor IS NOT NULL AND lease_until > clock_timestamp()      -- after that the task had no limit slot
    ))
      AND next.worker_id = $1::uuid
      AND next.standby
    RETURNING next.id
), recorded AS (
    {record_attempts}
    RETURNING task_id
)
SELECT CASE WHEN count(*) < cardinality($2::uuid[]) THEN coalesce(array_agg(task_id), '{}') END AS only_these,
       CASE WHEN $13::uuid[] IS NOT NULL THEN ARRAY(SELECT id FROM passed_on) END AS started_successors
FROM recorded;

-- name: retry_tasks
-- Record the attempts and keep the tasks for another attempt, in one statement, fenced like finish_tasks. Tasks with
-- a cancellation request are skipped. Last-chance tasks run one at a time (see claim_limited_tasks): those without a
-- limit key share one, so that only claims under limits take them. A task that was handed back or lost has begun and does
-- not expire; one that failed does. Not a part of finish_tasks, so that the common case does not pay for it (benchmark
-- drain); no benchmark measures retries.
WITH outcome AS (
    SELECT o.*,
           $1::uuid AS holder,
           coalesce(given_status, 'completed') AS status,
           timestamptz 'epoch' + ended * interval '1 microsecond' AS ended_at,
           timestamptz 'epoch' + started * interval '1 microsecond' AS started_at
    FROM unnest(
        $2::uuid[], $3::text::bigint[], $4::text[], $5::text::bigint[], $6::text[], $7::text::bigint[], $8::jsonb[],
        $9::jsonb[], $10::text[], $11::jsonb[], $12::timestamptz[], $13::uuid[], $14::integer[], $15::integer[],
        $16::boolean[]
    ) AS o (
        id, fence, given_status, ended, reason, started, output, error, log, progress, run_at, activity_id, failures, losses,
        last_chance
    )
), before AS MATERIALIZED (
    SELECT task.*
    FROM tenuto.tasks AS task
    JOIN outcome ON outcome.id = task.id
    WHERE task.id = ANY ($2::uuid[])
      AND task.fence = outcome.fence -- guard: finish.fence_of_retried_task
      AND task.worker_id IS NOT DISTINCT FROM outcome.holder -- guard: finish.worker
      AND task.cancel_at IS NULL -- guard: finish.cancelled_task_is_not_retried
    ORDER BY task.id
    FOR UPDATE OF task -- guard: finish.lock_of_retried_task
), retried AS (
    UPDATE tenuto.tasks AS task
    SET state = CASE WHEN outcome.run_at > clock_timestamp() THEN 'scheduled' ELSE 'queued' END,
        activity_id = outcome.activity_id,
        attempt = task.attempt + 1,
        failures = outcome.failures,
        losses = outcome.losses,
        run_at = outcome.run_at,
        policy = {policy_with_due_instant}, -- guard: logical_time.retry
        limit_key = CASE WHEN outcome.last_chance THEN coalesce(task.limit_key, 'tenuto:last-chance') ELSE task.limit_key END,
        limit_max = CASE WHEN outcome.last_chance THEN coalesce(task.limit_max, 1) ELSE task.limit_max END,
        last_chance = outcome.last_chance,
        parked_for = NULL,
        worker_id = NULL,
        standby = false,
        ran_over = false,
        lease_until = NULL,
        claimed_at = NULL,
        began_at = NULL,
        expires_at = CASE WHEN outcome.reason IN ('handed_back', 'lost') THEN NULL ELSE task.expires_at END, -- guard: expiry.handed_back_or_lost
        progress = NULL
    FROM outcome, before
    WHERE task.id = ANY ($2::uuid[])
      AND task.id = outcome.id
      AND task.id = before.id
    RETURNING task.queue, CASE WHEN task.limit_key IS NULL OR task.state <> 'queued' THEN task.state ELSE 'limited' END AS event
), notified AS (
    SELECT pg_notify('tenuto', event || ' ' || queue)
    FROM (SELECT DISTINCT event, queue FROM retried) AS events
), ended AS (
    SELECT {ended_attempt}, false AS final
    FROM before AS task
    JOIN outcome ON outcome.id = task.id
), recorded AS (
    {record_attempts}
    RETURNING task_id
)
SELECT task_id, (SELECT count(*) FROM notified) AS notified
FROM recorded;

-- name: defer_tasks
-- Release the slots of deferred tasks; the attempt continues later. Tasks with a cancellation request are skipped. A
-- task does not wait for an execution that has already ended; an open execution is marked as awaited. A task that has begun
-- does not expire.
WITH deferred AS (
    UPDATE tenuto.tasks AS task
    SET state = CASE
            WHEN deferral.execution IS NOT NULL AND executions.id IS NOT NULL THEN 'waiting'
            WHEN deferral.until > clock_timestamp() THEN 'scheduled'
            ELSE 'queued'
        END,
        waits_for = executions.id,
        parked_for = NULL,
        began_at = coalesce(task.began_at, deferral.started),
        -- null: the worker did not know the job, so that it has not started
        expires_at = CASE WHEN coalesce(task.began_at, deferral.started) IS NULL THEN task.expires_at END, -- guard: expiry.deferred_task
        run_at = coalesce(deferral.until, task.run_at),
        policy = {policy_with_due_instant}, -- guard: logical_time.deferral
        worker_id = NULL,
        standby = false,
        ran_over = false,
        lease_until = NULL,
        claimed_at = NULL,
        progress = coalesce(deferral.progress, task.progress)
    FROM unnest($2::uuid[], $3::bigint[], $4::timestamptz[], $5::uuid[], $6::jsonb[], $7::timestamptz[])
             AS deferral (id, fence, until, execution, progress, started)
    LEFT JOIN tenuto.executions ON executions.id = deferral.execution AND executions.ended_at IS NULL
    WHERE task.id = ANY ($2::uuid[])
      AND task.id = deferral.id
      AND task.fence = deferral.fence -- guard: defer.fence
      AND task.worker_id = $1 -- guard: defer.worker
      AND task.cancel_at IS NULL
    RETURNING task.id, task.queue, task.waits_for,
              CASE WHEN task.limit_key IS NULL OR task.state <> 'queued' THEN task.state ELSE 'limited' END AS event
), awaited AS (
    UPDATE tenuto.executions
    SET awaited = true
    WHERE id IN (SELECT waits_for FROM deferred) AND NOT awaited -- guard: fast_advance.awaited_by_step
), notified AS (
    SELECT pg_notify('tenuto', event || ' ' || queue)
    FROM (SELECT DISTINCT event, queue FROM deferred WHERE event <> 'waiting') AS events
)
SELECT id, (SELECT count(*) FROM notified) AS notified
FROM deferred;

-- name: lock_cancel_requests
-- Return which of these tasks of one worker have a cancellation request, and its actor.
SELECT id, cancel_type, cancel_id, cancel_name
FROM tenuto.tasks
WHERE id = ANY ($2::uuid[])
  AND state = 'running'
  AND worker_id = $1
  AND cancel_at IS NOT NULL
ORDER BY id
LIMIT 1000
FOR UPDATE;

-- name: return_tasks_to_queue
-- Return claimed tasks that were never started to their queues; no attempt is recorded. Tasks with a cancellation
-- request stay; the recovery sweep ends them as cancelled.
WITH locked_executions AS MATERIALIZED (
    -- locked first, so that none is paused in between
    SELECT id, paused_at
    FROM tenuto.executions
    WHERE id = ANY (ARRAY(SELECT execution_id FROM tenuto.tasks WHERE tasks.id = ANY ($2::uuid[])))
    ORDER BY id
    FOR SHARE -- guard: release.execution_lock
), locked_batches AS MATERIALIZED (
    SELECT id, paused_at
    FROM tenuto.batches
    WHERE id = ANY (ARRAY(SELECT batch_id FROM tenuto.tasks WHERE tasks.id = ANY ($2::uuid[])))
    ORDER BY id
    FOR SHARE -- guard: release.batch_lock
), returned AS (
    UPDATE tenuto.tasks AS task
    SET state = CASE
            -- guard: release.paused_execution
            WHEN task.execution_id IN (SELECT id FROM locked_executions WHERE paused_at IS NOT NULL) THEN 'waiting'
            -- guard: release.paused_batch
            WHEN task.batch_id IN (SELECT id FROM locked_batches WHERE paused_at IS NOT NULL) THEN 'waiting'
            ELSE 'queued'
        END,
        worker_id = NULL,
        standby = false,
        lease_until = NULL,
        claimed_at = NULL
    FROM unnest($2::uuid[], $3::bigint[]) AS held (id, fence)
    WHERE task.id = ANY ($2::uuid[])
      AND task.id = held.id
      AND task.fence = held.fence -- guard: release.fence
      AND task.worker_id = $1 -- guard: release.worker
      AND task.state = 'running' -- guard: release.cancelled_task
      AND task.cancel_at IS NULL -- guard: release.cancelled_task
    RETURNING task.id, task.queue, task.limit_key IS NOT NULL AS limited
), notified AS (
    SELECT pg_notify('tenuto', CASE WHEN limited THEN 'limited ' ELSE 'queued ' END || queue)
    FROM (SELECT DISTINCT queue, limited FROM returned) AS events
)
SELECT id, (SELECT count(*) FROM notified) AS notified
FROM returned;

-- name: has_recoverable_tasks
-- Return whether a lease has expired or an ended worker still holds a task: the cheap check before a recovery sweep.
SELECT EXISTS (
    SELECT
    FROM tenuto.tasks
    LEFT JOIN tenuto.workers ON workers.id = tasks.worker_id
    WHERE tasks.state = 'running'
      AND (tasks.lease_until < clock_timestamp() OR workers.ended_at IS NOT NULL OR workers.id IS NULL)
) AS found;

-- name: list_owners_of_expired_tasks
-- Return the executions, batches and manifests of tasks with an expired lease, without the tasks $2; the caller locks
-- them before the tasks.
SELECT DISTINCT execution_id, batch_id, manifest_id
FROM (
    SELECT execution_id, batch_id, manifest_id
    FROM tenuto.tasks
    WHERE state = 'running' AND lease_until < clock_timestamp() AND id <> ALL ($2::uuid[])
    ORDER BY queue, id
    LIMIT $1
) AS expired;

-- name: list_owners_of_worker_tasks
-- Like list_owners_of_expired_tasks, for the tasks that the worker $3 holds.
SELECT DISTINCT execution_id, batch_id, manifest_id
FROM (
    SELECT execution_id, batch_id, manifest_id
    FROM tenuto.tasks
    WHERE state = 'running' AND worker_id = $3 AND id <> ALL ($2::uuid[])
    ORDER BY queue, id
    LIMIT $1
) AS held;

-- name: lock_expired_tasks
-- Return and lock running tasks with an expired lease, so that no late renewal succeeds. Only tasks whose execution,
-- batch and manifest are null or locked ($3, $4, $5), without the tasks $2. Ordered by queue first so that the
-- planner uses the index of running tasks instead of scanning all ids.
SELECT {claimed_task}, claimed_at, cancel_name, cancel_type, cancel_id, NULL AS limit_slot,
       ran_over AS overran_time_limit
FROM tenuto.tasks
WHERE state = 'running' AND lease_until < clock_timestamp() -- guard: recovery.live_lease
  AND id <> ALL ($2::uuid[])
  AND (execution_id IS NULL OR execution_id = ANY ($3::uuid[]))
  AND (batch_id IS NULL OR batch_id = ANY ($4::uuid[]))
  AND (manifest_id IS NULL OR manifest_id = ANY ($5::uuid[]))
ORDER BY queue, id
LIMIT $1
-- guard: recovery.row_lock
FOR UPDATE SKIP LOCKED;

-- name: lock_tasks_of_worker
-- Like lock_expired_tasks, for the tasks that the ended worker $6 still holds.
SELECT {claimed_task}, claimed_at, cancel_name, cancel_type, cancel_id, NULL AS limit_slot,
       ran_over AS overran_time_limit
FROM tenuto.tasks
WHERE state = 'running' AND worker_id = $6
  AND id <> ALL ($2::uuid[])
  AND (execution_id IS NULL OR execution_id = ANY ($3::uuid[]))
  AND (batch_id IS NULL OR batch_id = ANY ($4::uuid[]))
  AND (manifest_id IS NULL OR manifest_id = ANY ($5::uuid[]))
ORDER BY queue, id
LIMIT $1
FOR UPDATE SKIP LOCKED;

-- name: list_expired_tasks
-- Return up to $2 tasks that have not started before they expired, for the worker that ends them. A running task is not
-- affected, and neither is a step of a group that has not started.
SELECT {claimed_task}, claimed_at, cancel_name, cancel_type, cancel_id
FROM tenuto.tasks
-- the condition of the index tasks_by_expiry
WHERE state <> 'running' -- guard: expiry.running_task
  AND (state <> 'waiting' OR execution_id IS NULL) -- guard: expiry.waiting_step
  AND expires_at <= $1
ORDER BY expires_at, id
LIMIT $2;

-- name: load_tasks_to_cancel
-- Return tasks with the columns that a cancellation needs.
SELECT {claimed_task}, claimed_at, cancel_name, cancel_type, cancel_id
FROM tenuto.tasks
WHERE id = ANY ($1::uuid[])
ORDER BY id;

-- name: load_task_to_cancel
-- Return one task with the columns that a cancellation needs.
SELECT {claimed_task}, claimed_at, cancel_name, cancel_type, cancel_id
FROM tenuto.tasks
WHERE id = $1;

-- name: load_attempt_began_at
-- Return when the current attempt at a deferred task began.
SELECT began_at
FROM tenuto.tasks
WHERE id = $1;

-- name: request_cancellation
-- Request cancellation of a running task and notify its worker.
WITH requested AS (
    UPDATE tenuto.tasks
    SET cancel_at = coalesce(cancel_at, clock_timestamp()),
        cancel_type = coalesce(cancel_type, $3),
        cancel_id = CASE WHEN cancel_at IS NULL THEN $4 ELSE cancel_id END,
        cancel_name = coalesce(cancel_name, $5)
    WHERE id = $1 AND fence = $2 AND state = 'running' -- guard: cancel.fence, cancel.running_only
    RETURNING id, worker_id
)
SELECT id, pg_notify('tenuto', 'cancel ' || worker_id::text)
FROM requested;
