-- Tasks are open work, activities are records of ended attempts.

CREATE TABLE tenuto.workers (
    id          uuid PRIMARY KEY,              -- new at every start
    name        text NOT NULL,                 -- the same at every start
    service     text NOT NULL,
    host        text NOT NULL,
    boot        text NOT NULL,                 -- boot id of the host: after a reboot all older processes are dead
    pid         integer NOT NULL,
    version     text NOT NULL,
    queues      text[] NOT NULL,
    slots       integer NOT NULL,
    started_at  timestamptz NOT NULL,
    seen_at     timestamptz NOT NULL,
    draining_at timestamptz,
    ended_at    timestamptz
);
CREATE UNIQUE INDEX workers_one_alive_per_name ON tenuto.workers (service, name) WHERE ended_at IS NULL;
CREATE INDEX workers_newest_first ON tenuto.workers (started_at DESC, id);

CREATE TABLE tenuto.queues (
    name        text PRIMARY KEY,
    max_running integer CHECK (max_running >= 0),
    paused_at   timestamptz,
    paused_by   text,
    reason      text
);

-- Number of repairs of each kind. In normal operation there are none.
CREATE TABLE tenuto.repairs (
    net      text PRIMARY KEY,
    count    bigint NOT NULL,
    last_at  timestamptz NOT NULL
);

