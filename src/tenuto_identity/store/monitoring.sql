-- name: find_orphaned_joins
SELECT format('object %s of system %s is joined to the missing metaverse object %s', o.id, o.system_number, o.metaverse_id)
FROM connector_objects AS o
WHERE o.metaverse_id IS NOT NULL AND NOT EXISTS (SELECT FROM metaverse_objects WHERE id = o.metaverse_id)
ORDER BY o.id
LIMIT 20;

-- name: find_orphaned_marks
SELECT format('the missing object %s is marked', m.object_id)
FROM sync_marks AS m
WHERE NOT EXISTS (SELECT FROM connector_objects WHERE id = m.object_id)
ORDER BY m.object_id
LIMIT 20;

-- name: find_orphaned_exports
SELECT format('the missing object %s has a pending export', p.object_id)
FROM pending_exports AS p
WHERE NOT EXISTS (SELECT FROM connector_objects WHERE id = p.object_id)
ORDER BY p.object_id
LIMIT 20;

-- name: find_abandoned_exports
SELECT format('the export of object %s is executing, but its run %s has ended', p.object_id, p.run_id)
FROM pending_exports AS p
WHERE p.state = 'executing' AND NOT EXISTS (SELECT FROM runs WHERE id = p.run_id AND state = 'running')
  AND NOT EXISTS (SELECT FROM runs WHERE system_number = p.system_number AND state = 'running')
ORDER BY p.object_id
LIMIT 20;

-- name: find_orphaned_keys
SELECT format('the missing metaverse object %s has the key %s', k.object_id, k.key)
FROM match_keys AS k
WHERE NOT EXISTS (SELECT FROM metaverse_objects WHERE id = k.object_id)
ORDER BY k.object_id
LIMIT 20;

-- name: find_orphaned_references
SELECT format('the metaverse object %s refers to the missing %s', r.object_id, r.target_id)
FROM metaverse_references AS r
WHERE NOT EXISTS (SELECT FROM metaverse_objects WHERE id = r.target_id)
ORDER BY r.object_id
LIMIT 20;

-- name: find_orphaned_provenance
SELECT format('%s of the metaverse object %s comes from the missing object %s', p.key, m.id, p.value ->> 1)
FROM metaverse_objects AS m
CROSS JOIN LATERAL jsonb_each(m.provenance) AS p
WHERE m.delete_after IS NULL
  AND NOT EXISTS (SELECT FROM connector_objects WHERE id = (p.value ->> 1)::bigint)
ORDER BY m.id
LIMIT 20;

-- name: list_held
SELECT name, held ->> 'message' AS message FROM systems WHERE held IS NOT NULL ORDER BY name LIMIT 100;

-- name: count_objects
SELECT s.name, o.state, count(*) AS object_count
FROM systems AS s
JOIN connector_objects AS o ON o.system_number = s.number
GROUP BY s.name, o.state
ORDER BY s.name, o.state;

-- name: count_identities
SELECT t.name, count(*) AS identity_count
FROM metaverse_types AS t
JOIN metaverse_objects AS m ON m.type_number = t.number
GROUP BY t.name
ORDER BY t.name;

-- name: count_exports
SELECT s.name, p.state, count(*) AS export_count
FROM systems AS s
JOIN pending_exports AS p ON p.system_number = s.number
GROUP BY s.name, p.state
ORDER BY s.name, p.state;

-- name: watermark_ages
SELECT s.name, extract(epoch FROM clock_timestamp() - min(w.taken_at))::double precision AS age_seconds
FROM systems AS s
JOIN watermarks AS w ON w.system_number = s.number
GROUP BY s.name
ORDER BY s.name;

-- name: list_runs_since
SELECT r.id, coalesce(r.ended_at, r.started_at) AS at, s.name AS system, r.profile, r.kind, r.state
FROM runs AS r
JOIN systems AS s ON s.number = r.system_number
WHERE r.started_at >= $1 OR r.ended_at >= $1
ORDER BY r.id
LIMIT 1000;

-- name: count_by_container
-- Objects by type and container, for the check of what is still selected.
SELECT o.system_number, o.type_number, coalesce(o.container, '') AS container, count(*) AS object_count
FROM connector_objects AS o
WHERE o.state = 'normal'
GROUP BY o.system_number, o.type_number, o.container
ORDER BY o.system_number, o.type_number, o.container
LIMIT 10000;

-- name: export_ages
SELECT s.name, extract(epoch FROM clock_timestamp() - min(p.changed_at))::double precision AS age_seconds
FROM systems AS s
JOIN pending_exports AS p ON p.system_number = s.number
GROUP BY s.name
ORDER BY s.name;

-- name: count_runs
SELECT s.name, r.kind, r.state, count(*) AS run_count
FROM runs AS r
JOIN systems AS s ON s.number = r.system_number
WHERE r.started_at > clock_timestamp() - interval '1 day'
GROUP BY s.name, r.kind, r.state
ORDER BY s.name, r.kind, r.state;

-- name: count_items
-- Items of the runs of the last day, as their counts say.
SELECT s.name, i.result, i.name AS value, sum(i.item_count::bigint) AS item_count
FROM runs AS r
JOIN systems AS s ON s.number = r.system_number
CROSS JOIN LATERAL (
    SELECT 'change' AS result, key AS name, value AS item_count FROM jsonb_each_text(r.counts -> 'changes')
    UNION ALL
    SELECT 'error' AS result, key AS name, value AS item_count FROM jsonb_each_text(r.counts -> 'errors')
) AS i
WHERE r.started_at > clock_timestamp() - interval '1 day'
GROUP BY s.name, i.result, i.name
ORDER BY s.name, i.result, i.name;

-- name: run_speeds
-- The last run of each kind in a system that processed anything.
SELECT DISTINCT ON (s.name, r.kind) s.name, r.kind,
       (extract(epoch FROM r.ended_at - r.started_at) * 1000
        / (r.counts ->> 'processed')::bigint)::double precision AS seconds_per_1000
FROM runs AS r
JOIN systems AS s ON s.number = r.system_number
WHERE r.ended_at IS NOT NULL AND (r.counts ->> 'processed')::bigint > 0
ORDER BY s.name, r.kind, r.id DESC;
