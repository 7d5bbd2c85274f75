-- name: load_digests
-- Return a digest of the visible state of single objects, for the subscribers of the event feed. An object that does not
-- exist, or no longer, has no row. The steps of an execution are its open tasks: an ended step leaves them. The items of
-- a batch may be many; those that are running change whenever one ends.
SELECT 'execution:' || id AS topic,
       concat_ws(
           ' ', state, current_group, failed_steps, ended_at, paused_at, cancelled_at,
           (SELECT concat_ws(' ', count(*), sum(hashtextextended(concat_ws(' ', tasks.id, tasks.state, attempt, fence, standby, cancel_at, progress), 0)))
            FROM tenuto.tasks
            WHERE tasks.execution_id = executions.id)
       ) AS digest
FROM tenuto.executions
WHERE id = ANY ($1::uuid[])
UNION ALL
SELECT 'task:' || id, concat_ws(' ', state, attempt, fence, standby, run_at, cancel_at, waits_for, progress)
FROM tenuto.tasks
WHERE id = ANY ($2::uuid[])
UNION ALL
SELECT 'batch:' || id,
       concat_ws(
           ' ', total, complete_at, paused_at, cancelled_at,
           (SELECT concat_ws(' ', count(*), sum(hashtextextended(tasks.id::text, 0)))
            FROM tenuto.tasks
            WHERE tasks.batch_id = batches.id AND tasks.batch_id IS NOT NULL AND tasks.state = 'running'),
           (SELECT count(*)
            FROM (SELECT
                  FROM tenuto.tasks
                  WHERE tasks.batch_id = batches.id AND tasks.batch_id IS NOT NULL
                  LIMIT 1000) AS remaining)
       )
FROM tenuto.batches
WHERE id = ANY ($3::uuid[])
UNION ALL
SELECT 'log:' || watched.id,
       concat_ws(
           ' ',
           (SELECT max(first_offset) FROM tenuto.live_logs WHERE live_logs.activity_id = watched.id),
           EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = watched.id AND attempt = 1 AND state = 'running')
           OR EXISTS (SELECT FROM tenuto.tasks WHERE tasks.activity_id = watched.id AND attempt > 1 AND state = 'running')
       )
FROM unnest($4::uuid[]) AS watched (id)
UNION ALL
SELECT 'operation:' || id, concat_ws(' ', state, succeeded, failed, skipped, arrived)
FROM tenuto.bulk_operations
WHERE id = ANY ($5::uuid[]);
