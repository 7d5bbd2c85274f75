-- name: classify_objects
-- Compare imported anchors and fingerprints with the table. The document is returned only where it is needed: for
-- objects that differ or are in another state.
-- Here and in other lookups, the planner must not know the number of the system (SELECT $1): it would expect no rows of
-- a system that is newer than the statistics, and read all objects of the system for each lookup.
SELECT a.position, o.id, o.state, o.fingerprint = a.fingerprint AS is_same, o.metaverse_id,
       CASE WHEN o.fingerprint IS DISTINCT FROM a.fingerprint OR o.state <> 'normal' THEN o.attributes END AS attributes,
       o.address, o.container
FROM unnest($2::smallint[], $3::text[], $4::bytea[]) WITH ORDINALITY AS a (type_number, anchor, fingerprint, position)
CROSS JOIN LATERAL (
    SELECT id, state, fingerprint, metaverse_id, attributes, address, container
    FROM connector_objects
    WHERE system_number = (SELECT $1::smallint) AND type_number = a.type_number AND anchor = a.anchor
    LIMIT 1
) AS o;

-- name: find_provisioning
-- Find objects that a sync created and no import has seen, by the address of the imported object. If the system refused
-- to create the object because there is another one at the address, that other one, which its anchor identifies, is
-- imported as a separate object.
SELECT a.position, o.id, o.state, false AS is_same, o.metaverse_id, o.attributes, o.address, o.container
FROM unnest($2::smallint[], $3::text[], $4::text[]) WITH ORDINALITY AS a (type_number, address_key, anchor, position)
CROSS JOIN LATERAL (
    SELECT id, state, metaverse_id, attributes, address, container
    FROM connector_objects
    WHERE system_number = (SELECT $1::smallint) AND address_key = a.address_key AND type_number = a.type_number
      AND state = 'provisioning' AND anchor IS NULL
      AND NOT EXISTS (
          SELECT FROM pending_exports AS p
          WHERE p.object_id = connector_objects.id
            AND p.foreign_anchor IN (a.anchor, '') -- guard: identity.foreign_object_at_the_address
      )
    ORDER BY id
    LIMIT 1
) AS o;

-- name: draw_object_ids
SELECT nextval('connector_objects_id_seq') FROM generate_series(1, $1::integer);

-- name: update_imported
-- Write objects that an import found changed.
UPDATE connector_objects AS o
SET anchor = u.anchor, address = u.address, address_key = u.address_key, container = u.container, state = 'normal',
    attributes = u.attributes::jsonb, fingerprint = u.fingerprint, version = o.version + 1, imported_at = $8,
    changed_at = $8, drift_reported = '{}'
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[])
    AS u (id, anchor, address, address_key, container, attributes, fingerprint)
WHERE o.id = u.id;

-- name: update_fingerprints
-- The source writes the same values in another way: nothing else changes.
UPDATE connector_objects AS o
SET fingerprint = u.fingerprint
FROM unnest($1::bigint[], $2::bytea[]) AS u (id, fingerprint)
WHERE o.id = u.id;

-- name: list_normal_ids
-- The next normal objects of a system in order of id, as one array.
SELECT array_agg(o.id ORDER BY o.id) AS ids
FROM (
    SELECT id
    FROM connector_objects
    WHERE system_number = $1 AND id > $2 AND state = 'normal'
    ORDER BY id
    LIMIT $3
) AS o;

-- name: load_fingerprints
-- The next normal objects of a system in order of id, as two arrays.
SELECT array_agg(o.id ORDER BY o.id) AS ids, array_agg(o.fingerprint ORDER BY o.id) AS fingerprints
FROM (
    SELECT id, fingerprint
    FROM connector_objects
    WHERE system_number = $1 AND id > $2 AND state = 'normal' AND fingerprint IS NOT NULL
    ORDER BY id
    LIMIT $3
) AS o;

-- name: load_places
-- Types and containers of objects, for the detection of deletions.
SELECT o.id, o.type_number, o.container
FROM unnest($1::bigint[]) AS a (id)
CROSS JOIN LATERAL (SELECT id, type_number, container FROM connector_objects WHERE id = a.id LIMIT 1) AS o;

