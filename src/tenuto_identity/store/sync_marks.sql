-- name: load_marks_page
-- The next marked objects of a system in order of id, with the stamps that were read.
SELECT object_id, reason, stamp, attempts
FROM sync_marks
WHERE system_number = $1 AND object_id > $2 AND stamp <= $3
ORDER BY object_id
LIMIT $4;

-- name: last_stamp
-- Marks with a larger stamp are set while the run is active; the next one processes them.
SELECT nextval('sync_mark_stamps');

-- name: load_marks_with_reason
SELECT object_id, reason, stamp, attempts
FROM sync_marks
WHERE system_number = $1 AND object_id > $2 AND reason = $3 AND stamp > $4
ORDER BY object_id
LIMIT $5;

-- name: set_marks
INSERT INTO sync_marks (object_id, system_number, reason)
SELECT u.id, u.system_number, $3
FROM unnest($1::bigint[], $2::smallint[]) AS u (id, system_number)
ON CONFLICT (object_id) DO UPDATE
SET reason = excluded.reason, stamp = excluded.stamp,
    attempts = CASE WHEN excluded.reason = 'error' THEN sync_marks.attempts + 1 ELSE sync_marks.attempts END;

-- name: delete_marks
-- Only marks with the stamp that was read are deleted: a change during the run stays marked.
DELETE FROM sync_marks AS m
USING unnest($1::bigint[], $2::bigint[]) AS u (object_id, stamp)
WHERE m.object_id = u.object_id
  AND m.stamp = u.stamp; -- guard: identity.mark_stamp

-- name: delete_marks_of_objects
DELETE FROM sync_marks AS m
USING unnest($1::bigint[]) AS u (object_id)
WHERE m.object_id = u.object_id;

-- name: load_stamps
SELECT m.object_id, m.reason, m.stamp, m.attempts
FROM unnest($1::bigint[]) AS a (object_id)
CROSS JOIN LATERAL (SELECT * FROM sync_marks WHERE object_id = a.object_id LIMIT 1) AS m;

-- name: mark_objects_of_type
-- Mark all objects of a type, because a rule has changed.
INSERT INTO sync_marks (object_id, system_number, reason)
SELECT id, system_number, 'rule'
FROM connector_objects
WHERE system_number = $1 AND type_number = $2
ON CONFLICT (object_id) DO UPDATE SET reason = excluded.reason, stamp = excluded.stamp;

-- name: count_objects_of_type
SELECT count(*) FROM connector_objects WHERE system_number = $1 AND type_number = $2;

-- name: mark_joined_objects
-- Mark one joined object of each metaverse object.
INSERT INTO sync_marks (object_id, system_number, reason)
SELECT o.id, o.system_number, $2
FROM unnest($1::bigint[]) AS a (metaverse_id)
CROSS JOIN LATERAL (
    SELECT id, system_number FROM connector_objects
    WHERE metaverse_id = a.metaverse_id AND state = 'normal'
    ORDER BY CASE join_kind WHEN 'projected' THEN 0 WHEN 'joined' THEN 1 ELSE 2 END, system_number
    LIMIT 1
) AS o
ON CONFLICT (object_id) DO UPDATE SET reason = excluded.reason, stamp = excluded.stamp;

-- name: list_marked_systems
-- Systems with objects that the next delta sync processes.
SELECT s.number
FROM systems AS s
WHERE EXISTS (SELECT FROM sync_marks AS m WHERE m.system_number = s.number)
ORDER BY s.number;

-- name: count_marks
SELECT count(*) FROM sync_marks WHERE system_number = $1 AND stamp <= $2;

-- name: mark_referring
-- Mark the objects that refer to newly joined ones: their references can be resolved now. Objects of the page know the
-- joins already; with a first id, objects from there on will be processed later in the same run, unless it may skip them.
INSERT INTO sync_marks (object_id, system_number, reason)
SELECT DISTINCT r.object_id, r.system_number, 'reference'
FROM unnest($1::bigint[]) AS a (id)
CROSS JOIN LATERAL (
    SELECT object_id, system_number FROM connector_references WHERE target_id = a.id LIMIT 1000000
) AS r
WHERE r.object_id <> ALL ($2::bigint[])
  AND ($3::bigint IS NULL OR r.object_id < $3
       OR EXISTS (SELECT FROM evaluated_objects AS e WHERE e.object_id = r.object_id)) -- guard: identity.skip_referring
ORDER BY r.object_id
ON CONFLICT (object_id) DO UPDATE SET reason = excluded.reason, stamp = excluded.stamp;
