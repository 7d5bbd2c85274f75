-- name: list_open_executions
-- Return open executions.
SELECT id, schedule_name, state, current_group, total_groups AS group_count, total_steps AS step_count,
       failed_steps AS failed_step_count, started_at, ended_at, paused_at
FROM tenuto.executions
WHERE ended_at IS NULL
ORDER BY id DESC
LIMIT $1;

-- name: list_ended_executions
-- Return executions that ended after a cursor of instant and id, oldest first.
SELECT id, schedule_name, state, current_group, total_groups AS group_count, total_steps AS step_count,
       failed_steps AS failed_step_count, started_at, ended_at, paused_at
FROM tenuto.executions
WHERE ended_at >= $1 AND (ended_at, id) > ($1::timestamptz, $2::uuid)
ORDER BY ended_at, id
LIMIT $3;

-- name: count_ended_activities
-- Count attempts that ended since an instant, by time span, with the ids of the last $4 tasks of each count.
SELECT date_bin($2::interval, ended_at, '2000-01-01') AS span_at, name, status AS state, count(*) AS count,
       coalesce(
           (array_agg(task_id ORDER BY ended_at DESC, id) FILTER (WHERE $4::integer > 0))[1:$4], ARRAY[]::uuid[]
       ) AS task_ids
FROM tenuto.activities
WHERE ended_at >= $1
GROUP BY span_at, name, status
ORDER BY span_at, count(*) DESC, name, status
LIMIT $3;

-- name: list_changed_dead_letters
-- Return dead letters that were written or resolved after a cursor of instant and id, oldest first.
(
    SELECT id, external_id, status AS state, dead_lettered_at AS at
    FROM tenuto.dead_letters
    WHERE dead_lettered_at >= $1 AND (dead_lettered_at, id) > ($1::timestamptz, $2::uuid)
      AND status = 'awaiting_intervention'
    ORDER BY dead_lettered_at, id
    LIMIT $3
)
UNION ALL
(
    SELECT id, external_id, status, resolved_at
    FROM tenuto.dead_letters
    WHERE resolved_at >= $1 AND (resolved_at, id) > ($1::timestamptz, $2::uuid)
    ORDER BY resolved_at, id
    LIMIT $3
)
ORDER BY at, id
LIMIT $3;

-- name: list_definition_changes
-- Return changes of schedules and manifests after a cursor of instant and id, oldest first.
(
    SELECT schedule_id AS id, 'schedule' AS kind, name, change, version, at
    FROM tenuto.schedule_versions
    WHERE (at, schedule_id) > ($1::timestamptz, $2::uuid)
    ORDER BY at, schedule_id
    LIMIT $3
)
UNION ALL
(
    SELECT manifest_id, 'manifest', external_id, change, version, at
    FROM tenuto.manifest_versions
    WHERE (at, manifest_id) > ($1::timestamptz, $2::uuid)
    ORDER BY at, manifest_id
    LIMIT $3
)
ORDER BY at, id
LIMIT $3;

-- name: load_queues_and_workers
-- Return the current task counts of the queues and the live workers. Counts all open tasks: the table holds nothing
-- else, so no index would be faster.
SELECT (
           SELECT coalesce(json_object_agg(queue, states), '{}')
           FROM (
               SELECT queue, json_object_agg(state, count) AS states
               FROM (SELECT queue, state, count(*) AS count FROM tenuto.tasks GROUP BY queue, state) AS counted
               GROUP BY queue
               ORDER BY queue
               LIMIT 200
           ) AS queues
       ) AS queues,
       (
           SELECT coalesce(json_agg(json_build_object('name', name, 'service', service, 'draining', draining_at IS NOT NULL)), '[]')
           FROM (
               SELECT name, service, draining_at
               FROM tenuto.workers
               WHERE ended_at IS NULL
               ORDER BY service, name
               LIMIT 200
           ) AS alive
       ) AS workers;
