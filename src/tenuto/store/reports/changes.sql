-- name: executions_under_way
-- Executions that have not ended.
SELECT id, schedule_name, state, current_group, total_groups, total_steps, failed_steps, started_at, ended_at, paused_at
FROM tenuto.executions
WHERE ended_at IS NULL
ORDER BY id DESC
LIMIT $1;

-- name: executions_ended
-- Executions that ended after an instant, or at it with a higher id; the first of them first.
SELECT id, schedule_name, state, current_group, total_groups, total_steps, failed_steps, started_at, ended_at, paused_at
FROM tenuto.executions
WHERE ended_at >= $1 AND (ended_at, id) > ($1::timestamptz, $2::uuid)
ORDER BY ended_at, id
LIMIT $3;

-- name: activities_ended
-- How many attempts ended from an instant on, by span of time.
SELECT date_bin($2::interval, ended_at, '2000-01-01') AS span, name, status, count(*) AS count
FROM tenuto.activities
WHERE ended_at >= $1
GROUP BY span, name, status
ORDER BY span, count(*) DESC, name, status
LIMIT $3;

-- name: letters_changed
-- Dead letters that came, or were resolved, after an instant, or at it with a higher id; the first of them first.
(
    SELECT id, external_id AS name, status, dead_lettered_at AS at
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

-- name: definitions_changed
-- Changes of schedules and manifests after an instant, or at it with a higher id; the first of them first.
(
    SELECT schedule_id AS id, 'schedule' AS what, name, change, version, at
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

-- name: standing
-- What is there right now. All that is open is counted: no index would be quicker than the table, which holds nothing else.
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
