-- fragment: select_messages
-- A message with what became of it: the state of its task, or the outcome of the last attempt.
SELECT message.id, message.rule_name, message.event, message.event_count, message.is_test, message.channel,
       message.content, message.created_at, outcome.state, outcome.ended_at, outcome.attempt, outcome.error
FROM tenuto_notifications.messages AS message
LEFT JOIN LATERAL (
    SELECT state, NULL::timestamptz AS ended_at, attempt, earlier.error ->> 'message' AS error
    FROM tenuto.tasks
    LEFT JOIN LATERAL (
        SELECT error FROM tenuto.activities WHERE activities.id = tasks.id AND attempt = tasks.attempt - 1
        UNION ALL
        SELECT error
        FROM tenuto.activities
        WHERE activities.task_id = tasks.id AND attempt > 1 AND attempt = tasks.attempt - 1
        LIMIT 1
    ) AS earlier ON tasks.attempt > 1
    WHERE tasks.id = message.id
    UNION ALL
    SELECT status, ended_at, attempt, error ->> 'message'
    FROM tenuto.activities
    WHERE activities.id = message.id AND final
    UNION ALL
    SELECT status, ended_at, attempt, error ->> 'message'
    FROM tenuto.activities
    WHERE activities.task_id = message.id AND attempt > 1 AND final
    LIMIT 1
) AS outcome ON true

-- name: insert_events
-- Insert the events of rules; those that a rule has already are left out.
INSERT INTO tenuto_notifications.events (
    id, rule_name, event_key, kind, title, fields, path, group_key, occurred_at, recorded_at
)
SELECT id, rule_name, event_key, kind, title, fields, path, group_key, occurred_at, $10
FROM unnest(
    $1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::jsonb[], $7::text[], $8::text[], $9::timestamptz[]
) AS new (id, rule_name, event_key, kind, title, fields, path, group_key, occurred_at)
ON CONFLICT (rule_name, event_key) DO NOTHING
RETURNING id;

-- name: insert_dropped_event
-- Insert an event that could not be recorded with its fields, unless the rule has it.
INSERT INTO tenuto_notifications.events (
    id, rule_name, event_key, kind, title, fields, group_key, occurred_at, recorded_at, state, reason
)
VALUES ($1, $2, $3, $4, $5, '{}', '', $6, $7, 'dropped', $8)
ON CONFLICT (rule_name, event_key) DO NOTHING
RETURNING id;

-- name: list_open_episodes
-- Return the open conditions of a rule.
SELECT id, rule_name, subject, title, fields, path, opened_at
FROM tenuto_notifications.episodes
WHERE rule_name = $1 AND closed_at IS NULL
ORDER BY subject
LIMIT 10000;

