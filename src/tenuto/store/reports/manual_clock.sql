-- name: load_due_work
-- Return what is due by a clock that may differ from the database's, and when the next schedule, task and manifest is
-- due, except the schedules $1 and manifests $3 while they have the versions $2 and $4. A dependent manifest that
-- cannot run is skipped: a service checks it every half minute, and the events that release it (end of a run,
-- resolved dead letter, enabled group) happen at instants that are processed anyway.
SELECT (
           SELECT min(next_run_at)
           FROM tenuto.schedules
           WHERE enabled
             AND next_run_at IS NOT NULL
             AND (id, version) NOT IN (SELECT * FROM unnest($1::uuid[], $2::integer[]))
       ) AS next_schedule_at,
       (SELECT min(run_at) FROM tenuto.tasks WHERE state = 'scheduled' AND parked_for IS NULL) AS next_task_at,
       (
           SELECT min(next_run_at)
           FROM tenuto.manifests AS manifest
           WHERE enabled
             AND next_run_at IS NOT NULL
             AND (id, version) NOT IN (SELECT * FROM unnest($3::uuid[], $4::integer[]))
             AND NOT (
                 schedule_type = 'dependent'
                 AND (
                     EXISTS (
                         SELECT FROM tenuto.dead_letters
                         WHERE dead_letters.manifest_id = manifest.id
                           AND item = ''
                           AND status = 'awaiting_intervention'
                     )
                     OR EXISTS (
                         SELECT FROM tenuto.tasks
                         WHERE tasks.manifest_id = manifest.id AND batch_id IS NULL AND item_key IS NULL
                     )
                     OR EXISTS (
                         SELECT FROM tenuto.manifest_groups
                         WHERE manifest_groups.name = manifest.group_name AND NOT manifest_groups.enabled
                     )
                 )
             )
       ) AS next_manifest_at,
       EXISTS (SELECT FROM tenuto.occurrences WHERE decision = 'queued') AS has_queued_run,
       EXISTS (SELECT FROM tenuto.schedules WHERE enabled AND NOT planned) AS has_unplanned_schedule,
       EXISTS (SELECT FROM tenuto.manifests WHERE enabled AND NOT planned) AS has_unplanned_manifest;

-- name: find_claimable_queues
-- Return the queues with claimable tasks, whether due tasks must be promoted, and whether a claim must check limits.
SELECT queue,
       bool_or(state = 'scheduled') AS to_promote,
       bool_or(limit_key IS NOT NULL)
       OR EXISTS (
           SELECT FROM tenuto.queues WHERE name = queue AND {queue_is_limited}
       ) AS limited
FROM tenuto.tasks
WHERE state = 'queued' OR (state = 'scheduled' AND parked_for IS NULL AND run_at <= $1)
GROUP BY queue
ORDER BY queue
LIMIT 1000;

-- name: reschedule_future_retries
-- Set queued tasks that are due in the future of the given clock back to scheduled.
UPDATE tenuto.tasks
SET state = 'scheduled'
WHERE state = 'queued' AND run_at > $1
RETURNING id;