-- name: count_objects
SELECT type_number, container, count(*) AS object_count
FROM connector_objects
WHERE system_number = $1 AND state = 'normal'
GROUP BY type_number, container
ORDER BY type_number, container;

-- name: sample_containers
-- One object of each container that a run does not delete anyway.
SELECT o.id, o.anchor, o.container
FROM (
    SELECT min(id) AS id
    FROM connector_objects AS c
    WHERE system_number = $1 AND state = 'normal' AND anchor IS NOT NULL AND container IS NOT NULL
        AND NOT EXISTS (SELECT FROM pending_deletions WHERE run_id = $2 AND object_id = c.id)
    GROUP BY container
) AS sample
CROSS JOIN LATERAL (SELECT id, anchor, container FROM connector_objects WHERE id = sample.id LIMIT 1) AS o
ORDER BY o.id;

-- name: list_objects_in
-- The next normal objects of containers in order of id, without those that a run deletes anyway.
SELECT id, anchor, container
FROM connector_objects AS c
WHERE system_number = $1 AND id > $4 AND state = 'normal' AND anchor IS NOT NULL AND container = ANY ($3::text[])
    AND NOT EXISTS (SELECT FROM pending_deletions WHERE run_id = $2 AND object_id = c.id)
ORDER BY id
LIMIT $5;

-- name: load_objects_page
-- The next objects of a system in order of id.
SELECT id, system_number, type_number, anchor, address, container, state, attributes, metaverse_id, join_kind, pinned,
       drift_reported, version, reevaluate_at
FROM connector_objects
WHERE system_number = $1 AND id > $2
ORDER BY id
LIMIT $3;

-- name: load_objects
SELECT o.id, o.system_number, o.type_number, o.anchor, o.address, o.container, o.state, o.attributes, o.metaverse_id,
       o.join_kind, o.pinned, o.drift_reported, o.version, o.reevaluate_at
FROM unnest($1::bigint[]) AS a (id)
CROSS JOIN LATERAL (SELECT * FROM connector_objects WHERE id = a.id LIMIT 1) AS o;

-- name: find_by_anchor
SELECT id
FROM connector_objects
WHERE system_number = $1 AND anchor = $2
ORDER BY id
LIMIT 2;

-- name: find_anchored
-- Objects of a system that have these anchors.
SELECT a.position, o.id
FROM unnest($2::smallint[], $3::text[]) WITH ORDINALITY AS a (type_number, anchor, position)
CROSS JOIN LATERAL (
    SELECT id FROM connector_objects
    WHERE system_number = (SELECT $1::smallint) AND type_number = a.type_number AND anchor = a.anchor
    LIMIT 1
) AS o;

-- name: load_joined_objects
-- All objects that are joined to these metaverse objects.
SELECT o.id, o.system_number, o.type_number, o.anchor, o.address, o.container, o.state, o.attributes, o.metaverse_id,
       o.join_kind, o.pinned, o.drift_reported, o.version, o.reevaluate_at
FROM unnest($1::bigint[]) AS a (metaverse_id)
CROSS JOIN LATERAL (
    SELECT * FROM connector_objects WHERE metaverse_id = a.metaverse_id ORDER BY system_number LIMIT 1000
) AS o;

-- name: lock_objects
-- Lock the objects that a page writes, in the order of all transactions, and return what a concurrent transaction may
-- have changed.
SELECT o.id, o.version, o.metaverse_id, o.state
FROM unnest($1::bigint[]) AS a (id)
CROSS JOIN LATERAL (
    SELECT id, version, metaverse_id, state FROM connector_objects WHERE id = a.id LIMIT 1 FOR UPDATE
) AS o;

-- name: write_joins
-- Join or disconnect objects, and write the state and instants that a sync decided.
UPDATE connector_objects AS o
SET metaverse_id = u.metaverse_id, join_kind = u.join_kind, drift_reported = string_to_array(u.drift_reported, E'\x1f'),
    reevaluate_at = u.reevaluate_at, version = o.version + 1,
    changed_at = CASE WHEN o.metaverse_id IS DISTINCT FROM u.metaverse_id THEN $6 ELSE o.changed_at END
FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::timestamptz[])
    AS u (id, metaverse_id, join_kind, drift_reported, reevaluate_at)
WHERE o.id = u.id;

