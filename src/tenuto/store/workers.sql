-- name: alive_named
-- The living incarnation of a name, if there is one, and for how long its leases run; locked, so that two newcomers do not
-- judge at once.
SELECT id, host, boot, pid, seen_at, clock_timestamp() - seen_at AS silent_for,
       (SELECT max(lease_until) - clock_timestamp()
        FROM tenuto.tasks
        WHERE state = 'running' AND worker_id = workers.id AND lease_until > clock_timestamp()) AS leased_for
FROM tenuto.workers
WHERE service = $1 AND name = $2 AND ended_at IS NULL
FOR UPDATE;

-- name: register
-- A new incarnation.
INSERT INTO tenuto.workers (
    id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, clock_timestamp(), clock_timestamp())
ON CONFLICT (id) DO NOTHING;

-- name: declare_ended
-- It is gone, or known to be dead: from now on it can claim nothing.
UPDATE tenuto.workers
SET ended_at = clock_timestamp()
WHERE id = $1 AND ended_at IS NULL;

-- name: give_up
-- It has fallen silent, which proves nothing. Its end is its last sign of life: that tells it from all whose end is known.
UPDATE tenuto.workers
SET ended_at = seen_at
WHERE id = $1 AND ended_at IS NULL;

-- name: seen
-- A sign of life; answers nothing if somebody has declared this worker dead.
UPDATE tenuto.workers
SET seen_at = clock_timestamp()
WHERE id = $1 AND ended_at IS NULL
RETURNING clock_timestamp() AS now;

-- name: draining
-- It takes no more work.
UPDATE tenuto.workers
SET draining_at = coalesce(draining_at, clock_timestamp())
WHERE id = $1;

-- name: ended_holders
-- Workers known to be ended that still hold tasks. Not those that were given up for their silence: they may have got in a
-- claim meanwhile, and it is theirs until its lease has run out.
SELECT DISTINCT held.worker_id AS id
FROM tenuto.tasks AS held
JOIN tenuto.workers ON workers.id = held.worker_id
WHERE held.state = 'running' AND workers.ended_at <> workers.seen_at
LIMIT $1;

-- name: bury_silent
-- Incarnations nobody has heard of for long and that hold nothing, but not the caller's own $2, are given up as above.
UPDATE tenuto.workers
SET ended_at = seen_at
WHERE ended_at IS NULL
  AND seen_at < clock_timestamp() - $1::interval
  AND id <> ALL ($2::uuid[])
  AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE state = 'running' AND worker_id = workers.id)
RETURNING id;

-- name: forget_ended
-- Incarnations that ended long ago.
DELETE FROM tenuto.workers
WHERE ended_at < $1;

-- name: list_workers
-- Incarnations, newest first, with what they hold.
SELECT workers.*,
       clock_timestamp() - seen_at AS silent_for,
       (SELECT count(*) FROM tenuto.tasks WHERE state = 'running' AND worker_id = workers.id) AS running
FROM tenuto.workers
WHERE $1 OR ended_at IS NULL
ORDER BY started_at DESC, id
LIMIT $2;

-- name: count_repair
-- A net found something.
INSERT INTO tenuto.repairs (net, count, last_at)
VALUES ($1, $2, clock_timestamp())
ON CONFLICT (net) DO UPDATE SET count = repairs.count + excluded.count, last_at = excluded.last_at;

-- name: list_repairs
-- What the nets have found so far.
SELECT net, count, last_at
FROM tenuto.repairs
ORDER BY net
LIMIT 100;

-- name: limit_queue
-- Bound how many tasks of a queue run at once, or with null lift the bound; whether it is paused stays as it is.
INSERT INTO tenuto.queues (name, max_running)
VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET max_running = excluded.max_running;

-- name: pause_queue
-- Pause a queue; who paused it first, and why, stands.
INSERT INTO tenuto.queues (name, paused_at, paused_by, reason)
VALUES ($1, clock_timestamp(), $2, $3)
ON CONFLICT (name) DO UPDATE
SET paused_at = excluded.paused_at,
    paused_by = excluded.paused_by,
    reason = excluded.reason
WHERE queues.paused_at IS NULL;

-- name: resume_queue
-- Let a queue go on; its bound stays as it is.
UPDATE tenuto.queues
SET paused_at = NULL,
    paused_by = NULL,
    reason = NULL
WHERE name = $1;

-- name: list_queues
-- Every queue that has settings or open tasks, with what is in it.
SELECT coalesce(queues.name, counted.queue) AS name, queues.max_running, queues.paused_at, queues.paused_by,
       queues.reason, coalesce(counted.queued, 0) AS queued, coalesce(counted.scheduled, 0) AS scheduled,
       coalesce(counted.running, 0) AS running, counted.oldest
FROM tenuto.queues
FULL JOIN (
    SELECT queue,
           count(*) FILTER (WHERE state = 'queued') AS queued,
           count(*) FILTER (WHERE state = 'scheduled') AS scheduled,
           count(*) FILTER (WHERE state = 'running') AS running,
           min(run_at) FILTER (WHERE state = 'queued') AS oldest
    FROM tenuto.tasks
    GROUP BY queue
) AS counted ON counted.queue = queues.name
ORDER BY 1
LIMIT $1;
