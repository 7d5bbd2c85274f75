-- A claim writes less. It changes the state, the fence, the worker and the lease of a task, and the server logs the part of
-- a row between its first and its last changed column. The state was the third column, before the input: every claim
-- logged the whole input again. It is now behind the columns that do not change. The runs of manifests
-- need neither an index of running tasks by key, because their keys have no cap, nor one by manifest: the few running tasks
-- are counted by the index of all of them. Indexes and constraints of the state are dropped with it and made again.

-- The view first, as queries of it lock them.
DROP VIEW tenuto.all_activities;
LOCK TABLE tenuto.tasks IN ACCESS EXCLUSIVE MODE;

ALTER TABLE tenuto.tasks ADD COLUMN state_moved text NOT NULL DEFAULT 'queued';
UPDATE tenuto.tasks SET state_moved = state WHERE state <> 'queued';
ALTER TABLE tenuto.tasks DROP COLUMN state;
ALTER TABLE tenuto.tasks RENAME COLUMN state_moved TO state;
ALTER TABLE tenuto.tasks
    ADD CONSTRAINT tasks_state_check CHECK (state IN ('waiting', 'scheduled', 'queued', 'running')),
    ADD CONSTRAINT tasks_running_means_held CHECK ((state = 'running') = (worker_id IS NOT NULL AND lease_until IS NOT NULL AND claimed_at IS NOT NULL)),
    ADD CONSTRAINT tasks_only_what_is_held_stands_by CHECK (NOT standby OR state = 'running');

CREATE INDEX tasks_to_take ON tenuto.tasks (queue, rank, run_at, id) WHERE state = 'queued' AND limit_key IS NULL;
CREATE INDEX tasks_to_take_by_key ON tenuto.tasks (queue, limit_key, rank, run_at, id)
    WHERE state = 'queued' AND limit_key IS NOT NULL;
CREATE INDEX tasks_to_come ON tenuto.tasks (run_at) WHERE state = 'scheduled';
CREATE INDEX tasks_held ON tenuto.tasks (queue, worker_id) WHERE state = 'running';
CREATE INDEX tasks_held_by_key ON tenuto.tasks (limit_key, worker_id)
    WHERE state = 'running' AND limit_key IS NOT NULL AND manifest_id IS NULL;
CREATE INDEX tasks_of_batch ON tenuto.tasks (batch_id, state) WHERE batch_id IS NOT NULL;

CREATE VIEW tenuto.all_activities AS
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
