-- Manifests (job definitions), batches (many inputs for one manifest) and dead letters (final failures).

CREATE TABLE tenuto.manifest_groups (
    name        text PRIMARY KEY,              -- '*' contains all manifests
    max_active  integer CHECK (max_active >= 1),
    priority    smallint NOT NULL DEFAULT 0,
    enabled     boolean NOT NULL DEFAULT true,
    changed_at  timestamptz NOT NULL,
    changed_by  text NOT NULL
);

CREATE TABLE tenuto.manifests (
    id                   uuid PRIMARY KEY,
    external_id          text NOT NULL UNIQUE,
    name                 text NOT NULL,
    enabled              boolean NOT NULL,
    definition           jsonb NOT NULL,
    job                  text NOT NULL,
    schedule_type        text NOT NULL CHECK (schedule_type IN ('none', 'cron', 'interval', 'on_demand', 'dependent')),
    depends_on           text,
    group_name           text,
    max_active           integer,
    version              integer NOT NULL,
    origin               text NOT NULL,
    declared             jsonb,
    created_at           timestamptz NOT NULL,
    updated_at           timestamptz NOT NULL,
    last_successful_run  timestamptz,
    last_run_at          timestamptz,
    next_run_at          timestamptz,
    planned              boolean NOT NULL DEFAULT false,
    CONSTRAINT manifests_next_run_is_planned CHECK (planned OR next_run_at IS NULL)
);
CREATE INDEX manifests_due ON tenuto.manifests (next_run_at, id) WHERE enabled AND next_run_at IS NOT NULL;
CREATE INDEX manifests_to_plan ON tenuto.manifests (id) WHERE enabled AND NOT planned;
CREATE INDEX manifests_after ON tenuto.manifests (depends_on) WHERE depends_on IS NOT NULL;
CREATE INDEX manifests_of_group ON tenuto.manifests (group_name) WHERE group_name IS NOT NULL;

CREATE TABLE tenuto.manifest_versions (
    manifest_id  uuid NOT NULL,
    version      integer NOT NULL,
    external_id  text NOT NULL,
    change       text NOT NULL CHECK (change IN ('created', 'edited', 'enabled', 'disabled', 'deleted')),
    at           timestamptz NOT NULL,
    actor_type   text NOT NULL,
    actor_id     text,
    actor_name   text NOT NULL,
    reason       text,
    before       jsonb,
    after        jsonb,
    PRIMARY KEY (manifest_id, version)
);
CREATE INDEX manifest_versions_by_external_id ON tenuto.manifest_versions (external_id, at);

CREATE TABLE tenuto.batches (
    id              uuid PRIMARY KEY,
    key             text UNIQUE,               -- idempotency key
    manifest_id     uuid NOT NULL,
    external_id     text NOT NULL,
    name            text,
    total           bigint NOT NULL DEFAULT 0, -- created items, without duplicates of an item key
    duplicates      bigint NOT NULL DEFAULT 0,
    chunks          bigint NOT NULL DEFAULT 0, -- number of added parts: an interrupted submission continues there
    complete_at     timestamptz,               -- when the last part was added
    created_at      timestamptz NOT NULL,
    paused_at       timestamptz,
    paused_by       text,
    cancelled_at    timestamptz,
    cancelled_by    text,
    initiator_type  text NOT NULL,
    initiator_id    text,
    initiator_name  text NOT NULL
);
CREATE INDEX batches_of_manifest ON tenuto.batches (manifest_id, id);

CREATE TABLE tenuto.dead_letters (
    id               uuid PRIMARY KEY,
    manifest_id      uuid NOT NULL,
    external_id      text NOT NULL,
    item             text NOT NULL,            -- item key, otherwise task id of the item; '' for a run of the manifest
    batch_id         uuid,
    task_id          uuid NOT NULL,
    activity_id      uuid NOT NULL,            -- the last attempt
    dead_lettered_at timestamptz NOT NULL,
    reason           text NOT NULL,
    fingerprint      text NOT NULL,
    attempts         integer NOT NULL,
    input            jsonb NOT NULL,
    status           text NOT NULL DEFAULT 'awaiting_intervention'
        CHECK (status IN ('awaiting_intervention', 'retried', 'acknowledged')),
    resolved_at      timestamptz,
    resolved_type    text,
    resolved_id      text,
    resolved_name    text,
    note             text,
    retry_task_id    uuid,
    CONSTRAINT dead_letters_resolved_is_whole CHECK (
        (status = 'awaiting_intervention') = (resolved_at IS NULL)
        AND (status = 'awaiting_intervention') = (resolved_name IS NULL)
        AND (status = 'retried') = (retry_task_id IS NOT NULL)
    )
);
CREATE UNIQUE INDEX dead_letters_one_open ON tenuto.dead_letters (manifest_id, item)
    WHERE status = 'awaiting_intervention';
