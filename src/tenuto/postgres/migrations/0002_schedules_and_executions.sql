-- Schedules, executions (their runs), and occurrences (the ledger of due instants and decisions).

CREATE TABLE tenuto.schedules (
    id           uuid PRIMARY KEY,
    name         text NOT NULL UNIQUE,
    description  text NOT NULL,
    enabled      boolean NOT NULL,
    trigger      jsonb NOT NULL,
    plan         jsonb NOT NULL,               -- groups of steps
    overlap      text NOT NULL CHECK (overlap IN ('skip', 'queue_one', 'allow', 'cancel_previous')),
    misfire      jsonb NOT NULL,
    version      integer NOT NULL,
    origin       text NOT NULL,                -- source of the definition: code, a file, or an operator
    declared     jsonb,                        -- last declaration of code or file; later changes of an operator are kept
    created_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL,
    last_run_at  timestamptz,
    next_run_at  timestamptz,
    planned      boolean NOT NULL DEFAULT false,   -- whether the next run was computed, even if there is none
    CONSTRAINT schedules_next_run_is_planned CHECK (planned OR next_run_at IS NULL)
);
CREATE INDEX schedules_due ON tenuto.schedules (next_run_at, id) WHERE enabled AND next_run_at IS NOT NULL;
CREATE INDEX schedules_to_plan ON tenuto.schedules (id) WHERE enabled AND NOT planned;

CREATE TABLE tenuto.schedule_versions (
    schedule_id  uuid NOT NULL,
    version      integer NOT NULL,
    name         text NOT NULL,
    change       text NOT NULL CHECK (change IN ('created', 'edited', 'enabled', 'disabled', 'deleted')),
    at           timestamptz NOT NULL,
    actor_type   text NOT NULL,
    actor_id     text,
    actor_name   text NOT NULL,
    reason       text,
    before       jsonb,
    after        jsonb,
    PRIMARY KEY (schedule_id, version)
);
CREATE INDEX schedule_versions_by_name ON tenuto.schedule_versions (name, at);

