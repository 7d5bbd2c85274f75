-- name: load_tasks
-- Return open tasks with everything that may delay them: execution, awaited execution, queue, manifest, manifest
-- group, all manifests, batch, worker.
SELECT task.id, task.state, task.kind, task.name, task.queue, task.rank, task.run_at, task.policy, task.failures, task.losses,
       task.claimed_at, task.limit_key, task.limit_max, task.progress, task.cancel_at,
       task.cancel_name, task.execution_id, task.group_index, task.step_index, task.waits_for, task.standby,
       task.manifest_id, task.limit_group, task.batch_id, task.last_chance,
       task.lease_until, task.lease_until < clock_timestamp() AS lease_expired,
       workers.name AS worker, tenuto.process_state(workers) AS worker_state,
       clock_timestamp() - workers.seen_at AS worker_silent_seconds,
       execution.plan, execution.current_group, execution.total_groups AS group_count,
       execution.paused_at AS execution_paused_at, execution.paused_by AS execution_paused_by,
       awaited.schedule_name AS awaited_name, awaited.started_at AS awaited_started_at,
       awaited.current_group AS awaited_group, awaited.total_groups AS awaited_group_count,
       awaited.paused_at AS awaited_paused_at, awaited.paused_by AS awaited_paused_by,
       queues.max_running, queues.paused_at AS queue_paused_at, queues.paused_by AS queue_paused_by,
       queues.reason AS queue_reason,
       manifest.external_id AS manifest, manifest.max_active AS manifest_max,
       its_group.max_active AS group_max, its_group.enabled AS group_enabled, its_group.changed_at AS group_changed_at,
       its_group.changed_by AS group_changed_by,
       all_groups.max_active AS all_max, all_groups.enabled AS all_enabled, all_groups.changed_at AS all_changed_at,
       all_groups.changed_by AS all_changed_by,
       batch.paused_at AS batch_paused_at, batch.paused_by AS batch_paused_by,
       batch.cancelled_at AS batch_cancelled_at, batch.cancelled_by AS batch_cancelled_by,
       CASE WHEN task.state <> 'waiting' OR task.execution_id IS NULL THEN task.expires_at END AS expires_at, task.parked_for, rate.scope AS rate_scope, rate.rate_limit, rate.next_at AS next_token_at
FROM tenuto.tasks AS task
LEFT JOIN tenuto.workers ON workers.id = task.worker_id
LEFT JOIN tenuto.executions AS execution ON execution.id = task.execution_id
LEFT JOIN tenuto.executions AS awaited ON awaited.id = task.waits_for
LEFT JOIN tenuto.queues ON queues.name = task.queue
LEFT JOIN tenuto.manifests AS manifest ON manifest.id = task.manifest_id
LEFT JOIN tenuto.manifest_groups AS its_group ON its_group.name = task.limit_group
LEFT JOIN tenuto.manifest_groups AS all_groups ON all_groups.name = '*' AND task.manifest_id IS NOT NULL
LEFT JOIN tenuto.batches AS batch ON batch.id = task.batch_id
-- of the rate limits that apply to the task, the one whose next token comes last
LEFT JOIN LATERAL (
    SELECT limits.scope, limits.rate_limit, bucket.next_at
    FROM (
        VALUES ('queue ' || task.queue, queues.rate_limit), ('rate ' || task.rate_key, task.rate_limit),
               ('group ' || task.limit_group, its_group.rate_limit), ('all manifests', all_groups.rate_limit)
    ) AS limits (scope, rate_limit)
    JOIN tenuto.rate_buckets AS bucket ON bucket.scope = limits.scope
    WHERE limits.rate_limit IS NOT NULL
    ORDER BY bucket.next_at DESC
    LIMIT 1
) AS rate ON true
WHERE task.id = ANY ($1::uuid[])
ORDER BY task.step_index, task.id
LIMIT 1000;

-- name: load_last_failure
-- Return the last failed attempt at a task. The first attempt has the id of the task.
SELECT id, attempt, ended_at, error
FROM (
    SELECT id, attempt, ended_at, error FROM tenuto.activities WHERE id = $1 AND status = 'failed'
    UNION ALL
    (
        SELECT id, attempt, ended_at, error
        FROM tenuto.activities
        WHERE task_id = $1 AND attempt > 1 AND status = 'failed'
        ORDER BY attempt DESC
        LIMIT 1
    )
) AS failed
ORDER BY attempt DESC
LIMIT 1;

-- name: list_open_steps
-- Return the first open steps of one group of an execution in plan order, and their total, counted up to the maximum
-- plan size.
SELECT id, step_index, state, count(*) OVER () AS total_count
FROM tenuto.tasks
WHERE execution_id = $1 AND group_index = $2
ORDER BY step_index, id
LIMIT $3;