CREATE UNIQUE INDEX dead_letters_once_per_task ON tenuto.dead_letters (task_id);
CREATE INDEX dead_letters_open ON tenuto.dead_letters (fingerprint, id) WHERE status = 'awaiting_intervention';
CREATE INDEX dead_letters_of_batch ON tenuto.dead_letters (batch_id) WHERE batch_id IS NOT NULL;
CREATE INDEX dead_letters_resolved ON tenuto.dead_letters (resolved_at) WHERE resolved_at IS NOT NULL;

CREATE FUNCTION tenuto.refuse_to_resolve_twice() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'dead letter % is % already', OLD.id, OLD.status USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER dead_letters_resolve_once BEFORE UPDATE ON tenuto.dead_letters FOR EACH ROW
    WHEN (OLD.status <> 'awaiting_intervention')
    EXECUTE FUNCTION tenuto.refuse_to_resolve_twice();

-- Polls of the manifest manager.
CREATE TABLE tenuto.polls (
    id             uuid PRIMARY KEY,
    at             timestamptz NOT NULL,
    by             text NOT NULL,
    seconds        double precision NOT NULL,
    enqueued       integer NOT NULL,
    dead_lettered  integer NOT NULL,
    timed_out      integer NOT NULL,
    skipped        jsonb NOT NULL,             -- number and examples by reason
    error          text
);

-- Results of chain steps: a retry continues after the last one. (No foreign key to tasks: it would cost a lookup at the end
-- of every task. Housekeeping deletes rows without an open task.)
CREATE TABLE tenuto.chain_steps (
    task_id   uuid NOT NULL,
    name      text NOT NULL,                   -- position and name in the chain, such as "2 load"
    output    jsonb NOT NULL,                  -- result of the step, or value that stopped the chain; of a sleep: its end
    fence     bigint NOT NULL,
    ended_at  timestamptz NOT NULL,
    PRIMARY KEY (task_id, name)
);
CREATE INDEX chain_steps_by_end ON tenuto.chain_steps (ended_at);

ALTER TABLE tenuto.tasks
    ADD COLUMN manifest_id uuid,
    ADD COLUMN batch_id    uuid,
    ADD COLUMN item_key    text,
    ADD COLUMN limit_group text;
CREATE INDEX tasks_of_manifest ON tenuto.tasks (manifest_id, batch_id) WHERE manifest_id IS NOT NULL;
CREATE UNIQUE INDEX tasks_one_per_item ON tenuto.tasks (manifest_id, item_key) WHERE item_key IS NOT NULL;
CREATE UNIQUE INDEX tasks_one_run_per_manifest ON tenuto.tasks (manifest_id)
    WHERE manifest_id IS NOT NULL AND batch_id IS NULL AND item_key IS NULL;
CREATE INDEX tasks_of_batch ON tenuto.tasks (batch_id, state) WHERE batch_id IS NOT NULL;
CREATE INDEX tasks_held_of_manifests ON tenuto.tasks (manifest_id, limit_group)
    WHERE state = 'running' AND manifest_id IS NOT NULL;

ALTER TABLE tenuto.activities
    ADD COLUMN manifest_id uuid,
    ADD COLUMN batch_id    uuid,
    ADD COLUMN item_key    text;
CREATE INDEX activities_of_manifest ON tenuto.activities (manifest_id, id) WHERE manifest_id IS NOT NULL;
CREATE INDEX activities_of_batch ON tenuto.activities (batch_id, status) WHERE batch_id IS NOT NULL AND final;

CREATE OR REPLACE VIEW tenuto.all_activities AS
SELECT id, task_id, attempt, status, reason, final, kind, name, queue, priority, created_at, run_at, claimed_at,
       started_at, ended_at, fence, worker_id, failures, losses, input, output, error, log, progress, unique_key,
       limit_key, tags, initiator_type, initiator_id, initiator_name, correlation_id, parent_id, execution_id,
       group_index, step_index, manifest_id, batch_id, item_key
FROM tenuto.activities
UNION ALL
SELECT id, id, attempt, CASE state WHEN 'running' THEN 'in_progress' ELSE state END, NULL, false, kind, name, queue,
       (-rank)::smallint, created_at, run_at, claimed_at, coalesce(began_at, claimed_at), NULL, fence, worker_id, failures, losses, input,
       NULL, NULL, NULL, progress, unique_key, limit_key, tags, initiator_type, initiator_id, initiator_name,
       correlation_id, parent_id, execution_id, group_index, step_index, manifest_id, batch_id, item_key
FROM tenuto.tasks
WHERE attempt = 1
UNION ALL
SELECT activity_id, id, attempt, CASE state WHEN 'running' THEN 'in_progress' ELSE state END, NULL, false, kind, name,
       queue, (-rank)::smallint, created_at, run_at, claimed_at, coalesce(began_at, claimed_at), NULL, fence, worker_id, failures, losses,
       input, NULL, NULL, NULL, progress, unique_key, limit_key, tags, initiator_type, initiator_id, initiator_name,
       correlation_id, parent_id, execution_id, group_index, step_index, manifest_id, batch_id, item_key
FROM tenuto.tasks
WHERE attempt > 1;