CREATE TABLE tenuto.tasks (
    id              uuid PRIMARY KEY,
    activity_id     uuid NOT NULL,             -- id of the activity of the current attempt; for the first attempt the task's id
    state           text NOT NULL CHECK (state IN ('waiting', 'scheduled', 'queued', 'running')),
    queue           text NOT NULL,
    rank            smallint NOT NULL,         -- negative priority, so that all sort orders ascend
    run_at          timestamptz NOT NULL DEFAULT now(),
    kind            text NOT NULL,
    name            text NOT NULL,
    input           jsonb NOT NULL,
    policy          jsonb NOT NULL,
    attempt         integer NOT NULL DEFAULT 1,
    failures        integer NOT NULL DEFAULT 0,
    losses          integer NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL DEFAULT now(),
    fence           bigint NOT NULL DEFAULT 0,
    worker_id       uuid,
    lease_until     timestamptz,
    claimed_at      timestamptz,
    unique_key      text,
    limit_key       text,
    limit_max       integer,
    tags            text[],
    initiator_type  text NOT NULL,
    initiator_id    text,
    initiator_name  text NOT NULL,
    correlation_id  text,
    parent_id       uuid,
    cancel_at       timestamptz,               -- when cancellation of a running task was requested, and by whom
    cancel_type     text,
    cancel_id       text,
    cancel_name     text,
    progress        jsonb,
    CONSTRAINT tasks_running_means_held
        CHECK ((state = 'running') = (worker_id IS NOT NULL AND lease_until IS NOT NULL AND claimed_at IS NOT NULL)),
    CONSTRAINT tasks_first_attempt_is_the_task CHECK ((attempt = 1) = (activity_id = id)),
    CONSTRAINT tasks_limit_is_whole CHECK ((limit_key IS NULL) = (limit_max IS NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0.05);      -- half of each page is free for the row version of a claim

CREATE INDEX tasks_to_take ON tenuto.tasks (queue, rank, run_at, id) WHERE state = 'queued' AND limit_key IS NULL;
CREATE INDEX tasks_to_take_by_key ON tenuto.tasks (queue, limit_key, rank, run_at, id)
    WHERE state = 'queued' AND limit_key IS NOT NULL;
CREATE INDEX tasks_to_come ON tenuto.tasks (run_at) WHERE state = 'scheduled';
CREATE INDEX tasks_held ON tenuto.tasks (queue) WHERE state = 'running';
CREATE INDEX tasks_held_by_key ON tenuto.tasks (limit_key) WHERE state = 'running' AND limit_key IS NOT NULL;
CREATE UNIQUE INDEX tasks_one_per_key ON tenuto.tasks (unique_key) WHERE unique_key IS NOT NULL;
CREATE INDEX tasks_later_attempts ON tenuto.tasks (activity_id) WHERE attempt > 1;

CREATE TABLE tenuto.activities (
    id              uuid NOT NULL,
    task_id         uuid NOT NULL,
    attempt         integer NOT NULL,
    status          text NOT NULL
        CHECK (status IN ('completed', 'completed_with_warning', 'completed_with_error', 'failed', 'cancelled')),
    reason          text,
    final           boolean NOT NULL,          -- whether the task ended with this attempt
    kind            text NOT NULL,
    name            text NOT NULL,
    queue           text NOT NULL,
    priority        smallint NOT NULL,
    created_at      timestamptz NOT NULL,
    run_at          timestamptz NOT NULL,
    claimed_at      timestamptz,
    started_at      timestamptz,
    ended_at        timestamptz NOT NULL,
    fence           bigint NOT NULL,
    worker_id       uuid,
    failures        integer NOT NULL,
    losses          integer NOT NULL,
    input           jsonb NOT NULL,
    output          jsonb,
    error           jsonb,
    log             text,
    progress        jsonb,
    unique_key      text,
    limit_key       text,
    tags            text[],
    initiator_type  text NOT NULL,
    initiator_id    text,
    initiator_name  text NOT NULL,
    correlation_id  text,
    parent_id       uuid,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);                     -- ids contain their creation time: a partition is one month of ids

-- Activities of tasks whose month was already dropped.
CREATE TABLE tenuto.activities_old PARTITION OF tenuto.activities DEFAULT;

CREATE INDEX activities_later_attempts ON tenuto.activities (task_id) WHERE attempt > 1;
CREATE INDEX activities_not_completed ON tenuto.activities (id) WHERE status <> 'completed';

CREATE FUNCTION tenuto.refuse_to_change_the_past() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('tenuto.retention', true) = 'on' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'an activity is written once: % of tenuto.activities is refused', TG_OP
        USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER activities_are_written_once BEFORE UPDATE OR DELETE ON tenuto.activities
    FOR EACH ROW EXECUTE FUNCTION tenuto.refuse_to_change_the_past();
CREATE TRIGGER activities_are_not_emptied BEFORE TRUNCATE ON tenuto.activities
    FOR EACH STATEMENT EXECUTE FUNCTION tenuto.refuse_to_change_the_past();
-- Partitions inherit the trigger on rows but not the one on TRUNCATE: each partition has its own.
CREATE TRIGGER activities_are_not_emptied BEFORE TRUNCATE ON tenuto.activities_old
    FOR EACH STATEMENT EXECUTE FUNCTION tenuto.refuse_to_change_the_past();

-- Planned, running and ended activities. A condition on id uses the index of every branch.
CREATE VIEW tenuto.all_activities AS
SELECT id, task_id, attempt, status, reason, final, kind, name, queue, priority, created_at, run_at, claimed_at,
       started_at, ended_at, fence, worker_id, failures, losses, input, output, error, log, progress, unique_key,
       limit_key, tags, initiator_type, initiator_id, initiator_name, correlation_id, parent_id
FROM tenuto.activities
UNION ALL
SELECT id, id, attempt, CASE state WHEN 'running' THEN 'in_progress' ELSE state END, NULL, false, kind, name, queue,
       (-rank)::smallint, created_at, run_at, claimed_at, claimed_at, NULL, fence, worker_id, failures, losses, input,
       NULL, NULL, NULL, progress, unique_key, limit_key, tags, initiator_type, initiator_id, initiator_name,
       correlation_id, parent_id
FROM tenuto.tasks
WHERE attempt = 1
UNION ALL
SELECT activity_id, id, attempt, CASE state WHEN 'running' THEN 'in_progress' ELSE state END, NULL, false, kind, name,
       queue, (-rank)::smallint, created_at, run_at, claimed_at, claimed_at, NULL, fence, worker_id, failures, losses,
       input, NULL, NULL, NULL, progress, unique_key, limit_key, tags, initiator_type, initiator_id, initiator_name,
       correlation_id, parent_id
FROM tenuto.tasks
WHERE attempt > 1;