-- name: list_open_steps_at
-- Return the first open steps at some positions of the plan of an execution, and their total.
SELECT id, step_index, state, count(*) OVER () AS total_count
FROM tenuto.tasks
WHERE execution_id = $1 AND step_index = ANY ($2::integer[])
ORDER BY step_index, id
LIMIT $3;

-- name: list_running_in_queue
-- Return the running tasks of a queue as its limit counts them, longest first. Ordered by queue too, so that the
-- planner uses the index of running tasks.
SELECT id, name, claimed_at, count(*) OVER () AS total_count
FROM tenuto.tasks
WHERE state = 'running' AND NOT standby AND queue = $1 AND lease_until > clock_timestamp()
ORDER BY queue, claimed_at, id
LIMIT $2;

-- name: list_running_with_limit_key
-- Return the running tasks with a limit key, in any queue, as the limit counts them, and the limit that applies to
-- queue $2: that of its first task.
SELECT held.id, held.name, held.claimed_at, count(*) OVER () AS total_count,
       (SELECT limit_max
        FROM tenuto.tasks
        WHERE state = 'queued' AND limit_key = $1 AND queue = $2
        ORDER BY rank, run_at, id
        LIMIT 1) AS limit_max
FROM tenuto.tasks AS held
WHERE held.state = 'running' AND NOT held.standby AND held.limit_key = $1 AND held.lease_until > clock_timestamp()
ORDER BY held.limit_key, held.claimed_at, held.id
LIMIT $3;

-- name: list_running_on_last_chance
-- Return the running last-chance task.
SELECT id, name, claimed_at, count(*) OVER () AS total_count
FROM tenuto.tasks
WHERE last_chance AND state = 'running' AND lease_until > clock_timestamp()
ORDER BY claimed_at, id
LIMIT $1;

-- name: list_running_of_manifests
-- Return the active runs of manifest $1, of group $2, or of all manifests (both null), as their limits count them,
-- longest first. Ordered by manifest too, so that the planner uses the index of running tasks of manifests.
SELECT id, name, claimed_at, count(*) OVER () AS total_count
FROM tenuto.tasks
WHERE state = 'running' AND NOT standby AND manifest_id IS NOT NULL AND lease_until > clock_timestamp()
  AND ($1::uuid IS NULL OR manifest_id = $1)
  AND ($2::text IS NULL OR limit_group = $2)
ORDER BY manifest_id, claimed_at, id
LIMIT $3;

-- name: count_tasks_ahead
-- Count the tasks ahead of one: without a limit key, and with its own limit key; each counted up to $6. Ordered, so
-- that the planner reads the index in order instead of the table.
SELECT (
    SELECT count(*)
    FROM (
        SELECT
        FROM tenuto.tasks
        WHERE state = 'queued' AND limit_key IS NULL AND queue = $1 AND (rank, run_at, id) < ($2, $3, $4)
        ORDER BY rank, run_at, id
        LIMIT $6
    ) AS free
) + (
    SELECT count(*)
    FROM (
        SELECT
        FROM tenuto.tasks
        WHERE state = 'queued' AND limit_key = $5::text AND queue = $1 AND (rank, run_at, id) < ($2, $3, $4)
        ORDER BY rank, run_at, id
        LIMIT $6
    ) AS with_its_key
) AS before;

-- name: list_workers_of_queue
-- Return the workers of a queue that have not ended, with the number of their occupied slots (standby tasks occupy
-- none), whether they know the job or step kind ($3, $4), and their versions of the job.
SELECT workers.id, workers.name, workers.slots, tenuto.process_state(workers) AS state,
       tenuto.knows_handler(workers, $3, $4) AS knows_job,
       CASE WHEN $3 = 'job' THEN workers.jobs ->> $4 END AS job_versions,
       clock_timestamp() - workers.seen_at AS silent_seconds, coalesce(held.running, 0) AS running_count
FROM tenuto.workers
LEFT JOIN (
    SELECT worker_id, count(*) AS running
    FROM tenuto.tasks
    WHERE state = 'running' AND NOT standby
    GROUP BY worker_id
) AS held ON held.worker_id = workers.id
WHERE workers.ended_at IS NULL AND workers.service = 'worker' AND $1 = ANY (workers.queues)
ORDER BY workers.name, workers.id
LIMIT $2;

-- name: load_version_of_run
-- Return the version of the workflow that a task has begun with.
SELECT output ->> 'value' AS version
FROM tenuto.chain_steps
WHERE task_id = $1 AND name = 'version';

-- name: list_queue_capacities
-- For every queue that has a live worker, a limit or a pause, return the slots of the live workers, and the limit.
SELECT coalesce(served.queue, queues.name) AS queue, coalesce(served.slots, 0) AS slots, queues.max_running,
       queues.paused_at IS NOT NULL AS paused
