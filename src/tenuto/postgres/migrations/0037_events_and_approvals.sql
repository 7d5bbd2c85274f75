-- Events from outside, waits of tasks for them, and approvals.

CREATE TABLE tenuto.sent_events (
    id              uuid PRIMARY KEY,          -- chosen by the sender: a repeated request names the same event
    name            text NOT NULL,
    key             text NOT NULL,             -- correlation key; empty without one
    payload         jsonb NOT NULL,
    sent_at         timestamptz NOT NULL,
    expires_at      timestamptz NOT NULL,      -- until then it is kept: for a wait that begins later, and to recognise its id
    delivered_at    timestamptz,               -- when the first wait received it; an event is delivered at one instant
    delivery_count  integer NOT NULL DEFAULT 0,
    sender_type     text NOT NULL,
    sender_id       text,
    sender_name     text NOT NULL,
    CONSTRAINT sent_events_delivered_to_some CHECK ((delivered_at IS NULL) = (delivery_count = 0))
);
CREATE INDEX sent_events_kept ON tenuto.sent_events (name, key, sent_at, id) WHERE delivered_at IS NULL;
CREATE INDEX sent_events_by_expiry ON tenuto.sent_events (expires_at);
CREATE INDEX sent_events_newest_first ON tenuto.sent_events (sent_at DESC, id DESC);

-- The n-th wait of a step, and what it received. No foreign key to tasks: see chain_steps.
CREATE TABLE tenuto.event_waits (
    task_id        uuid NOT NULL,
    step           text NOT NULL,              -- key of the chain step; empty for a job that is no chain
    number         integer NOT NULL,
    name           text NOT NULL,
    key            text NOT NULL,
    registered_at  timestamptz NOT NULL,
    expires_at     timestamptz NOT NULL,
    attempt        integer NOT NULL,
    log            text,                       -- log of the attempt before it gave up its slot
    outcome        text CHECK (outcome IN ('received', 'timed_out')),
    ended_at       timestamptz,
    event_id       uuid,
    payload        jsonb,
    PRIMARY KEY (task_id, step, number),
    CONSTRAINT event_waits_end_with_outcome CHECK ((outcome IS NULL) = (ended_at IS NULL))
);
CREATE INDEX event_waits_open ON tenuto.event_waits (name, key) WHERE outcome IS NULL;
CREATE INDEX event_waits_open_by_expiry ON tenuto.event_waits (expires_at) WHERE outcome IS NULL;
CREATE INDEX event_waits_by_registration ON tenuto.event_waits (registered_at);

-- A decision that an approval step waits for. Its id is the task of the step.
CREATE TABLE tenuto.approvals (
    id              uuid PRIMARY KEY,
    activity_id     uuid NOT NULL,             -- the attempt that requested it
    execution_id    uuid,
    schedule_name   text,
    step            text NOT NULL,
    message         text NOT NULL,
    context         jsonb NOT NULL,
    role            text,                      -- callers with this role may decide
    approvers       text[] NOT NULL,           -- and these persons
    required_count  integer NOT NULL CHECK (required_count > 0),
    on_deadline     text NOT NULL CHECK (on_deadline IN ('fail', 'approve', 'reject', 'skip')),
    requested_at    timestamptz NOT NULL,
    expires_at      timestamptz NOT NULL,
    requester_type  text NOT NULL,
    requester_id    text,
    requester_name  text NOT NULL,
    state           text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'approved', 'rejected', 'expired')),
    ended_at        timestamptz,
    CONSTRAINT approvals_end_with_state CHECK ((state = 'pending') = (ended_at IS NULL))
);
CREATE INDEX approvals_pending ON tenuto.approvals (expires_at) WHERE state = 'pending';
CREATE INDEX approvals_of_execution ON tenuto.approvals (execution_id) WHERE execution_id IS NOT NULL;
CREATE INDEX approvals_newest_first ON tenuto.approvals (requested_at DESC, id DESC);

CREATE TABLE tenuto.approval_decisions (
    approval_id  uuid NOT NULL REFERENCES tenuto.approvals ON DELETE CASCADE,
    person       text NOT NULL,                -- name of the actor: one decision per person
    actor_type   text NOT NULL,
    actor_id     text,
    decision     text NOT NULL CHECK (decision IN ('approve', 'reject')),
    reason       text,
    via_link     boolean NOT NULL,
    decided_at   timestamptz NOT NULL,
    PRIMARY KEY (approval_id, person)
);

-- Links with which a person without an account decides once. Only digests are stored.
CREATE TABLE tenuto.approval_links (
    digest       bytea PRIMARY KEY,
    approval_id  uuid NOT NULL REFERENCES tenuto.approvals ON DELETE CASCADE,
    person       text NOT NULL,
    created_at   timestamptz NOT NULL,
    created_by   text NOT NULL,
    expires_at   timestamptz NOT NULL,
    used_at      timestamptz
);
CREATE INDEX approval_links_of_approval ON tenuto.approval_links (approval_id);
