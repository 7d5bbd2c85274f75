-- Notification rules, the events that they matched, the messages about them, and silences.

CREATE TABLE tenuto_notifications.rules (
    name         text PRIMARY KEY,
    enabled      boolean NOT NULL,
    definition   jsonb NOT NULL,               -- the rule as plain data; credentials are references to secrets
    origin       text NOT NULL CHECK (origin IN ('file', 'operator')),
    declared     jsonb,                        -- last declaration of a file; later changes of an operator are kept
    active_since timestamptz NOT NULL,         -- earlier events do not concern the rule
    created_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL,
    updated_by   text NOT NULL
);

-- Which transactions have been searched for events: those below next_transaction_id, except those that were in progress.
-- There is a row exactly while a rule is enabled. Collectors lock it, so that one works at a time.
CREATE TABLE tenuto_notifications.progress (
    singleton           boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    next_transaction_id bigint NOT NULL,
    in_progress         bigint[] NOT NULL,
    since               timestamptz NOT NULL   -- earlier events are never found; moved if the database was restored
);

-- Topics of extensions: the instant up to which their changes have been read.
CREATE TABLE tenuto_notifications.topics (
    topic   text PRIMARY KEY,
    read_at timestamptz NOT NULL
);

-- Events that matched a rule. The unique key makes it one for each rule and event, however often the event is found.
CREATE TABLE tenuto_notifications.events (
    id          uuid PRIMARY KEY,
    rule_name   text NOT NULL,                 -- no foreign key: events and messages outlive the rule
    event_key   text NOT NULL,
    kind        text NOT NULL,
    title       text NOT NULL,
    fields      jsonb NOT NULL,
    path        text,
    group_key   text NOT NULL,
    occurred_at timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL,
    state       text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'sent', 'silenced', 'dropped')),
    message_id  uuid,
    reason      text,                          -- why the event was dropped, if creating the message failed
    CONSTRAINT events_sent_have_a_message CHECK ((state = 'sent') = (message_id IS NOT NULL))
);
CREATE UNIQUE INDEX events_once_per_rule ON tenuto_notifications.events (rule_name, event_key);
CREATE INDEX events_pending ON tenuto_notifications.events (rule_name, group_key, occurred_at) WHERE state = 'pending';
CREATE INDEX events_of_message ON tenuto_notifications.events (message_id) WHERE message_id IS NOT NULL;
CREATE INDEX events_by_age ON tenuto_notifications.events (recorded_at);

-- Conditions that last: while one is open, the rule has no second event of it.
CREATE TABLE tenuto_notifications.episodes (
    id        uuid PRIMARY KEY,
    rule_name text NOT NULL,
    subject   text NOT NULL,                   -- the execution, queue or check
    title     text NOT NULL,
    fields    jsonb NOT NULL,
    path      text,
    opened_at timestamptz NOT NULL,
    closed_at timestamptz
);
CREATE UNIQUE INDEX episodes_one_open ON tenuto_notifications.episodes (rule_name, subject) WHERE closed_at IS NULL;
CREATE INDEX episodes_closed ON tenuto_notifications.episodes (closed_at) WHERE closed_at IS NOT NULL;

-- Messages. The task that delivers a message has its id, so that tasks and activities say what became of it.
CREATE TABLE tenuto_notifications.messages (
    id          uuid PRIMARY KEY,
    rule_name   text NOT NULL,
    event       text NOT NULL,
    group_key   text NOT NULL,
    event_count integer NOT NULL CHECK (event_count >= 1),
    is_test     boolean NOT NULL,
    channel     jsonb NOT NULL,                -- with references to secrets
    content     jsonb NOT NULL,
    created_at  timestamptz NOT NULL
);
CREATE INDEX messages_of_rule ON tenuto_notifications.messages (rule_name, id);
CREATE INDEX messages_of_group ON tenuto_notifications.messages (rule_name, group_key, created_at) WHERE NOT is_test;
CREATE INDEX messages_by_age ON tenuto_notifications.messages (created_at);

CREATE TABLE tenuto_notifications.silences (
    id         uuid PRIMARY KEY,
    rule_name  text,                           -- null: all rules
    starts_at  timestamptz NOT NULL,
    ends_at    timestamptz NOT NULL,
    reason     text,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    CONSTRAINT silences_end_after_their_start CHECK (ends_at >= starts_at)
);
CREATE INDEX silences_by_end ON tenuto_notifications.silences (ends_at);