-- name: mark_obsolete
-- Objects that were deleted in the source: the next sync disconnects them.
UPDATE connector_objects AS o
SET state = 'obsolete', version = o.version + 1, changed_at = $2
FROM unnest($1::bigint[]) AS u (id)
WHERE o.id = u.id
RETURNING o.id, o.type_number, o.anchor, o.attributes;

-- name: delete_objects
DELETE FROM connector_objects AS o
USING unnest($1::bigint[]) AS u (id)
WHERE o.id = u.id
RETURNING o.id, o.type_number, o.anchor, o.attributes;

-- name: delete_references_of
DELETE FROM connector_references AS r
USING unnest($1::bigint[]) AS u (id)
WHERE r.object_id = u.id;

-- name: unresolve_references_to
UPDATE connector_references AS r
SET target_id = NULL
FROM unnest($1::bigint[]) AS u (id)
WHERE r.target_id = u.id;

-- name: delete_object_keys
DELETE FROM object_keys AS k
USING unnest($1::bigint[]) AS u (id)
WHERE k.object_id = u.id;

-- name: delete_evaluations
-- Evaluations of objects that are deleted or disconnected. Those of the objects that were joined beside them end by
-- themselves, because they name all joined objects.
DELETE FROM evaluated_objects AS e
USING unnest($1::bigint[]) AS u (id)
WHERE e.object_id = u.id;

-- name: load_references
-- References of objects, with the metaverse objects of their targets.
SELECT r.object_id, r.attribute_number, r.raw_key, r.raw, r.target_id, t.metaverse_id
FROM unnest($1::bigint[]) AS a (id)
CROSS JOIN LATERAL (SELECT * FROM connector_references WHERE object_id = a.id LIMIT 1000000) AS r
LEFT JOIN LATERAL (SELECT metaverse_id FROM connector_objects WHERE id = r.target_id LIMIT 1) AS t ON true
ORDER BY r.object_id, r.attribute_number, r.raw_key;

-- name: delete_references
DELETE FROM connector_references AS r
USING unnest($1::bigint[], $2::integer[], $3::text[]) AS u (object_id, attribute_number, raw_key)
WHERE r.object_id = u.object_id AND r.attribute_number = u.attribute_number AND r.raw_key = u.raw_key;

-- name: delete_references_of_attributes
DELETE FROM connector_references AS r
USING unnest($1::bigint[], $2::integer[]) AS u (object_id, attribute_number)
WHERE r.object_id = u.object_id AND r.attribute_number = u.attribute_number;

-- name: find_reference_targets
-- Find the objects that raw references name: by address, and only those that have none by anchor.
SELECT a.position, coalesce(by_address.id, by_anchor.id) AS id
FROM unnest($2::text[], $3::text[], $4::smallint[]) WITH ORDINALITY AS a (raw_key, anchor, type_number, position)
LEFT JOIN LATERAL (
    SELECT id FROM connector_objects WHERE system_number = (SELECT $1::smallint) AND address_key = a.raw_key ORDER BY id LIMIT 1
) AS by_address ON true
LEFT JOIN LATERAL (
    SELECT id FROM connector_objects
    WHERE by_address.id IS NULL AND system_number = (SELECT $1::smallint) AND type_number = a.type_number
      AND anchor = a.anchor
    LIMIT 1
) AS by_anchor ON true
WHERE by_address.id IS NOT NULL OR by_anchor.id IS NOT NULL;

-- name: has_waiting_references
-- Mostly false: then nothing is looked up for the objects of a page.
SELECT EXISTS (SELECT FROM connector_references WHERE system_number = $1 AND target_id IS NULL);

-- name: resolve_waiting_references
-- Resolve references that were waiting for these objects, by the key of their address or anchor.
UPDATE connector_references AS r
SET target_id = u.id
FROM unnest($2::text[], $3::bigint[]) AS u (raw_key, id)
WHERE r.system_number = $1 AND r.raw_key = u.raw_key AND r.target_id IS NULL
RETURNING r.object_id;

