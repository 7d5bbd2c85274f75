-- API keys, sessions, idempotency keys, the audit log, secrets, named logs and one-shots.

CREATE TABLE tenuto.api_keys (
    id            uuid PRIMARY KEY,
    name          text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    prefix        text NOT NULL UNIQUE,               -- visible part of the key; identifies the row
    digest        bytea NOT NULL,                     -- SHA-256 of the whole key, which is random and long
    role          text NOT NULL CHECK (role IN ('viewer', 'operator', 'editor', 'admin')),
    created_at    timestamptz NOT NULL,
    created_by    text NOT NULL,
    expires_at    timestamptz,
    last_used_at  timestamptz,                        -- updated at most once a minute
    revoked_at    timestamptz,
    revoked_by    text
);
CREATE UNIQUE INDEX api_keys_one_in_use_per_name ON tenuto.api_keys (name) WHERE revoked_at IS NULL;

CREATE TABLE tenuto.sessions (
    id          uuid PRIMARY KEY,
    key_id      uuid NOT NULL REFERENCES tenuto.api_keys (id),
    link        bytea UNIQUE,                         -- SHA-256 of the single-use login link; null after its use
    token       bytea UNIQUE,                         -- SHA-256 of the session cookie
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,                 -- of the link, later of the session
    ended_at    timestamptz
);
CREATE INDEX sessions_by_end ON tenuto.sessions (expires_at);
CREATE INDEX sessions_of_key ON tenuto.sessions (key_id);

CREATE TABLE tenuto.requests (
    actor        text NOT NULL,
    key          text NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    fingerprint  bytea NOT NULL,                      -- SHA-256 of method, path and body
    subject      uuid NOT NULL,                       -- id of the object that the request creates
    at           timestamptz NOT NULL,
    answer       jsonb,                               -- stored response: status, headers and body
    PRIMARY KEY (actor, key)
);
CREATE INDEX requests_by_age ON tenuto.requests (at);

CREATE TABLE tenuto.audit (
    id           uuid PRIMARY KEY,
    at           timestamptz NOT NULL,
    actor_type   text NOT NULL,
    actor_id     text,
    actor_name   text NOT NULL,
    source       text NOT NULL,                       -- IP address, 'cli' or 'code'
    request_id   text,
    action       text NOT NULL,                       -- 'schedule.change', 'task.cancel'
    target       text,                                -- name or id of the changed object
    reason       text,
    before       jsonb,                               -- both with secrets redacted
    after        jsonb
);
CREATE INDEX audit_of_target ON tenuto.audit (target, id);

CREATE TABLE tenuto.audit_unsealed (
    audit_id  uuid PRIMARY KEY                        -- written with its entry, deleted when the entry is sealed
);

CREATE TABLE tenuto.audit_chain (
    position  bigint PRIMARY KEY CHECK (position > 0),
    audit_id  uuid NOT NULL UNIQUE,
    sealed_at timestamptz NOT NULL,
    seal      bytea NOT NULL                          -- covers the previous seal and the whole entry; contains the key id
);

CREATE FUNCTION tenuto.refuse_to_change_the_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit trail is written once' USING ERRCODE = 'raise_exception';
END $$;
CREATE TRIGGER written_once BEFORE UPDATE OR DELETE ON tenuto.audit
    FOR EACH ROW EXECUTE FUNCTION tenuto.refuse_to_change_the_audit();
CREATE TRIGGER kept BEFORE TRUNCATE ON tenuto.audit
    FOR EACH STATEMENT EXECUTE FUNCTION tenuto.refuse_to_change_the_audit();
CREATE TRIGGER written_once BEFORE UPDATE OR DELETE ON tenuto.audit_chain
    FOR EACH ROW EXECUTE FUNCTION tenuto.refuse_to_change_the_audit();
CREATE TRIGGER kept BEFORE TRUNCATE ON tenuto.audit_chain
    FOR EACH STATEMENT EXECUTE FUNCTION tenuto.refuse_to_change_the_audit();

