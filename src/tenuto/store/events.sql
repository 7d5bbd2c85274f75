-- name: executions_under_way
-- Executions that have not ended.
SELECT id, schedule_name, state, current_group, total_groups, total_steps, failed_steps, started_at, ended_at, paused_at
FROM tenuto.executions
WHERE ended_at IS NULL
ORDER BY id DESC
LIMIT $1;

-- name: executions_ended
-- Executions that ended after an instant.
SELECT id, schedule_name, state, current_group, total_groups, total_steps, failed_steps, started_at, ended_at, paused_at
FROM tenuto.executions
WHERE ended_at > $1
ORDER BY ended_at
LIMIT $2;

-- name: activities_ended
-- How many attempts ended after an instant.
SELECT name, status, count(*) AS count
FROM tenuto.activities
WHERE ended_at > $1
GROUP BY name, status
ORDER BY count(*) DESC, name, status
LIMIT 100;

-- name: letters_changed
-- Dead letters that came, or were resolved, after an instant.
(
    SELECT id, external_id AS name, status, dead_lettered_at AS at
    FROM tenuto.dead_letters
    WHERE dead_lettered_at > $1 AND status = 'awaiting_intervention'
    ORDER BY dead_lettered_at
    LIMIT $2
)
UNION ALL
(
    SELECT id, external_id, status, resolved_at
    FROM tenuto.dead_letters
    WHERE resolved_at > $1
    ORDER BY resolved_at
    LIMIT $2
)
ORDER BY at
LIMIT $2;

-- name: definitions_changed
-- The last change of each schedule and manifest that was changed after an instant.
(
    SELECT DISTINCT ON (schedule_id) 'schedule' AS what, name, change, version, at
    FROM tenuto.schedule_versions
    WHERE at > $1
    ORDER BY schedule_id, version DESC
    LIMIT $2
)
UNION ALL
(
    SELECT DISTINCT ON (manifest_id) 'manifest', external_id, change, version, at
    FROM tenuto.manifest_versions
    WHERE at > $1
    ORDER BY manifest_id, version DESC
    LIMIT $2
)
ORDER BY at
LIMIT $2;

-- name: standing
-- What is there right now.
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