-- name: find_unjoined_by_keys
-- Unjoined objects of target systems that have these keys.
SELECT a.position, k.object_id, k.value
FROM unnest($1::smallint[], $2::integer[], $3::text[]) WITH ORDINALITY AS a (system_number, attribute_number, key, position)
CROSS JOIN LATERAL (
    SELECT object_id, value FROM object_keys
    WHERE system_number = a.system_number AND attribute_number = a.attribute_number AND key = a.key
    ORDER BY object_id
    LIMIT 20
) AS k
CROSS JOIN LATERAL (
    SELECT 1 FROM connector_objects
    WHERE id = k.object_id AND metaverse_id IS NULL AND state = 'normal' AND NOT pinned
    LIMIT 1
) AS o;

-- name: record_written
-- Write what a system answered to an export: anchor and address, and for confirmed exports the values and the state.
UPDATE connector_objects AS o
SET anchor = coalesce(u.anchor, o.anchor), address = coalesce(u.address, o.address),
    address_key = coalesce(u.address_key, o.address_key),
    state = CASE WHEN u.attributes IS NULL THEN o.state ELSE 'normal' END,
    attributes = coalesce(u.attributes::jsonb, o.attributes),
    fingerprint = CASE WHEN u.attributes IS NULL THEN o.fingerprint END,
    version = o.version + 1, changed_at = $6
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[])
    AS u (id, anchor, address, address_key, attributes)
WHERE o.id = u.id;

-- name: store_keyed_by
UPDATE systems SET keyed_by = $2 WHERE number = $1;

-- name: clear_object_keys
DELETE FROM object_keys WHERE system_number = $1;

-- name: load_addresses
-- Addresses and anchors of the objects in one system that are joined to these metaverse objects.
SELECT a.metaverse_id, o.id, o.address, o.anchor, o.state, p.kind AS pending_kind,
    coalesce(p.phase = 1 AND p.attempts = 0, false) AS is_renamed
FROM unnest($2::bigint[]) AS a (metaverse_id)
CROSS JOIN LATERAL (
    SELECT id, address, anchor, state FROM connector_objects
    WHERE metaverse_id = a.metaverse_id AND system_number = (SELECT $1::smallint)
    LIMIT 1
) AS o
LEFT JOIN LATERAL (
    SELECT kind, phase, attempts FROM pending_exports
    WHERE object_id = o.id AND state IN ('pending', 'executing', 'failed')
    LIMIT 1
) AS p ON true;

-- name: has_provisioning
SELECT EXISTS (
    SELECT FROM pending_exports WHERE system_number = $1 AND (kind = 'create' OR foreign_anchor IS NOT NULL)
);

-- name: count_with_value
-- How many objects of a type have a value of an attribute; a scan of the type, made only if a guard may trip.
SELECT count(*)
FROM connector_objects AS o
WHERE o.system_number = $1 AND o.type_number = $2 AND o.state = 'normal'
  AND (o.attributes ? $3
       OR EXISTS (
           SELECT FROM connector_references AS r
           JOIN attributes AS a ON a.number = r.attribute_number
           WHERE r.object_id = o.id AND a.name = $3
       ));

-- name: list_ids
-- The next objects of a system, in any state.
SELECT id FROM connector_objects WHERE system_number = $1 AND id > $2 ORDER BY id LIMIT $3;

-- name: delete_watermarks
DELETE FROM watermarks WHERE system_number = $1;

-- name: restore_attributes
-- Undo what an earlier page of the same run wrote; the next import decodes the objects again.
UPDATE connector_objects AS o
SET attributes = u.attributes::jsonb, fingerprint = NULL, version = o.version + 1
FROM unnest($1::bigint[], $2::text[]) AS u (id, attributes)
WHERE o.id = u.id;

-- name: set_manual_join
-- A user joins or disconnects an object; the rules leave it as it is until the pin is removed.
UPDATE connector_objects
SET metaverse_id = $2, join_kind = $3, pinned = $4, version = version + 1, changed_at = $5
WHERE id = $1;

-- name: find_referring
-- Objects that refer to one of these, by anchor.
SELECT DISTINCT o.id, o.anchor
FROM unnest($1::bigint[]) AS a (id)
CROSS JOIN LATERAL (SELECT object_id FROM connector_references WHERE target_id = a.id LIMIT 1000000) AS r
CROSS JOIN LATERAL (
    SELECT id, anchor FROM connector_objects
    WHERE id = r.object_id AND state = 'normal' AND anchor IS NOT NULL
    LIMIT 1
) AS o
ORDER BY o.id
LIMIT $2;