-- name: open_episode
-- Open a condition of a rule, unless it is open.
INSERT INTO tenuto_notifications.episodes (id, rule_name, subject, title, fields, path, opened_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (rule_name, subject) WHERE closed_at IS NULL DO NOTHING
RETURNING id;

-- name: close_episode
-- Close a condition.
UPDATE tenuto_notifications.episodes
SET closed_at = $2
WHERE id = $1 AND closed_at IS NULL
RETURNING id;

-- name: list_due_groups
-- Return the groups of some rules with events that are in no message, except groups inside the window of their rule, as
-- `tenuto_notifications.model.dispatch.decide` decides. The oldest group of each rule comes first, then the second, so
-- that a rule with many groups does not delay the others.
WITH pending AS (
    SELECT event.rule_name, event.group_key, count(*) AS event_count, min(event.recorded_at) AS first_recorded_at
    FROM tenuto_notifications.events AS event
    WHERE event.state = 'pending' AND event.rule_name = ANY ($1::text[])
    GROUP BY event.rule_name, event.group_key
),
due AS (
    SELECT pending.*, latest.created_at AS last_message_at,
           row_number() OVER (
               PARTITION BY pending.rule_name ORDER BY pending.first_recorded_at, pending.group_key
           ) AS place
    FROM pending
    JOIN unnest($1::text[], $2::interval[]) AS rule (name, group_window) ON rule.name = pending.rule_name
    CROSS JOIN LATERAL (
        SELECT max(message.created_at) AS created_at
        FROM tenuto_notifications.messages AS message
        WHERE message.rule_name = pending.rule_name AND message.group_key = pending.group_key AND NOT message.is_test
    ) AS latest
    WHERE latest.created_at IS NULL OR latest.created_at + rule.group_window <= $3
)
SELECT rule_name, group_key, event_count, last_message_at
FROM due
ORDER BY place, first_recorded_at, rule_name
LIMIT $4;

-- name: separate_events
-- Give each event of some rules that is in no message a separate group: the rules may have combined events before.
UPDATE tenuto_notifications.events
SET group_key = event_key
WHERE state = 'pending' AND rule_name = ANY ($1::text[]) AND group_key <> event_key;

-- name: settle_rules
-- Record what became of the events of some rules that are in no message.
UPDATE tenuto_notifications.events
SET state = $2
WHERE state = 'pending' AND rule_name = ANY ($1::text[]);

-- name: settle_other_rules
-- Drop the events that are in no message, except those of some rules.
UPDATE tenuto_notifications.events
SET state = 'dropped'
WHERE state = 'pending' AND rule_name <> ALL ($1::text[]);

-- name: list_group_events
-- Return the first events of a group that are in no message.
SELECT kind, title, occurred_at, fields, path
FROM tenuto_notifications.events
WHERE rule_name = $1 AND group_key = $2 AND state = 'pending'
ORDER BY occurred_at, id
LIMIT $3;

-- name: settle_group
-- Record what became of the events of a group that are in no message; return their number.
WITH settled AS (
    UPDATE tenuto_notifications.events
    SET state = $3, message_id = $4, reason = $5
    WHERE rule_name = $1 AND group_key = $2 AND state = 'pending'
    RETURNING 1
)
SELECT count(*) FROM settled;

-- name: insert_message
-- Insert a message.
INSERT INTO tenuto_notifications.messages (
    id, rule_name, event, group_key, event_count, is_test, channel, content, created_at
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: message_exists
-- Return whether a message exists: a repeated request names the same one.
SELECT EXISTS (SELECT FROM tenuto_notifications.messages WHERE id = $1);

-- name: load_delivery
-- Return the channel and the content of a message, for its delivery.
SELECT id, rule_name, channel, content
FROM tenuto_notifications.messages
WHERE id = $1;

-- name: load_message
-- Return one message with what became of it.
{select_messages}
WHERE message.id = $1;

-- name: list_messages
-- Return messages, newest first, below a cursor, with what became of each.
{select_messages}
WHERE message.id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
  AND ($2::text IS NULL OR message.rule_name = $2)
  AND ($3::text[] IS NULL OR outcome.state = ANY ($3))
ORDER BY message.id DESC
LIMIT $4;

-- name: count_unsent_events
-- Return the events of each rule that led to no message yet, were silenced or were dropped.
SELECT rule_name, state, count(*) AS event_count
FROM tenuto_notifications.events
WHERE state <> 'sent'
GROUP BY rule_name, state
ORDER BY rule_name, state
LIMIT 10000;

-- name: list_dropped_for_errors
-- Return the rules with events since an instant that were dropped because of an error, with the latest reason.
SELECT rule_name, count(*) AS event_count, (array_agg(reason ORDER BY recorded_at DESC))[1] AS reason
FROM tenuto_notifications.events
WHERE recorded_at >= $1 AND state = 'dropped' AND reason IS NOT NULL
GROUP BY rule_name
ORDER BY rule_name
LIMIT 1000;

-- name: count_deliveries
-- Return the messages of the last day by rule and outcome.
SELECT message.rule_name, coalesce(outcome.state, 'unknown') AS state, count(*) AS message_count
FROM tenuto_notifications.messages AS message
LEFT JOIN LATERAL (
    SELECT state FROM tenuto.tasks WHERE tasks.id = message.id
    UNION ALL
    SELECT status FROM tenuto.activities WHERE activities.id = message.id AND final
    UNION ALL
    SELECT status FROM tenuto.activities WHERE activities.task_id = message.id AND attempt > 1 AND final
    LIMIT 1
) AS outcome ON true
WHERE message.created_at >= $1
GROUP BY message.rule_name, 2
ORDER BY message.rule_name, 2
LIMIT 10000;

-- name: list_missing_secrets
-- Return the names among these that are no secrets.
SELECT wanted.name
FROM unnest($1::text[]) AS wanted (name)
LEFT JOIN tenuto.secrets ON secrets.name = wanted.name
WHERE secrets.name IS NULL
ORDER BY wanted.name
LIMIT 1000;

-- name: load_topic
-- Return the instant up to which the changes of a topic have been read.
SELECT read_at
FROM tenuto_notifications.topics
WHERE topic = $1;

-- name: store_topic
-- Store the instant up to which the changes of a topic have been read.
INSERT INTO tenuto_notifications.topics (topic, read_at)
VALUES ($1, $2)
ON CONFLICT (topic) DO UPDATE SET read_at = greatest(topics.read_at, excluded.read_at);

-- name: delete_old_events
-- Delete a small batch of events that were recorded before the cut-off.
DELETE FROM tenuto_notifications.events
WHERE id = ANY (ARRAY (
    SELECT id
    FROM tenuto_notifications.events
    WHERE recorded_at < $1 AND state <> 'pending'
    ORDER BY recorded_at
    LIMIT $2
))
RETURNING id;

-- name: delete_old_messages
-- Delete a small batch of messages that were created before the cut-off and are not being delivered.
DELETE FROM tenuto_notifications.messages
WHERE id = ANY (ARRAY (
    SELECT message.id
    FROM tenuto_notifications.messages AS message
    LEFT JOIN tenuto.tasks AS task ON task.id = message.id
    WHERE message.created_at < $1 AND task.id IS NULL
    ORDER BY message.created_at
    LIMIT $2
))
RETURNING id;

-- name: delete_old_episodes
-- Delete a small batch of conditions that ended before the cut-off.
DELETE FROM tenuto_notifications.episodes
WHERE id = ANY (ARRAY (
    SELECT id FROM tenuto_notifications.episodes WHERE closed_at < $1 ORDER BY closed_at LIMIT $2
))
RETURNING id;

-- name: read_clock
-- Return the time of the database.
SELECT clock_timestamp();
