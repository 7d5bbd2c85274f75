-- fragment: audit_entry
-- An audit entry with its position in the chain and its seal.
audit.id, audit.at, audit.actor_type, audit.actor_id, audit.actor_name, audit.source, audit.request_id,
audit.action, audit.target, audit.reason, audit.before, audit.after, link.position, link.sealed_at,
encode(link.seal, 'hex') AS seal

-- name: try_sealer_lock
-- Try to become the only sealer until the transaction ends. A separate statement, because entries must be read after
-- it.
SELECT pg_try_advisory_xact_lock(hashtext('tenuto audit chain')) AS ours;

-- name: has_unsealed_entries
-- Return whether an entry waits to be sealed.
SELECT EXISTS (SELECT FROM tenuto.audit_unsealed) AS found;

-- name: load_head
-- Return the last link of the audit chain.
SELECT position, seal
FROM tenuto.audit_chain
ORDER BY position DESC
LIMIT 1;

-- name: load_unsealed_entries
-- Return unsealed entries, oldest first, in the form that is sealed.
SELECT id::text AS id, to_json(at AT TIME ZONE 'UTC') #>> '{}' AS at, actor_type, actor_id, actor_name, source,
       request_id, action, target, reason, before::text AS before, after::text AS after
FROM tenuto.audit_unsealed
JOIN tenuto.audit ON audit.id = audit_unsealed.audit_id
ORDER BY audit_unsealed.audit_id
LIMIT $1;

-- name: insert_links
-- Insert links.
INSERT INTO tenuto.audit_chain (position, audit_id, sealed_at, seal)
SELECT position, audit_id, clock_timestamp(), seal
FROM unnest($1::bigint[], $2::uuid[], $3::bytea[]) AS link (position, audit_id, seal);

-- name: delete_pending
-- Remove sealed entries from the pending list.
DELETE FROM tenuto.audit_unsealed
WHERE audit_id = ANY ($1::uuid[]);

-- name: list_links
-- Return links after a position with their entries in the sealed form; the entry is null if it was removed.
SELECT link.position, link.audit_id, link.sealed_at, link.seal, audit.at AS entry_at,
       audit.id::text AS id, to_json(audit.at AT TIME ZONE 'UTC') #>> '{}' AS at, actor_type, actor_id, actor_name,
       source, request_id, action, target, reason, before::text AS before, after::text AS after
FROM tenuto.audit_chain AS link
LEFT JOIN tenuto.audit ON audit.id = link.audit_id
WHERE link.position > $1
ORDER BY link.position
LIMIT $2;

-- name: list_unsealed_entries
-- Return entries without a link, oldest first, in the form that is sealed.
SELECT audit.id::text AS id, to_json(audit.at AT TIME ZONE 'UTC') #>> '{}' AS at, actor_type, actor_id, actor_name,
       source, request_id, action, target, reason, before::text AS before, after::text AS after
FROM tenuto.audit
WHERE NOT EXISTS (SELECT FROM tenuto.audit_chain WHERE audit_chain.audit_id = audit.id)
ORDER BY audit.id
LIMIT $1;

-- name: find_unchained_entries
-- Return irregular entries: neither linked nor pending, pending for too long, or pending but removed. Entries below
-- $2 and not below $3; removed ones if $4.
SELECT audit.id, audit.action, audit.actor_name, audit.at,
       CASE WHEN waiting.audit_id IS NULL THEN 'inserted' ELSE 'unsealed' END AS fault
FROM tenuto.audit
LEFT JOIN tenuto.audit_unsealed AS waiting ON waiting.audit_id = audit.id
WHERE audit.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
  AND audit.id >= coalesce($3::uuid, '00000000-0000-0000-0000-000000000000')
  AND NOT EXISTS (SELECT FROM tenuto.audit_chain WHERE audit_chain.audit_id = audit.id)
  AND (waiting.audit_id IS NULL OR audit.at < clock_timestamp() - $1::interval)
UNION ALL
SELECT waiting.audit_id, NULL, NULL, NULL, 'deleted'
FROM tenuto.audit_unsealed AS waiting
WHERE $4 AND NOT EXISTS (SELECT FROM tenuto.audit WHERE audit.id = waiting.audit_id)
ORDER BY id
LIMIT $5;

-- name: find_nth_entry_below
-- Return the n-th entry below an id, counted from 0.
SELECT id
FROM tenuto.audit
WHERE id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
ORDER BY id DESC
OFFSET $2
LIMIT 1;

-- name: load_database_identity
-- Return an identifier of the database that survives restarts but differs in a copy.
SELECT system_identifier::text || '/' || (SELECT oid FROM pg_database WHERE datname = current_database()) AS identity
FROM pg_control_system();

-- name: list_entries
-- Return audit entries that meet a filter, newest first, with their positions in the chain and seals.
SELECT {audit_entry}
FROM tenuto.audit
LEFT JOIN tenuto.audit_chain AS link ON link.audit_id = audit.id
WHERE audit.id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
  AND (/* filter */ true)
ORDER BY audit.id DESC
LIMIT $2;

-- name: list_history
-- Return the changes of one object, newest first, below a cursor, without addresses and values.
SELECT id, at, actor_type, actor_name, action, reason
FROM tenuto.audit
WHERE target = $2
  AND split_part(action, '.', 1) = $1 -- guard: history.kind_of_object
  AND id < coalesce($3::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
ORDER BY id DESC
LIMIT $4;

-- name: count_entries
-- Count audit entries that meet a filter, up to a limit.
SELECT count(*) AS count
FROM (SELECT FROM tenuto.audit WHERE (/* filter */ true) LIMIT $1) AS found;

-- name: load_entry
-- Return one audit entry with its position and seal.
SELECT {audit_entry}
FROM tenuto.audit
LEFT JOIN tenuto.audit_chain AS link ON link.audit_id = audit.id
WHERE audit.id = $1;
