-- name: one_sealer
-- Whether we are the one who seals, until the transaction ends. Asked alone: what is read must be read after it.
SELECT pg_try_advisory_xact_lock(hashtext('tenuto audit chain')) AS ours;

-- name: is_waiting
-- Whether an entry waits to be sealed.
SELECT EXISTS (SELECT FROM tenuto.audit_unsealed) AS found;

-- name: head
-- The last link of the chain.
SELECT position, seal
FROM tenuto.audit_chain
ORDER BY position DESC
LIMIT 1;

-- name: unsealed
-- Entries that wait to be sealed, the oldest first, each in the form that is sealed.
SELECT id::text AS id, to_json(at AT TIME ZONE 'UTC') #>> '{}' AS at, actor_type, actor_id, actor_name, source,
       request_id, action, target, reason, before::text AS before, after::text AS after
FROM tenuto.audit_unsealed
JOIN tenuto.audit ON audit.id = audit_unsealed.audit_id
ORDER BY audit_unsealed.audit_id
LIMIT $1;

-- name: append
-- New links.
INSERT INTO tenuto.audit_chain (position, audit_id, sealed_at, seal)
SELECT position, audit_id, clock_timestamp(), seal
FROM unnest($1::bigint[], $2::uuid[], $3::bytea[]) AS link (position, audit_id, seal);

-- name: sealed
-- What was sealed waits no longer.
DELETE FROM tenuto.audit_unsealed
WHERE audit_id = ANY ($1::uuid[]);

-- name: links
-- Links from a position on, each with its entry in the form that was sealed; the entry is null if it is gone.
SELECT link.position, link.audit_id, link.sealed_at, link.seal, audit.id IS NOT NULL AS there, audit.at AS instant,
       audit.id::text AS id, to_json(audit.at AT TIME ZONE 'UTC') #>> '{}' AS at, actor_type, actor_id, actor_name,
       source, request_id, action, target, reason, before::text AS before, after::text AS after
FROM tenuto.audit_chain AS link
LEFT JOIN tenuto.audit ON audit.id = link.audit_id
WHERE link.position > $1
ORDER BY link.position
LIMIT $2;

-- name: waiting
-- Entries that have no link yet, the oldest first, each in the form that is to be sealed.
SELECT audit.id::text AS id, to_json(audit.at AT TIME ZONE 'UTC') #>> '{}' AS at, actor_type, actor_id, actor_name,
       source, request_id, action, target, reason, before::text AS before, after::text AS after
FROM tenuto.audit
WHERE NOT EXISTS (SELECT FROM tenuto.audit_chain WHERE audit_chain.audit_id = audit.id)
ORDER BY audit.id
LIMIT $1;

-- name: astray
-- What is neither in the chain nor waiting as it should: entries nobody announced, entries that wait for too long, and
-- announced ones that are gone. Of the entries, those below $2 and not below $3; what is gone if $4 says so.
SELECT audit.id, audit.action, audit.actor_name, audit.at,
       CASE WHEN waiting.audit_id IS NULL THEN 'inserted' ELSE 'unsealed' END AS how
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

-- name: nth_below
-- The n-th entry below an id, counted from 0.
SELECT id
FROM tenuto.audit
WHERE id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
ORDER BY id DESC
OFFSET $2
LIMIT 1;

-- name: database_identity
-- Which database this is: the same after a restart, another one after a copy.
SELECT system_identifier::text || '/' || (SELECT oid FROM pg_database WHERE datname = current_database()) AS identity
FROM pg_control_system();

-- name: list_entries
-- Entries, the newest first, with their place in the chain.
SELECT audit.id, audit.at, audit.actor_type, audit.actor_id, audit.actor_name, audit.source, audit.request_id,
       audit.action, audit.target, audit.reason, audit.before, audit.after, link.position
FROM tenuto.audit
LEFT JOIN tenuto.audit_chain AS link ON link.audit_id = audit.id
WHERE ($1::uuid IS NULL OR audit.id < $1)
  AND ($2::text IS NULL OR audit.actor_name = $2 OR audit.actor_id = $2)
  AND ($3::text IS NULL OR audit.action = $3 OR starts_with(audit.action, $3 || '.'))
  AND ($4::text IS NULL OR audit.target = $4)
  AND ($5::timestamptz IS NULL OR audit.at >= $5)
  AND ($6::timestamptz IS NULL OR audit.at < $6)
ORDER BY audit.id DESC
LIMIT $7;

-- name: entry
-- One entry, with its place in the chain and its seal.
SELECT audit.id, audit.at, audit.actor_type, audit.actor_id, audit.actor_name, audit.source, audit.request_id,
       audit.action, audit.target, audit.reason, audit.before, audit.after, link.position, link.sealed_at, link.seal
FROM tenuto.audit
LEFT JOIN tenuto.audit_chain AS link ON link.audit_id = audit.id
WHERE audit.id = $1;
