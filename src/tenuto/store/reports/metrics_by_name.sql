-- now() instead of clock_timestamp() throughout: only a value that is stable within a statement can use an index.

-- name: count_tasks_by_job
-- Count running tasks, and due ones among the first $1 of each queue with and without limits, by queue and job; a step
-- that is not a job counts by its kind. The recursion finds the queues by one index lookup each, at most $2.
WITH RECURSIVE queues AS (
    SELECT least(
               (SELECT min(queue) FROM tenuto.tasks WHERE state = 'queued' AND limit_key IS NULL),
               (SELECT min(queue) FROM tenuto.tasks WHERE state = 'queued' AND limit_key IS NOT NULL)
           ) AS name
    UNION ALL
    SELECT least(
               (SELECT min(queue)
                FROM tenuto.tasks
                WHERE state = 'queued' AND limit_key IS NULL AND queue > queues.name),
               (SELECT min(queue)
                FROM tenuto.tasks
                WHERE state = 'queued' AND limit_key IS NOT NULL AND queue > queues.name)
           )
    FROM queues
    WHERE queues.name IS NOT NULL
), found AS (
    SELECT queue, kind, name, 'queued' AS state
    FROM (SELECT name AS queue_name FROM queues WHERE name IS NOT NULL LIMIT $2) AS first_queues
    CROSS JOIN LATERAL (
        (SELECT queue, kind, name
         FROM tenuto.tasks
         WHERE state = 'queued' AND limit_key IS NULL AND queue = queue_name
         ORDER BY rank, run_at, id
         LIMIT $1)
        UNION ALL
        (SELECT queue, kind, name
         FROM tenuto.tasks
         WHERE state = 'queued' AND limit_key IS NOT NULL AND queue = queue_name
         ORDER BY limit_key, rank, run_at, id
         LIMIT $1)
    ) AS first_tasks
    UNION ALL
    SELECT queue, kind, name, 'running'
    FROM tenuto.tasks
    WHERE state = 'running' AND NOT standby
)
SELECT CASE WHEN kind = 'job' THEN name ELSE kind END AS name, queue, state, count(*) AS task_count
FROM found
GROUP BY 1, 2, 3
ORDER BY task_count DESC, 1, 2, 3
LIMIT 10000;

-- name: list_schedule_figures
-- Return for the first $1 enabled schedules the time since the last success, and the last run, among the latest 50
-- executions of each.
SELECT schedules.name,
       CASE WHEN runs.succeeded_at IS NOT NULL -- greatest() ignores NULL
            THEN greatest(0, extract(epoch FROM now() - runs.succeeded_at))::double precision END AS last_success_age_seconds,
       runs.last_state, runs.last_seconds::double precision AS last_seconds
FROM (SELECT id, name FROM tenuto.schedules WHERE enabled ORDER BY id LIMIT $1) AS schedules
CROSS JOIN LATERAL (
    SELECT max(ended_at) FILTER (WHERE state = 'completed') AS succeeded_at,
           (array_agg(state ORDER BY id DESC) FILTER (WHERE ended_at IS NOT NULL))[1] AS last_state,
           (array_agg(extract(epoch FROM ended_at - started_at) ORDER BY id DESC)
               FILTER (WHERE ended_at IS NOT NULL))[1] AS last_seconds
    FROM (
        SELECT id, state, started_at, ended_at
        FROM tenuto.executions
        WHERE schedule_id = schedules.id
        ORDER BY id DESC
        LIMIT 50
    ) AS latest
) AS runs
ORDER BY schedules.id;

-- name: count_open_executions
-- Count the executions in progress of each schedule.
SELECT schedule_name AS name, count(*) AS execution_count
FROM tenuto.executions
WHERE ended_at IS NULL
GROUP BY schedule_name
ORDER BY execution_count DESC, name
LIMIT 10000;

-- name: count_recent_executions
-- Count the executions that ended within $1 by schedule and state, among the latest $2.
SELECT name, state, count(*) AS execution_count
FROM (
    SELECT schedule_name AS name, state
    FROM tenuto.executions
    WHERE ended_at > now() - $1::interval
    ORDER BY ended_at DESC
    LIMIT $2
) AS ended
GROUP BY name, state
ORDER BY execution_count DESC, name, state;

-- name: list_manifest_figures
-- Return the time since the last success of the first $1 enabled manifests.
SELECT external_id AS name,
       CASE WHEN last_successful_run IS NOT NULL
            THEN greatest(0, extract(epoch FROM now() - last_successful_run))::double precision END AS last_success_age_seconds
FROM tenuto.manifests
WHERE enabled
ORDER BY id
LIMIT $1;

-- name: count_enabled_definitions
-- Count the enabled schedules and manifests.
SELECT (SELECT count(*) FROM tenuto.schedules WHERE enabled) AS schedule_count,
       (SELECT count(*) FROM tenuto.manifests WHERE enabled) AS manifest_count;