FROM (
    SELECT queue, sum(slots) AS slots
    FROM tenuto.workers
    CROSS JOIN unnest(queues) AS queue
    WHERE tenuto.process_state(workers) = 'alive'
    GROUP BY queue
) AS served
FULL JOIN tenuto.queues ON queues.name = served.queue
ORDER BY 1
LIMIT 10000;

-- name: load_schedule
-- Return what may keep a schedule from running: its state, the last change to disabled, the oldest active execution,
-- the run queued longest and the last decision.
SELECT schedule.id, schedule.name, schedule.enabled, schedule.overlap, schedule.trigger ->> 'kind' AS trigger_kind,
       schedule.trigger ->> 'zone' AS zone,
       schedule.next_run_at, schedule.planned,
       disabled.at AS disabled_at, disabled.actor_name AS disabled_by, disabled.reason AS disabled_reason,
       active.id AS active_id, active.started_at AS active_started_at, active.current_group AS active_group,
       active.total_groups AS active_group_count,
       queued.due_at AS queued_due_at,
       last.due_at AS last_due_at, last.decision AS last_decision, last.reason AS last_reason
FROM tenuto.schedules AS schedule
LEFT JOIN LATERAL (
    SELECT at, actor_name, reason
    FROM tenuto.schedule_versions
    WHERE schedule_id = schedule.id AND change = 'disabled' AND NOT schedule.enabled
    ORDER BY version DESC
    LIMIT 1
) AS disabled ON true
LEFT JOIN LATERAL (
    SELECT id, started_at, current_group, total_groups
    FROM tenuto.executions
    WHERE schedule_id = schedule.id AND ended_at IS NULL
    ORDER BY id
    LIMIT 1
) AS active ON true
LEFT JOIN LATERAL (
    SELECT due_at
    FROM tenuto.occurrences
    WHERE schedule_id = schedule.id AND decision = 'queued'
    ORDER BY due_at, id
    LIMIT 1
) AS queued ON true
LEFT JOIN LATERAL (
    SELECT due_at, decision, reason
    FROM tenuto.occurrences
    WHERE schedule_id = schedule.id
    ORDER BY due_at DESC, id
    LIMIT 1
) AS last ON true
WHERE schedule.name = $1;

-- name: load_manifest
-- Return what may keep a manifest from running: its state, the last change to disabled, its groups, the manifest that
-- it depends on, its open dead letter and its open run.
SELECT manifest.id, manifest.external_id, manifest.enabled, manifest.schedule_type, manifest.depends_on,
       manifest.group_name AS "group", manifest.next_run_at, manifest.planned,
       manifest.definition -> 'trigger' ->> 'zone' AS zone,
       coalesce(manifest.definition ->> 'on_dead_letter', 'block') AS on_dead_letter,
       disabled.at AS disabled_at, disabled.actor_name AS disabled_by, disabled.reason AS disabled_reason,
       its_group.enabled AS group_enabled, its_group.changed_at AS group_changed_at, its_group.changed_by AS group_changed_by,
       all_groups.enabled AS all_enabled, all_groups.changed_at AS all_changed_at, all_groups.changed_by AS all_changed_by,
       awaited.enabled AS awaited_enabled, awaited.last_successful_run AS awaited_last_success_at,
       dead_letter.id AS dead_letter_id, dead_letter.dead_lettered_at, dead_letter.reason AS dead_letter_reason,
       dead_letter.attempts AS dead_letter_attempts, dead_letter.activity_id AS dead_letter_activity_id,
       (SELECT tasks.id FROM tenuto.tasks
        WHERE tasks.manifest_id = manifest.id AND tasks.batch_id IS NULL AND tasks.item_key IS NULL
        LIMIT 1) AS open_task_id
FROM tenuto.manifests AS manifest
LEFT JOIN LATERAL (
    SELECT at, actor_name, reason
    FROM tenuto.manifest_versions
    WHERE manifest_id = manifest.id AND change = 'disabled' AND NOT manifest.enabled
    ORDER BY version DESC
    LIMIT 1
) AS disabled ON true
LEFT JOIN tenuto.manifest_groups AS its_group ON its_group.name = manifest.group_name
LEFT JOIN tenuto.manifest_groups AS all_groups ON all_groups.name = '*'
LEFT JOIN tenuto.manifests AS awaited ON awaited.external_id = manifest.depends_on
LEFT JOIN LATERAL (
    SELECT id, dead_lettered_at, reason, attempts, activity_id
    FROM tenuto.dead_letters
    WHERE dead_letters.manifest_id = manifest.id AND item = '' AND status = 'awaiting_intervention'
    LIMIT 1
) AS dead_letter ON true
WHERE manifest.external_id = $1;

-- name: list_schedulers
-- Return the schedulers that have not ended.
SELECT id, name, tenuto.process_state(workers) AS state, clock_timestamp() - seen_at AS silent_seconds
FROM tenuto.workers
WHERE ended_at IS NULL AND service = 'scheduler'
ORDER BY name, id
LIMIT $1;
