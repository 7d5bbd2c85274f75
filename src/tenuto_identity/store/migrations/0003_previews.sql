-- Previews of runs: what was asked for, and its results. They are kept for a day.
CREATE TABLE tenuto_identity.previews (
    id           uuid PRIMARY KEY,                       -- the id of the task
    subject      text NOT NULL,                          -- a run profile or a schedule, for lists
    state        text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'completed', 'failed')),
    steps        jsonb NOT NULL DEFAULT '[]',            -- result of each run
    problem      text,
    requested_by text NOT NULL,
    requested_at timestamptz NOT NULL,
    ended_at     timestamptz,
    expires_at   timestamptz NOT NULL
);
CREATE INDEX previews_by_expiry ON tenuto_identity.previews (expires_at);

CREATE TABLE tenuto_identity.preview_items (
    preview_id   uuid NOT NULL REFERENCES tenuto_identity.previews (id) ON DELETE CASCADE,
    number       bigint NOT NULL,                        -- over all steps
    step         integer NOT NULL,
    object_id    bigint,
    metaverse_id bigint,
    type         text,
    anchor       text,
    display      text,
    change       text,
    error        text,
    message      text,
    detail       jsonb,
    PRIMARY KEY (preview_id, number)
);

CREATE TABLE tenuto_identity.preview_requests (
    preview_id uuid NOT NULL REFERENCES tenuto_identity.previews (id) ON DELETE CASCADE,
    number     bigint NOT NULL,
    step       integer NOT NULL,
    system     text NOT NULL,
    kind       text NOT NULL,
    type       text NOT NULL,
    anchor     text,
    address    text,
    changes    jsonb NOT NULL,
    PRIMARY KEY (preview_id, number)
);

-- For services whose login may not create schemas: one preview at a time uses this one.
CREATE SCHEMA tenuto_identity_preview_shared;

-- Deleted rules whose contributions a task still has to withdraw.
CREATE TABLE tenuto_identity.recalls (
    rule_number    smallint PRIMARY KEY,
    rule           text NOT NULL,
    system_number  smallint NOT NULL,
    type_number    smallint NOT NULL,
    initiator_type text NOT NULL,
    initiator_id   text,
    initiator_name text NOT NULL,
    at             timestamptz NOT NULL
);
