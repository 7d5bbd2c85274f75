-- name: list_rules
-- Return rules by name, after a cursor.
SELECT name, enabled, definition, origin, declared, active_since, created_at, updated_at, updated_by
FROM tenuto_notifications.rules
WHERE name > $1
ORDER BY name
LIMIT $2;

-- name: load_rule
-- Return one rule.
SELECT name, enabled, definition, origin, declared, active_since, created_at, updated_at, updated_by
FROM tenuto_notifications.rules
WHERE name = $1;

-- name: lock_rule
-- Return and lock one rule.
SELECT name, enabled, definition, origin, declared, active_since, created_at, updated_at, updated_by
FROM tenuto_notifications.rules
WHERE name = $1
FOR UPDATE;

-- name: list_enabled_rules
-- Return the enabled rules.
SELECT name, enabled, definition, origin, declared, active_since, created_at, updated_at, updated_by
FROM tenuto_notifications.rules
WHERE enabled
ORDER BY name
LIMIT 10000;

-- name: insert_rule
-- Insert a rule, unless one has its name.
INSERT INTO tenuto_notifications.rules (
    name, enabled, definition, origin, declared, active_since, created_at, updated_at, updated_by
)
VALUES ($1, $2, $3, $4, $5, clock_timestamp(), $6, $6, $7)
ON CONFLICT (name) DO NOTHING
RETURNING name;

-- name: update_rule
-- Store the new definition of a rule. A rule that is enabled again, or has another event, is active from now on.
UPDATE tenuto_notifications.rules
SET enabled = $2,
    definition = $3,
    origin = $4,
    declared = $5,
    active_since = CASE WHEN $2 AND (NOT enabled OR definition ->> 'event' <> $3::jsonb ->> 'event')
                        THEN clock_timestamp() ELSE active_since END,
    updated_at = $6,
    updated_by = $7
WHERE name = $1
RETURNING name;

-- name: delete_rule
-- Delete a rule.
DELETE FROM tenuto_notifications.rules
WHERE name = $1
RETURNING name;

-- name: start_progress
-- Begin to collect with the transactions that have not ended, unless a rule is enabled already. The row is locked, so
-- that a collector that is about to remove it because no rule is enabled does not.
INSERT INTO tenuto_notifications.progress AS progress (next_transaction_id, in_progress, since)
SELECT pg_snapshot_xmax(snapshot)::text::bigint,
       ARRAY (SELECT id::text::bigint FROM pg_snapshot_xip(snapshot) AS id),
       $1
FROM pg_current_snapshot() AS snapshot
ON CONFLICT (singleton) DO UPDATE SET singleton = true; -- guard: notifications.progress_of_new_rule

-- name: notify_collectors
-- Notify the collectors of a changed rule.
SELECT pg_notify('tenuto', 'notifications');

-- name: close_episodes_of_other_event
-- Close the open conditions of a rule that gets another event, without an event.
UPDATE tenuto_notifications.episodes
SET closed_at = clock_timestamp()
WHERE rule_name = $1
  AND closed_at IS NULL
  AND EXISTS (SELECT FROM tenuto_notifications.rules WHERE name = $1 AND definition ->> 'event' <> $2);

-- name: close_episodes_of_rule
-- Close the open conditions of a rule that was deleted or disabled, without an event.
UPDATE tenuto_notifications.episodes
SET closed_at = clock_timestamp()
WHERE rule_name = $1 AND closed_at IS NULL;

-- name: insert_silence
-- Insert a silence, unless a repeated request has inserted it.
INSERT INTO tenuto_notifications.silences (id, rule_name, starts_at, ends_at, reason, created_at, created_by)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (id) DO NOTHING
RETURNING id;

-- name: end_silence
-- End a silence now.
UPDATE tenuto_notifications.silences
SET ends_at = greatest(starts_at, $2::timestamptz)
WHERE id = $1 AND ends_at > $2
RETURNING id;

-- name: load_silence
-- Return one silence.
SELECT id, rule_name, starts_at, ends_at, reason, created_at, created_by
FROM tenuto_notifications.silences
WHERE id = $1;

-- name: list_silences
-- Return silences that have not ended, by their end.
SELECT id, rule_name, starts_at, ends_at, reason, created_at, created_by
FROM tenuto_notifications.silences
WHERE ends_at > $1 AND ($2::text IS NULL OR rule_name = $2)
ORDER BY ends_at, id
LIMIT $3;

-- name: list_silenced_rules
-- Return the rules that are silenced now; null stands for all.
SELECT DISTINCT rule_name
FROM tenuto_notifications.silences
WHERE starts_at <= $1 -- guard: notifications.silence_has_begun
  AND ends_at > $1 -- guard: notifications.silence_has_ended
ORDER BY rule_name
LIMIT 10000;

-- name: delete_old_silences
-- Delete a small batch of silences that ended before the cut-off.
DELETE FROM tenuto_notifications.silences
WHERE id = ANY (ARRAY (
    SELECT id FROM tenuto_notifications.silences WHERE ends_at < $1 ORDER BY ends_at LIMIT $2
))
RETURNING id;
