-- A worker registers the jobs and step kinds that it knows (name → version or null) and claims only their tasks. Null
-- means a process of an earlier release, which claims all tasks. Every process also registers how long it may be
-- silent; after that it counts as dead.

ALTER TABLE tenuto.workers
    ADD COLUMN jobs jsonb,
    ADD COLUMN kinds jsonb,
    ADD COLUMN silence_limit interval NOT NULL DEFAULT interval '2 minutes';

CREATE FUNCTION tenuto.process_state(process tenuto.workers) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE
    WHEN (process).ended_at IS NOT NULL THEN 'ended'
    WHEN (process).seen_at < now() - (process).silence_limit THEN 'dead'
    WHEN (process).draining_at IS NOT NULL THEN 'draining'
    ELSE 'alive'
END;
COMMENT ON FUNCTION tenuto.process_state IS 'The state of a service process: alive, draining, dead or ended.';

CREATE FUNCTION tenuto.knows_handler(process tenuto.workers, kind text, name text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN (process).jobs IS NULL THEN true
    WHEN kind = 'job' THEN (process).jobs ? name
    ELSE coalesce((process).kinds ? kind, false)
END;
COMMENT ON FUNCTION tenuto.knows_handler IS 'Whether a worker knows the job or step kind of a task.';

CREATE FUNCTION tenuto.unknown_jobs(sample integer)
RETURNS TABLE (queue text, kind text, name text, task_count bigint, oldest_due_at timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, tenuto, pg_temp AS $$
    -- Tasks that no worker claims gather at the head of their queue, so the first tasks of each queue show their jobs.
    WITH RECURSIVE plain AS (
        SELECT min(tasks.queue) AS queue FROM tenuto.tasks WHERE state = 'queued' AND limit_key IS NULL
        UNION ALL
        SELECT (
            SELECT min(tasks.queue)
            FROM tenuto.tasks
            WHERE state = 'queued' AND limit_key IS NULL AND tasks.queue > plain.queue
        )
        FROM plain
        WHERE plain.queue IS NOT NULL
    ), limited AS (
        SELECT min(tasks.queue) AS queue FROM tenuto.tasks WHERE state = 'queued' AND limit_key IS NOT NULL
        UNION ALL
        SELECT (
            SELECT min(tasks.queue)
            FROM tenuto.tasks
            WHERE state = 'queued' AND limit_key IS NOT NULL AND tasks.queue > limited.queue
        )
        FROM limited
        WHERE limited.queue IS NOT NULL
    ), waiting AS (
        SELECT first_tasks.*
        FROM plain
        CROSS JOIN LATERAL (
            SELECT tasks.queue, tasks.kind, tasks.name, tasks.run_at
            FROM tenuto.tasks
            WHERE state = 'queued' AND limit_key IS NULL AND tasks.queue = plain.queue
            ORDER BY rank, run_at, id
            LIMIT sample
        ) AS first_tasks
        UNION ALL
        SELECT first_tasks.*
        FROM limited
        CROSS JOIN LATERAL (
            SELECT tasks.queue, tasks.kind, tasks.name, tasks.run_at
            FROM tenuto.tasks
            WHERE state = 'queued' AND limit_key IS NOT NULL AND tasks.queue = limited.queue
            ORDER BY limit_key, rank, run_at, id
            LIMIT sample
        ) AS first_tasks
    ), counted AS (
        SELECT waiting.queue, waiting.kind, CASE WHEN waiting.kind = 'job' THEN waiting.name ELSE waiting.kind END AS name,
               count(*) AS task_count, min(waiting.run_at) AS oldest_due_at
        FROM waiting
        GROUP BY 1, 2, 3
    )
    SELECT counted.*
    FROM counted
    WHERE EXISTS (
        SELECT FROM tenuto.workers
        WHERE service = 'worker' AND counted.queue = ANY (queues) AND tenuto.process_state(workers) = 'alive'
    ) AND NOT EXISTS (
        SELECT FROM tenuto.workers
        WHERE service = 'worker' AND counted.queue = ANY (queues) AND tenuto.process_state(workers) = 'alive'
          AND tenuto.knows_handler(workers, counted.kind, counted.name)
    )
$$;
COMMENT ON FUNCTION tenuto.unknown_jobs IS
    'Jobs and step kinds among the first due tasks of each served queue that no live worker of the queue knows.';
