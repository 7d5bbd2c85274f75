-- name: load_facts
-- The next objects of a system in order of id, each with all objects that are joined to its metaverse object: one row
-- for each of these. Only what decides whether a full sync may skip the object; no values.
SELECT o.id, m.type_number AS metaverse_type,
       coalesce(o.reevaluate_at <= $4, false) OR coalesce(m.reevaluate_at <= $4, false) AS is_due,
       m.deletion_scheduled_at IS NOT NULL AS is_deletion_scheduled,
       coalesce(u.is_unresolved, false) AS has_unresolved,
       j.id AS joined_id, j.system_number, j.type_number, j.state, j.version, e.version AS evaluated_version,
       e.rules_version AS evaluated_rules, e.engine_version AS evaluated_engine, e.joined_key AS evaluated_joins,
       s.reason AS mark_reason, x.object_id IS NOT NULL AS has_export
FROM (
    SELECT id, metaverse_id, reevaluate_at
    FROM connector_objects
    WHERE system_number = $1 AND id > $2
    ORDER BY id
    LIMIT $3
) AS o
LEFT JOIN LATERAL (
    SELECT type_number, reevaluate_at, deletion_scheduled_at FROM metaverse_objects WHERE id = o.metaverse_id LIMIT 1
) AS m ON true
LEFT JOIN LATERAL (
    SELECT true AS is_unresolved
    FROM connector_references AS r
    LEFT JOIN LATERAL (SELECT metaverse_id FROM connector_objects WHERE id = r.target_id LIMIT 1) AS t ON true
    WHERE r.object_id = o.id AND t.metaverse_id IS NULL
    LIMIT 1
) AS u ON true
LEFT JOIN LATERAL (
    SELECT id, system_number, type_number, state, version
    FROM connector_objects
    WHERE metaverse_id = o.metaverse_id
    ORDER BY system_number
    LIMIT 1000
) AS j ON true
LEFT JOIN LATERAL (
    SELECT version, rules_version, engine_version, joined_key FROM evaluated_objects WHERE object_id = j.id LIMIT 1
) AS e ON true
LEFT JOIN LATERAL (SELECT reason FROM sync_marks WHERE object_id = j.id LIMIT 1) AS s ON true
LEFT JOIN LATERAL (SELECT object_id FROM pending_exports WHERE object_id = j.id LIMIT 1) AS x ON true
ORDER BY o.id;

-- name: store_evaluations
INSERT INTO evaluated_objects AS e (object_id, version, joined_key, rules_version, engine_version)
SELECT u.object_id, u.version, u.joined_key, $4, $5
FROM unnest($1::bigint[], $2::integer[], $3::bigint[]) AS u (object_id, version, joined_key)
ON CONFLICT (object_id) DO UPDATE
SET version = excluded.version, joined_key = excluded.joined_key, rules_version = excluded.rules_version,
    engine_version = excluded.engine_version
WHERE (e.version, e.joined_key, e.rules_version, e.engine_version)
    IS DISTINCT FROM (excluded.version, excluded.joined_key, excluded.rules_version, excluded.engine_version);
