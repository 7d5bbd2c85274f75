-- name: look
-- What is due by a clock that may not be the database's, and when something is due next: a schedule, a task, a manifest;
-- but for the schedules $1 and the manifests $3, which in their versions $2 and $4 cannot be dealt with.
-- A manifest that runs after another, and cannot, is passed over: a service looks at it every half minute, and whatever
-- sets it free (a run ends, a letter is seen to, a group is switched on) happens at an instant that is looked at anyway.
SELECT (
           SELECT min(next_run_at)
           FROM tenuto.schedules
           WHERE enabled
             AND next_run_at IS NOT NULL
             AND (id, version) NOT IN (SELECT * FROM unnest($1::uuid[], $2::integer[]))
       ) AS next_schedule,
       (SELECT min(run_at) FROM tenuto.tasks WHERE state = 'scheduled') AS next_task,
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
       ) AS next_manifest,
       EXISTS (SELECT FROM tenuto.occurrences WHERE decision = 'queued') AS turns,
       EXISTS (SELECT FROM tenuto.schedules WHERE enabled AND NOT planned) AS unplanned,
       EXISTS (SELECT FROM tenuto.manifests WHERE enabled AND NOT planned) AS unplanned_manifests;

-- name: to_take
-- The queues in which something may be taken, whether something of them has still to be called due, and whether a claim
-- must heed limits.
SELECT queue,
       bool_or(state = 'scheduled') AS to_promote,
       bool_or(limit_key IS NOT NULL)
       OR EXISTS (
           SELECT FROM tenuto.queues WHERE name = queue AND (max_running IS NOT NULL OR paused_at IS NOT NULL)
       ) AS limited
FROM tenuto.tasks
WHERE state = 'queued' OR (state = 'scheduled' AND run_at <= $1)
GROUP BY queue
ORDER BY queue
LIMIT 1000;

-- name: not_due_yet
-- What is to be tried again later, but not later than the database's own clock: back to those that are to come.
UPDATE tenuto.tasks
SET state = 'scheduled'
WHERE state = 'queued' AND run_at > $1
RETURNING id;
