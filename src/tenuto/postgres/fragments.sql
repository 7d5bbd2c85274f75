-- Parts that several statements share. `sql_loader` expands them when it loads a statement: {claimed_task} becomes the
-- fragment of that name, {new_task.names}, {new_task.arrays 13} and {new_task.scalars 1} become lists of its columns.

-- columns: new_task
-- The columns of a new task, in the order of their parameters: name, type and, for COPY, the column default. A column of
-- the same name is an attribute of NewTask (see store/work/task_creation.py). This is the only list of them: a new column
-- is a line here, a field of NewTask and a migration.
id uuid
state text = queued
queue text = default
rank smallint = 0
run_at timestamptz
kind text = job
name text
input jsonb
policy jsonb = {}
created_at timestamptz
unique_key text
limit_key text
limit_max integer
rate_key text
rate_limit text
expires_at timestamptz
tags text[]
initiator_type text
initiator_id text
initiator_name text
correlation_id text
parent_id uuid
origin text
manifest_id uuid
batch_id uuid
item_key text
limit_group text
execution_id uuid
group_index integer
step_index integer

-- fragment: create_tasks
-- Insert tasks; a FROM clause with the columns {new_task.names} of an alias `new` follows. Tasks are created by this INSERT,
-- by COPY (postgres/bulk_copy.py) and by the SQL function tenuto.enqueue (a migration), and in no other way.
INSERT INTO tenuto.tasks (activity_id, {new_task.names})
SELECT new.id, {new_task.values}

-- fragment: arrival
-- The kind of the notification to workers about a created or queued task: its state, or that claims must respect limits.
CASE WHEN limit_key IS NULL OR state <> 'queued' THEN state ELSE 'limited' END

-- fragment: may_notify
-- Whether this transaction notifies the workers itself. A transaction that notifies holds a lock of the whole server until
-- its commit is on disk, so that such commits cannot share a flush. Only one enqueueing transaction at a time does so; the
-- others send their notification after their commit (benchmark `scale`, enqueue).
pg_try_advisory_xact_lock(hashtext('tenuto enqueue notification'))

-- fragment: queue_is_limited
-- Whether claims from a queue must respect limits, or nothing may be claimed from it.
(max_running IS NOT NULL OR paused_at IS NOT NULL OR rate_limit IS NOT NULL)

-- fragment: group_is_capped
-- Whether a group has a limit that its claims must respect.
(max_active IS NOT NULL OR rate_limit IS NOT NULL)

-- fragment: limit_lock_kind
-- The first key of the advisory lock of a limit `scope`: the hash of its kind, the first word.
hashtext('tenuto limit of ' || split_part(scope, ' ', 1))

-- fragment: limit_lock_number
-- The second key. A queue and a group have a number of their own, so that claims under limits of different queues do not
-- wait for each other (benchmark bulk, claims of ten). Of limit keys, manifests and rate keys there may be many
-- in one claim: they share 256 numbers, because the lock table of the server is bounded, so that claims under two of them
-- may wait for each other.
CASE WHEN split_part(scope, ' ', 1) IN ('queue', 'group') THEN hashtext(scope) ELSE hashtext(scope) & 255 END

-- fragment: policy_with_due_instant
-- The policy of `task` with the instant at which it was due first, in the form of Occurrence (model/work/logical_time.py):
-- for statements that write another run_at.
CASE
    WHEN task.policy ? 'occurrence' THEN task.policy
    ELSE task.policy
         || jsonb_build_object('occurrence', jsonb_build_array(NULL, (extract(epoch FROM task.run_at) * 1000000)::bigint))
END

-- fragment: unexpired
-- A queued task `free` that may still start.
(free.expires_at IS NULL OR free.expires_at > clock_timestamp())

-- fragment: claimed_task
-- A claimed task: the fields of Task (model/work/tasks.py) in their order.
{claimed_task_before_input}, input, {claimed_task_after_input}

-- fragment: claimed_task_without_input
-- The same for callers that cancel many tasks, whose inputs are not read.
{claimed_task_before_input}, '{}'::jsonb AS input, {claimed_task_after_input}

-- fragment: claimed_task_before_input
-- The columns of a claimed task before its input.
id, activity_id, fence, worker_id, kind, name

-- fragment: claimed_task_after_input
-- The columns of a claimed task after its input.
policy AS policy_json, attempt, failures, losses, queue, -rank AS priority, run_at, initiator_type, initiator_id,
initiator_name, correlation_id, tags, execution_id, manifest_id, batch_id

-- fragment: ended_attempt
-- The activity of an attempt at `task` that ended with `outcome`: every column but `final`. The counts are those that
-- `settle` (model/work/tasks.py) decides.
task.activity_id AS id, task.id AS task_id, task.attempt, outcome.status, outcome.reason, task.kind, task.name, task.queue,
-task.rank AS priority, task.created_at, task.run_at, task.claimed_at,
coalesce(task.began_at, outcome.started_at) AS started_at, outcome.ended_at, task.fence, task.worker_id,
task.failures + (outcome.status = 'failed' AND outcome.reason IS DISTINCT FROM 'lost')::integer AS failures,
task.losses + coalesce(outcome.reason = 'lost', false)::integer AS losses,
task.input, outcome.output, outcome.error, outcome.log, coalesce(outcome.progress, task.progress) AS progress,
task.unique_key, task.limit_key, task.tags, task.initiator_type, task.initiator_id, task.initiator_name,
task.correlation_id, task.parent_id, task.execution_id, task.group_index, task.step_index, task.manifest_id,
task.batch_id, task.item_key, task.origin

-- fragment: activity_columns
-- The columns of an activity, in the order of `record_attempts`.
id, task_id, attempt, status, reason, kind, name, queue, priority, created_at, run_at, claimed_at, started_at, ended_at,
fence, worker_id, failures, losses, input, output, error, log, progress, unique_key, limit_key, tags, initiator_type,
initiator_id, initiator_name, correlation_id, parent_id, execution_id, group_index, step_index, manifest_id, batch_id,
item_key, origin

-- fragment: record_attempts
-- Insert the activities of the attempts in `ended`, which consists of {ended_attempt} and `final`. The only INSERT into the
-- table. The number of the transaction is read once; as the default of the column it would be made for every row, a
-- twelfth of the CPU time of finish_tasks (benchmark drain, CPU of the server).
INSERT INTO tenuto.activities (transaction_id, final, {activity_columns})
SELECT (SELECT pg_current_xact_id()::text::bigint), final, {activity_columns}
FROM ended
