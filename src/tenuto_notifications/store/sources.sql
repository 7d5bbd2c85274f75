-- name: lock_progress
-- Return and lock what has been searched, with the transactions that have ended by now; no row if no rule is enabled,
-- or if another collector works. A transaction below the next id that is not in progress has ended: all its rows are
-- visible.
SELECT progress.next_transaction_id, progress.in_progress, progress.since,
       pg_snapshot_xmax(snapshot)::text::bigint AS new_next_transaction_id,
       ARRAY (SELECT id::text::bigint FROM pg_snapshot_xip(snapshot) AS id) AS new_in_progress
FROM tenuto_notifications.progress AS progress
CROSS JOIN pg_current_snapshot() AS snapshot
FOR UPDATE OF progress SKIP LOCKED; -- guard: notifications.one_collector

-- name: store_progress
-- Store what has been searched.
UPDATE tenuto_notifications.progress
SET next_transaction_id = $1, in_progress = $2, since = $3;

-- name: delete_progress
-- Stop to collect, because no rule is enabled.
DELETE FROM tenuto_notifications.progress;

-- name: find_ended_executions
-- Return the executions with some end states of the transactions that have ended since the previous search. There is
-- no limit: each is found once.
SELECT id, schedule_name, state, origin, initiator_name, due_at, started_at, ended_at, failed_steps, error
FROM tenuto.executions
WHERE ended_transaction_id >= (SELECT min(id) FROM unnest($2::bigint[] || $1::bigint) AS id)
  AND ended_transaction_id < $3
  AND (ended_transaction_id >= $1 OR ended_transaction_id = ANY ($2::bigint[])) -- guard: notifications.late_commit
  AND ended_transaction_id <> ALL ($4::bigint[])
  AND ended_at >= $5
  AND state = ANY ($6::text[])
ORDER BY ended_at, id;

-- name: find_failed_tasks
-- Return the tasks that failed for good in these transactions, except those of notifications themselves. The BRIN index
-- leads to the few recent pages.
SELECT past.id, past.task_id, past.kind, past.name, past.queue, past.reason, past.failures + past.losses AS attempts,
       past.tags, past.initiator_name, past.execution_id, past.ended_at, past.error ->> 'message' AS error,
       (SELECT external_id FROM tenuto.manifests WHERE manifests.id = past.manifest_id) AS manifest
FROM tenuto.activities AS past
WHERE past.transaction_id >= (SELECT min(id) FROM unnest($2::bigint[] || $1::bigint) AS id)
  AND past.transaction_id < $3
  AND (past.transaction_id >= $1 OR past.transaction_id = ANY ($2::bigint[])) -- guard: notifications.late_commit
  AND past.transaction_id <> ALL ($4::bigint[])
  AND past.ended_at >= $5
  AND past.final
  AND past.status IN ('failed', 'completed_with_error')
  -- guard: notifications.own_tasks
  AND NOT coalesce(starts_with(past.correlation_id, 'notification:'), false)
ORDER BY past.ended_at, past.id;

-- name: find_opened_dead_letters
-- Return the dead letters that were opened in these transactions, except those of notifications themselves.
SELECT letter.id, letter.kind, letter.name, letter.item, letter.fingerprint, letter.task_id, letter.attempts,
       letter.dead_lettered_at, letter.reason AS error,
       CASE WHEN letter.manifest_id IS NOT NULL THEN letter.external_id END AS manifest
FROM tenuto.dead_letters AS letter
WHERE letter.transaction_id >= (SELECT min(id) FROM unnest($2::bigint[] || $1::bigint) AS id)
  AND letter.transaction_id < $3
  AND (letter.transaction_id >= $1 OR letter.transaction_id = ANY ($2::bigint[])) -- guard: notifications.late_commit
  AND letter.transaction_id <> ALL ($4::bigint[])
  AND letter.dead_lettered_at >= $5
  -- guard: notifications.own_tasks
  AND NOT coalesce(starts_with(letter.task ->> 'correlation_id', 'notification:'), false)
ORDER BY letter.dead_lettered_at, letter.id;

-- name: find_missed_instants
-- Return the due instants of schedules that were missed in these transactions.
SELECT id, schedule_id, schedule_name, due_at, until, reason, decided_at
FROM tenuto.occurrences
WHERE transaction_id >= (SELECT min(id) FROM unnest($2::bigint[] || $1::bigint) AS id)
  AND transaction_id < $3
  AND (transaction_id >= $1 OR transaction_id = ANY ($2::bigint[])) -- guard: notifications.late_commit
  AND transaction_id <> ALL ($4::bigint[])
  AND decided_at >= $5
  AND decision = 'missed'
ORDER BY decided_at, due_at, id;

-- name: find_lost_processes
-- Return the processes that were found to be lost in these transactions.
SELECT id, name, service, host, seen_at, clock_timestamp() AS found_at
FROM tenuto.workers
WHERE lost_transaction_id >= (SELECT min(id) FROM unnest($2::bigint[] || $1::bigint) AS id)
  AND lost_transaction_id < $3
  AND (lost_transaction_id >= $1 OR lost_transaction_id = ANY ($2::bigint[])) -- guard: notifications.late_commit
  AND lost_transaction_id <> ALL ($4::bigint[])
  AND seen_at >= $5::timestamptz - interval '1 day'
ORDER BY seen_at, id;

-- name: find_late_executions
-- Return open executions that were due before an instant. Executions of backfills are due long before they start:
-- their start counts.
SELECT id, schedule_name, origin, initiator_name, due_at, started_at
FROM tenuto.executions
WHERE ended_at IS NULL
  AND CASE WHEN origin = 'backfill' THEN started_at ELSE due_at END < $1
ORDER BY due_at, id
LIMIT 1000;

-- name: find_stuck_executions
-- Return open executions of which no step runs, none waits for another execution, and none has ended since an instant.
SELECT id, schedule_name, origin, initiator_name, due_at, started_at
FROM tenuto.executions AS run
WHERE ended_at IS NULL
  AND paused_at IS NULL
  AND started_at < $1
  AND NOT EXISTS (
      SELECT
      FROM tenuto.tasks
      WHERE tasks.execution_id = run.id
        AND (tasks.state = 'running' OR tasks.waits_for IS NOT NULL OR tasks.claimed_at >= $1
             OR (tasks.state = 'scheduled' AND tasks.run_at >= $1))
  )
  AND NOT EXISTS (
      SELECT FROM tenuto.activities WHERE activities.execution_id = run.id AND activities.ended_at >= $1
  )
ORDER BY started_at, id
LIMIT 1000;

-- name: find_waiting_queues
-- Return queues with queued tasks, their number and the due instant of the oldest. Each branch reads one partial index.
SELECT queue, sum(tasks)::bigint AS tasks, min(oldest_due_at) AS oldest_due_at
FROM (
    SELECT queue, count(*) AS tasks, min(run_at) AS oldest_due_at
    FROM tenuto.tasks
    WHERE state = 'queued' AND limit_key IS NULL
    GROUP BY queue
    UNION ALL
    SELECT queue, count(*), min(run_at)
    FROM tenuto.tasks
    WHERE state = 'queued' AND limit_key IS NOT NULL
    GROUP BY queue
) AS parts
GROUP BY queue
ORDER BY min(oldest_due_at), queue
LIMIT 1000;
