-- name: find_by_id
-- Return objects of every kind whose id is in a range. Each branch has a limit, because a short prefix matches many ids.
(SELECT 'execution' AS kind, id, schedule_name AS name, state
 FROM tenuto.executions WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT $3)
UNION ALL
(SELECT CASE WHEN origin = 'once' THEN 'one_shot' ELSE 'task' END, id, name, state
 FROM tenuto.tasks WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT $3)
UNION ALL
(SELECT 'activity', id, name, status
 FROM tenuto.activities WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT $3)
UNION ALL
(SELECT 'dead_letter', id, external_id, status
 FROM tenuto.dead_letters WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT $3)
UNION ALL
(SELECT 'batch', id, coalesce(name, external_id), NULL
 FROM tenuto.batches WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT $3)
UNION ALL
(SELECT 'operation', id, kind, state
 FROM tenuto.bulk_operations WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT $3)
UNION ALL
(SELECT 'schedule', id, name, CASE WHEN enabled THEN 'enabled' ELSE 'disabled' END
 FROM tenuto.schedules WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT $3)
UNION ALL
(SELECT 'manifest', id, external_id, CASE WHEN enabled THEN 'enabled' ELSE 'disabled' END
 FROM tenuto.manifests WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT $3)
UNION ALL
(SELECT 'worker', id, name, tenuto.process_state(workers)
 FROM tenuto.workers WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT $3)
LIMIT $3;

-- name: find_by_name
-- Return schedules, manifests, queues, workers and jobs whose name contains a text, whole names and beginnings first.
-- Jobs are those that live workers know.
SELECT kind, id, name, state
FROM (
    SELECT 'schedule' AS kind, id, name, CASE WHEN enabled THEN 'enabled' ELSE 'disabled' END AS state
    FROM tenuto.schedules
    UNION ALL
    SELECT 'manifest', id, external_id, CASE WHEN enabled THEN 'enabled' ELSE 'disabled' END
    FROM tenuto.manifests
    UNION ALL
    SELECT 'queue', NULL, name, NULL
    FROM (
        SELECT name FROM tenuto.queues
        UNION
        SELECT unnest(queues) FROM tenuto.workers WHERE ended_at IS NULL
    ) AS known_queues
    UNION ALL
    SELECT 'worker', id, name, tenuto.process_state(workers)
    FROM tenuto.workers
    WHERE ended_at IS NULL
    UNION ALL
    SELECT DISTINCT 'job', NULL::uuid, known.name, NULL
    FROM tenuto.workers
    CROSS JOIN LATERAL jsonb_object_keys(coalesce(workers.jobs, '{}')) AS known (name)
    WHERE workers.ended_at IS NULL
) AS named
WHERE strpos(lower(name), lower($1)) > 0
ORDER BY lower(name) <> lower($1), strpos(lower(name), lower($1)) <> 1, name, kind
LIMIT $2;
