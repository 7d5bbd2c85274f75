-- (now() throughout, not clock_timestamp(): only what stands still within a statement can be looked up in an index.)

-- name: waiting_by_queue
-- Of each queue how many tasks are free to be taken, and for how long the one that waits longest has been due. Two arms,
-- because what has a limited key stands in an index of its own.
SELECT queue, sum(waiting)::bigint AS waiting,
       greatest(0, extract(epoch FROM now() - min(oldest)))::double precision AS oldest_seconds
FROM (
    SELECT queue, count(*) AS waiting, min(run_at) AS oldest
    FROM tenuto.tasks
    WHERE state = 'queued' AND limit_key IS NULL
    GROUP BY queue
    UNION ALL
    SELECT queue, count(*), min(run_at)
    FROM tenuto.tasks
    WHERE state = 'queued' AND limit_key IS NOT NULL
    GROUP BY queue
) AS free
GROUP BY queue
ORDER BY waiting DESC, queue
LIMIT 200;

-- name: running_by_queue
-- Of each queue how many tasks are held under a lease that is live, and how many under one that has run out.
SELECT queue,
       count(*) FILTER (WHERE lease_until > now()) AS live,
       count(*) FILTER (WHERE lease_until <= now()) AS overdue
FROM tenuto.tasks
WHERE state = 'running'
GROUP BY queue
ORDER BY live DESC, queue
LIMIT 200;

-- name: not_due
-- How many tasks are scheduled for later. One that is due and was not let go yet counts too.
SELECT count(*) AS scheduled
FROM tenuto.tasks
WHERE state = 'scheduled';

-- name: held_back
-- How many tasks wait for an earlier step group, for another execution, or for a paused batch to go on. What waits has an
-- execution or belongs to a paused batch, so nothing else is looked at.
SELECT (
    SELECT count(*)
    FROM tenuto.tasks
    WHERE execution_id IS NOT NULL AND state = 'waiting'
) + (
    SELECT count(*)
    FROM tenuto.batches
    CROSS JOIN LATERAL (
        SELECT
        FROM tenuto.tasks
        WHERE tasks.batch_id = batches.id AND tasks.state = 'waiting' AND tasks.batch_id IS NOT NULL
    ) AS held
    WHERE batches.paused_at IS NOT NULL
) AS waiting;

-- name: letters
-- How many dead letters wait for somebody.
SELECT count(*) AS open
FROM tenuto.dead_letters
WHERE status = 'awaiting_intervention';

-- name: executions
-- How many executions have not ended, and how many of them are paused.
SELECT count(*) AS in_progress, count(paused_at) AS paused
FROM tenuto.executions
WHERE ended_at IS NULL;

-- name: due
-- How many schedules and manifests are due, and how late the latest of each is.
SELECT 'schedule' AS what, count(*) AS due,
       coalesce(extract(epoch FROM now() - min(next_run_at)), 0)::double precision AS late_seconds
FROM tenuto.schedules
WHERE enabled AND next_run_at IS NOT NULL AND next_run_at <= now()
UNION ALL
SELECT 'manifest', count(*),
       coalesce(extract(epoch FROM now() - min(next_run_at)), 0)::double precision
FROM tenuto.manifests
WHERE enabled AND next_run_at IS NOT NULL AND next_run_at <= now();

-- name: latest_schedule
-- How late the scheduler is: of all that is due, the schedule that has waited longest, by name.
SELECT name, extract(epoch FROM now() - next_run_at)::double precision AS late_seconds
FROM tenuto.schedules
WHERE enabled AND next_run_at IS NOT NULL AND next_run_at <= now()
ORDER BY next_run_at, id
LIMIT 1;

-- name: services
-- Of each kind of service how many are in the register, the slots of those that take work, and for how long nobody has
-- heard of the one heard of last.
SELECT service,
       count(*) FILTER (WHERE seen_at > now() - $1::interval) AS alive,
       count(*) FILTER (WHERE seen_at <= now() - $1::interval) AS silent,
       coalesce(sum(slots) FILTER (WHERE seen_at > now() - $1::interval AND draining_at IS NULL), 0) AS slots,
       extract(epoch FROM now() - max(seen_at))::double precision AS heard_seconds
FROM tenuto.workers
WHERE ended_at IS NULL
GROUP BY service
ORDER BY service
LIMIT 10;

-- name: repairs
-- How often each net has found something, since the schema was made.
SELECT net, count
FROM tenuto.repairs
ORDER BY net
LIMIT 100;

-- name: lately
-- What attempts that ended within the last $1 came to: how many, how long they ran, and how late they began. The summary of
-- each stretch of records leads to the few that are recent.
SELECT status, coalesce(reason, '') AS reason, count(*) AS attempts,
       coalesce(sum(extract(epoch FROM ended_at - started_at)), 0)::double precision AS run_seconds,
       coalesce(max(extract(epoch FROM ended_at - started_at)), 0)::double precision AS longest_seconds,
       greatest(0, coalesce(max(extract(epoch FROM started_at - run_at)), 0))::double precision AS latest_seconds
FROM tenuto.activities
WHERE ended_at > now() - $1::interval
GROUP BY status, reason
ORDER BY status, reason
LIMIT 100;

-- name: knock
-- Whether anybody answers.
SELECT 1;