CREATE TABLE tenuto.secrets (
    name         text PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 200),
    version      integer NOT NULL DEFAULT 1,
    key_id       text NOT NULL,                       -- master key that wraps the data key
    wrapped      bytea NOT NULL,                      -- nonce and data key, encrypted with the master key
    sealed       bytea NOT NULL,                      -- nonce and value, encrypted with the data key; authenticates name and version
    created_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL,
    updated_by   text NOT NULL
);

CREATE TABLE tenuto.log_entries (
    log          text NOT NULL CHECK (length(log) BETWEEN 1 AND 200),
    id           bigint GENERATED ALWAYS AS IDENTITY,
    at           timestamptz NOT NULL,
    message      text NOT NULL,
    fields       jsonb,
    key          uuid NOT NULL UNIQUE,                -- of the task, which appends once even if it is retried
    task_id      uuid,
    PRIMARY KEY (log, id)                             -- no index on id alone, which would be slow for a rarely used log
);
CREATE INDEX log_entries_by_age ON tenuto.log_entries (at);

ALTER TABLE tenuto.tasks
    ADD COLUMN origin text CHECK (origin IN ('once'));
CREATE INDEX tasks_once ON tenuto.tasks (run_at, id) WHERE origin = 'once';

ALTER TABLE tenuto.activities
    ADD COLUMN origin text;
CREATE INDEX activities_once ON tenuto.activities (id) WHERE origin = 'once';
CREATE INDEX activities_children ON tenuto.activities (parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX tasks_children ON tenuto.tasks (parent_id) WHERE parent_id IS NOT NULL;

ALTER TABLE tenuto.dead_letters
    ADD COLUMN resolved_request uuid;                 -- request that resolved it, possibly together with others
CREATE INDEX dead_letters_of_request ON tenuto.dead_letters (resolved_request) WHERE resolved_request IS NOT NULL;
CREATE INDEX dead_letters_by_age ON tenuto.dead_letters (dead_lettered_at) WHERE status = 'awaiting_intervention';
CREATE INDEX schedule_versions_by_age ON tenuto.schedule_versions (at);
CREATE INDEX manifest_versions_by_age ON tenuto.manifest_versions (at);

CREATE OR REPLACE VIEW tenuto.all_activities AS
SELECT id, task_id, attempt, status, reason, final, kind, name, queue, priority, created_at, run_at, claimed_at,
       started_at, ended_at, fence, worker_id, failures, losses, input, output, error, log, progress, unique_key,
       limit_key, tags, initiator_type, initiator_id, initiator_name, correlation_id, parent_id, execution_id,
       group_index, step_index, manifest_id, batch_id, item_key, origin
FROM tenuto.activities
UNION ALL
SELECT id, id, attempt, CASE state WHEN 'running' THEN 'in_progress' ELSE state END, NULL, false, kind, name, queue,
       (-rank)::smallint, created_at, run_at, claimed_at, coalesce(began_at, claimed_at), NULL, fence, worker_id,
       failures, losses, input, NULL, NULL, NULL, progress, unique_key, limit_key, tags, initiator_type, initiator_id,
       initiator_name, correlation_id, parent_id, execution_id, group_index, step_index, manifest_id, batch_id,
       item_key, origin
FROM tenuto.tasks
WHERE attempt = 1
UNION ALL
SELECT activity_id, id, attempt, CASE state WHEN 'running' THEN 'in_progress' ELSE state END, NULL, false, kind, name,
       queue, (-rank)::smallint, created_at, run_at, claimed_at, coalesce(began_at, claimed_at), NULL, fence, worker_id,
       failures, losses, input, NULL, NULL, NULL, progress, unique_key, limit_key, tags, initiator_type, initiator_id,
       initiator_name, correlation_id, parent_id, execution_id, group_index, step_index, manifest_id, batch_id,
       item_key, origin
FROM tenuto.tasks
WHERE attempt > 1;
