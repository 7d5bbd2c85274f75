-- name: load_definitions
-- All definitions; there are few of them.
SELECT 'system' AS kind, number, id, name, definition, declared, origin, version FROM systems
UNION ALL
SELECT 'metaverse_type' AS kind, number, id, name, definition, declared, origin, version FROM metaverse_types
UNION ALL
SELECT 'sync_rule' AS kind, number, id, name, definition, declared, origin, version FROM sync_rules
UNION ALL
SELECT 'template' AS kind, number, id, name, definition, declared, origin, version FROM templates
ORDER BY kind, number;

-- name: load_systems
SELECT number, name, connector, state, held, keyed_by, decode_key, discovered
FROM systems
ORDER BY number;

-- name: load_object_types
SELECT system_number, number, name FROM object_types ORDER BY system_number, number;

-- name: load_attributes
SELECT number, name FROM attributes ORDER BY number;

-- name: lock_definitions
-- Changes of definitions are made one at a time: a rule is checked against the systems and types as they are.
SELECT rules_version FROM configuration FOR UPDATE;

-- name: increment_rules_version
UPDATE configuration SET rules_version = rules_version + 1 RETURNING rules_version;

-- name: add_attributes
INSERT INTO attributes (name)
SELECT DISTINCT name FROM unnest($1::text[]) AS u (name) ORDER BY name
ON CONFLICT DO NOTHING;

-- name: add_object_types
INSERT INTO object_types (system_number, number, name)
SELECT $1, coalesce((SELECT max(number) FROM object_types WHERE system_number = $1), 0) + u.position, u.name
FROM unnest($2::text[]) WITH ORDINALITY AS u (name, position)
WHERE NOT EXISTS (SELECT FROM object_types AS known WHERE known.system_number = $1 AND known.name = u.name)
ON CONFLICT DO NOTHING;

-- name: insert_version
INSERT INTO definition_versions (kind, number, version, name, definition, rules_version, author, reason, origin, at)
VALUES ($1, $2, $3, $4, $5::jsonb, $6, $7, $8, $9, $10);

-- name: list_versions
SELECT kind, number, version, name, definition, rules_version, author, reason, origin, at
FROM definition_versions
WHERE kind = $1 AND name = $2
ORDER BY version DESC
LIMIT $3;

-- name: has_objects
SELECT EXISTS (SELECT FROM connector_objects WHERE system_number = $1);

-- name: has_identities
SELECT EXISTS (SELECT FROM metaverse_objects WHERE type_number = $1);

-- name: set_system_state
UPDATE systems SET state = $2 WHERE name = $1 RETURNING number;

-- name: store_decode_key
-- Objects are decoded again after a change of the settings that influence decoding.
UPDATE systems SET decode_key = $2 WHERE number = $1 AND decode_key IS DISTINCT FROM $2;

-- name: store_discovered
UPDATE systems SET discovered = $2::jsonb WHERE number = $1;

-- name: load_rules_version
SELECT rules_version FROM configuration;

-- name: insert_system
INSERT INTO systems (id, name, definition, declared, origin, updated_at, connector)
VALUES ($1, $2, $3::jsonb, $4::jsonb, $5, $6, $3::jsonb ->> 'connector')
RETURNING number;

-- name: update_system
UPDATE systems
SET definition = $2::jsonb, declared = $3::jsonb, origin = $4, updated_at = $5, version = $6,
    connector = $2::jsonb ->> 'connector'
WHERE number = $1;

-- name: delete_system
DELETE FROM systems WHERE number = $1;

-- name: insert_metaverse_type
INSERT INTO metaverse_types (id, name, definition, declared, origin, updated_at)
VALUES ($1, $2, $3::jsonb, $4::jsonb, $5, $6)
RETURNING number;

-- name: update_metaverse_type
UPDATE metaverse_types
SET definition = $2::jsonb, declared = $3::jsonb, origin = $4, updated_at = $5, version = $6
WHERE number = $1;

-- name: delete_metaverse_type
DELETE FROM metaverse_types WHERE number = $1;

-- name: insert_sync_rule
INSERT INTO sync_rules (id, name, definition, declared, origin, updated_at)
VALUES ($1, $2, $3::jsonb, $4::jsonb, $5, $6)
RETURNING number;

-- name: update_sync_rule
UPDATE sync_rules
SET definition = $2::jsonb, declared = $3::jsonb, origin = $4, updated_at = $5, version = $6
WHERE number = $1;

-- name: delete_sync_rule
DELETE FROM sync_rules WHERE number = $1;

-- name: insert_template
INSERT INTO templates (id, name, definition, declared, origin, updated_at)
VALUES ($1, $2, $3::jsonb, $4::jsonb, $5, $6)
RETURNING number;

-- name: update_template
UPDATE templates
SET definition = $2::jsonb, declared = $3::jsonb, origin = $4, updated_at = $5, version = $6
WHERE number = $1;

-- name: delete_template
DELETE FROM templates WHERE number = $1;

-- name: lock_system_row
SELECT number, name, connector, state, held, keyed_by, decode_key, discovered
FROM systems
WHERE name = $1
FOR UPDATE;

-- name: list_systems
SELECT s.number, s.id, s.name, s.connector, s.state, s.held, s.version, s.origin, s.updated_at,
       (SELECT count(*) FROM connector_objects AS o WHERE o.system_number = s.number) AS object_count,
       (SELECT count(*) FROM pending_exports AS p WHERE p.system_number = s.number) AS export_count,
       latest.runs[1].id AS last_run_id,
       (SELECT coalesce(jsonb_agg(jsonb_build_object('id', r.id, 'profile', r.profile, 'kind', r.kind, 'state', r.state,
                                                     'started_at', r.started_at, 'ended_at', r.ended_at)
                                  ORDER BY r.id DESC), '[]')
        FROM unnest(latest.runs) AS r) AS recent_runs
FROM systems AS s
CROSS JOIN LATERAL (
    SELECT ARRAY(SELECT r FROM runs AS r WHERE r.system_number = s.number ORDER BY r.id DESC LIMIT 10) AS runs
) AS latest
WHERE s.name > $1 AND ($3::text IS NULL OR s.name = $3)
ORDER BY s.name
LIMIT $2;

-- name: has_open_run
SELECT id FROM runs WHERE system_number = $1 AND state = 'running';

-- name: insert_recall
INSERT INTO recalls (rule_number, rule, system_number, type_number, initiator_type, initiator_id, initiator_name, at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT DO NOTHING;

-- name: list_recalls
-- Deleted rules whose contributions have to be withdrawn, of systems that can be synchronised now.
SELECT r.rule_number, r.rule, s.name AS system, r.type_number, r.initiator_type, r.initiator_id, r.initiator_name
FROM recalls AS r
JOIN systems AS s ON s.number = r.system_number
WHERE s.state = 'active' AND (s.held IS NULL OR (s.held ->> 'deletes_only')::boolean)
ORDER BY r.rule_number
LIMIT 100;

-- name: has_recalls
SELECT EXISTS (
    SELECT FROM recalls AS r
    JOIN systems AS s ON s.number = r.system_number
    WHERE s.state = 'active' AND (s.held IS NULL OR (s.held ->> 'deletes_only')::boolean)
);

-- name: delete_recall
DELETE FROM recalls WHERE rule_number = $1;

-- name: delete_recalls_of_system
DELETE FROM recalls WHERE system_number = $1;

-- name: load_watermarks
SELECT w.partition, w.value, w.taken_at, w.run_id
FROM watermarks AS w
JOIN systems AS s ON s.number = w.system_number
WHERE s.name = $1
ORDER BY w.partition;