CREATE TABLE tenuto.executions (
    id              uuid PRIMARY KEY,
    schedule_id     uuid NOT NULL,             -- no foreign key: executions outlive the schedule
    schedule_name   text NOT NULL,
    version         integer NOT NULL,
    origin          text NOT NULL CHECK (origin IN ('trigger', 'manual', 'step', 'retry')),
    state           text NOT NULL CHECK (state IN ('in_progress', 'completed', 'failed', 'cancelled')),
    alone           boolean NOT NULL,          -- whether runs of the schedule must not overlap
    plan            jsonb NOT NULL,            -- snapshot of the plan
    current_group   integer NOT NULL,
    first_group     integer NOT NULL DEFAULT 0,
    total_groups    integer NOT NULL,
    total_steps     integer NOT NULL,
    failed_steps    integer NOT NULL DEFAULT 0,
    error           text,
    due_at          timestamptz NOT NULL,
    started_at      timestamptz NOT NULL,
    ended_at        timestamptz,               -- when the last step ended; steps of a cancelled execution may still be running
    initiator_type  text NOT NULL,
    initiator_id    text,
    initiator_name  text NOT NULL,
    parent_task_id  uuid,                      -- step of the parent execution
    retry_of        uuid,
    paused_at       timestamptz,
    paused_by       text,
    cancelled_at    timestamptz,
    cancel_type     text,
    cancel_id       text,
    cancel_name     text,
    cancel_reason   text,
    CONSTRAINT executions_end_only_in_an_end CHECK (ended_at IS NULL OR state <> 'in_progress'),
    CONSTRAINT executions_groups_are_counted CHECK (current_group BETWEEN first_group AND total_groups - 1)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX executions_one_active ON tenuto.executions (schedule_id) WHERE ended_at IS NULL AND alone;
CREATE INDEX executions_active ON tenuto.executions (schedule_id, id) WHERE ended_at IS NULL;
CREATE INDEX executions_of_schedule ON tenuto.executions (schedule_id, id);
CREATE INDEX executions_of_step ON tenuto.executions (parent_task_id) WHERE parent_task_id IS NOT NULL;
CREATE INDEX executions_ended ON tenuto.executions (ended_at) WHERE ended_at IS NOT NULL;

CREATE FUNCTION tenuto.refuse_to_end_twice() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'execution % is %, which is final', OLD.id, OLD.state USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER executions_end_once BEFORE UPDATE ON tenuto.executions FOR EACH ROW
    WHEN (OLD.state <> 'in_progress' AND (NEW.state <> OLD.state OR OLD.ended_at IS NOT NULL))
    EXECUTE FUNCTION tenuto.refuse_to_end_twice();

CREATE TABLE tenuto.occurrences (
    id             uuid PRIMARY KEY,
    schedule_id    uuid NOT NULL,
    schedule_name  text NOT NULL,
    due_at         timestamptz NOT NULL,
    until          timestamptz,                -- the decision covers all due instants up to here
    origin         text NOT NULL CHECK (origin IN ('trigger', 'manual')),
    decision       text NOT NULL CHECK (decision IN ('fired', 'queued', 'coalesced', 'skipped', 'missed')),
    turn           text CHECK (turn IN ('overlap', 'catch_up')),   -- why the run is queued
    reason         text,
    execution_id   uuid,
    decided_at     timestamptz NOT NULL,
    decided_by     text NOT NULL,
    request        jsonb,                      -- of a queued manual run: overrides and initiator
    CONSTRAINT occurrences_fired_means_run CHECK ((decision = 'fired') = (execution_id IS NOT NULL)),
    CONSTRAINT occurrences_queued_has_a_turn CHECK (decision <> 'queued' OR turn IS NOT NULL)
);
CREATE UNIQUE INDEX occurrences_once ON tenuto.occurrences (schedule_id, due_at) WHERE origin = 'trigger';
CREATE UNIQUE INDEX occurrences_one_queued ON tenuto.occurrences (schedule_id)
    WHERE decision = 'queued' AND turn = 'overlap';
CREATE INDEX occurrences_queued ON tenuto.occurrences (schedule_id, due_at, id) WHERE decision = 'queued';
CREATE INDEX occurrences_newest_first ON tenuto.occurrences (schedule_id, due_at DESC, id);
CREATE INDEX occurrences_decided ON tenuto.occurrences (decided_at);

CREATE FUNCTION tenuto.refuse_to_change_the_ledger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'what the ledger says of % is decided', OLD.due_at USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER occurrences_are_decided_once BEFORE UPDATE ON tenuto.occurrences FOR EACH ROW
    WHEN (OLD.decision <> 'queued')
    EXECUTE FUNCTION tenuto.refuse_to_change_the_ledger();

-- Steps of executions are tasks.
ALTER TABLE tenuto.tasks
    ADD COLUMN execution_id uuid,
    ADD COLUMN group_index  integer,
    ADD COLUMN step_index   integer,
    ADD COLUMN waits_for    uuid,              -- the execution that a deferred task waits for
    ADD COLUMN began_at     timestamptz,       -- when the attempt of a deferred task began
    ADD CONSTRAINT tasks_step_is_whole
        CHECK ((execution_id IS NULL) = (group_index IS NULL) AND (execution_id IS NULL) = (step_index IS NULL));
CREATE INDEX tasks_of_execution ON tenuto.tasks (execution_id, group_index) WHERE execution_id IS NOT NULL;
CREATE INDEX tasks_suspended ON tenuto.tasks (waits_for) WHERE waits_for IS NOT NULL;

ALTER TABLE tenuto.activities
    ADD COLUMN execution_id uuid,
    ADD COLUMN group_index  integer,
    ADD COLUMN step_index   integer;
CREATE INDEX activities_of_execution ON tenuto.activities (execution_id, group_index) WHERE execution_id IS NOT NULL;

CREATE OR REPLACE VIEW tenuto.all_activities AS
SELECT id, task_id, attempt, status, reason, final, kind, name, queue, priority, created_at, run_at, claimed_at,
       started_at, ended_at, fence, worker_id, failures, losses, input, output, error, log, progress, unique_key,
       limit_key, tags, initiator_type, initiator_id, initiator_name, correlation_id, parent_id, execution_id,
       group_index, step_index
FROM tenuto.activities
UNION ALL
SELECT id, id, attempt, CASE state WHEN 'running' THEN 'in_progress' ELSE state END, NULL, false, kind, name, queue,
       (-rank)::smallint, created_at, run_at, claimed_at, coalesce(began_at, claimed_at), NULL, fence, worker_id, failures, losses, input,
       NULL, NULL, NULL, progress, unique_key, limit_key, tags, initiator_type, initiator_id, initiator_name,
       correlation_id, parent_id, execution_id, group_index, step_index
FROM tenuto.tasks
WHERE attempt = 1
UNION ALL
SELECT activity_id, id, attempt, CASE state WHEN 'running' THEN 'in_progress' ELSE state END, NULL, false, kind, name,
       queue, (-rank)::smallint, created_at, run_at, claimed_at, coalesce(began_at, claimed_at), NULL, fence, worker_id, failures, losses,
       input, NULL, NULL, NULL, progress, unique_key, limit_key, tags, initiator_type, initiator_id, initiator_name,
       correlation_id, parent_id, execution_id, group_index, step_index
FROM tenuto.tasks
WHERE attempt > 1;
