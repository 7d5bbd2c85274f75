-- An attempt that runs is called running, like its task.

CREATE OR REPLACE VIEW tenuto.all_activities AS
SELECT id, task_id, attempt, status, reason, final, kind, name, queue, priority, created_at, run_at, claimed_at,
       started_at, ended_at, fence, worker_id, failures, losses, input, output, error, log, progress, unique_key,
       limit_key, tags, initiator_type, initiator_id, initiator_name, correlation_id, parent_id, execution_id,
       group_index, step_index, manifest_id, batch_id, item_key, origin
FROM tenuto.activities
UNION ALL
SELECT id, id, attempt, state, NULL, false, kind, name, queue,
       (-rank)::smallint, created_at, run_at, claimed_at, coalesce(began_at, claimed_at), NULL, fence, worker_id,
       failures, losses, input, NULL, NULL, NULL, progress, unique_key, limit_key, tags, initiator_type, initiator_id,
       initiator_name, correlation_id, parent_id, execution_id, group_index, step_index, manifest_id, batch_id,
       item_key, origin
FROM tenuto.tasks
WHERE attempt = 1
UNION ALL
SELECT activity_id, id, attempt, state, NULL, false, kind, name,
       queue, (-rank)::smallint, created_at, run_at, claimed_at, coalesce(began_at, claimed_at), NULL, fence, worker_id,
       failures, losses, input, NULL, NULL, NULL, progress, unique_key, limit_key, tags, initiator_type, initiator_id,
       initiator_name, correlation_id, parent_id, execution_id, group_index, step_index, manifest_id, batch_id,
       item_key, origin
FROM tenuto.tasks
WHERE attempt > 1;
