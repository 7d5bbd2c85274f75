-- name: insert_key
-- Insert an API key. Nothing changes if its name is in use, its prefix exists, or the key was inserted before and the
-- reply was lost.
INSERT INTO tenuto.api_keys (id, name, prefix, digest, role, created_at, created_by, expires_at)
VALUES ($1, $2, $3, $4, $5, clock_timestamp(), $6, $7)
ON CONFLICT DO NOTHING;

-- name: load_key
-- Return one key without the digest of its secret.
SELECT id, name, prefix, role, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by,
       coalesce(expires_at <= clock_timestamp(), false) AS expired
FROM tenuto.api_keys
WHERE id = $1;

-- name: find_active_key_by_name
-- Return the unrevoked key with this name.
SELECT id
FROM tenuto.api_keys
WHERE name = $1 AND revoked_at IS NULL;

-- name: has_any_key
-- Return whether a key exists or ever existed.
SELECT EXISTS (SELECT FROM tenuto.api_keys) AS found;

-- name: lock_first_key
-- Serialise the creation of the first key.
SELECT pg_advisory_xact_lock(hashtext('tenuto first key'));

-- name: list_keys
-- Return keys without digests, unrevoked ones first, by name, after a cursor.
SELECT id, name, prefix, role, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by,
       coalesce(expires_at <= clock_timestamp(), false) AS expired
FROM tenuto.api_keys
WHERE $2::boolean IS NULL OR (revoked_at IS NOT NULL, name, id) > ($2, $3::text, $4::uuid)
ORDER BY revoked_at IS NOT NULL, name, id
LIMIT $1;

-- name: find_keys
-- Return the keys that match a name (unrevoked keys) or a prefix (all keys).
SELECT id, name, prefix, role, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by,
       coalesce(expires_at <= clock_timestamp(), false) AS expired
FROM tenuto.api_keys
WHERE (name = $1 AND revoked_at IS NULL) OR prefix = $2
ORDER BY id
LIMIT 3;

-- name: load_active_key
-- Return the identity and digest of a key that is neither revoked nor expired.
SELECT id, name, role, digest, last_used_at < clock_timestamp() - interval '1 minute' IS NOT FALSE AS needs_use_update
FROM tenuto.api_keys
WHERE prefix = $1
  AND revoked_at IS NULL -- guard: api_keys.revoked
  -- guard: api_keys.expired
  AND (expires_at IS NULL OR expires_at > clock_timestamp());

-- name: list_active_prefixes
-- Return the prefixes of all keys that are neither revoked nor expired.
SELECT prefix
FROM tenuto.api_keys
WHERE revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > clock_timestamp())
ORDER BY prefix
LIMIT 100000;

-- name: record_use
-- Store when a key was used, at most once a minute.
UPDATE tenuto.api_keys
SET last_used_at = clock_timestamp()
WHERE id = $1
  AND last_used_at < clock_timestamp() - interval '1 minute' IS NOT FALSE;

-- name: revoke_key
-- Revoke a key; the first revocation counts.
UPDATE tenuto.api_keys
SET revoked_at = clock_timestamp(),
    revoked_by = $2
WHERE id = $1 AND revoked_at IS NULL
RETURNING revoked_at;

-- name: lock_active_admin_keys
-- Return and lock the admin keys that are neither revoked nor expired, so that two transactions cannot revoke the last
-- two at once.
SELECT id
FROM tenuto.api_keys
WHERE role = 'admin' AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp())
ORDER BY id
LIMIT 1000
FOR UPDATE; -- guard: api_keys.admins_are_locked

-- name: end_sessions_of_key
-- End the sessions and delete the unused login links of a key.
UPDATE tenuto.sessions
SET ended_at = clock_timestamp(),
    link = NULL
WHERE key_id = $1 AND ended_at IS NULL;

-- name: insert_login_link
-- Insert a single-use login link for an active key.
INSERT INTO tenuto.sessions (id, key_id, link, created_at, expires_at)
SELECT $1, id, $3, clock_timestamp(), clock_timestamp() + $4::interval
FROM tenuto.api_keys
WHERE id = $2
  AND revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > clock_timestamp())
ON CONFLICT DO NOTHING;

-- name: has_login_link
-- Return whether a login link exists.
SELECT EXISTS (SELECT FROM tenuto.sessions WHERE id = $1) AS found;

-- name: redeem_login_link
-- Turn a login link into a session. Only the first of several simultaneous requests succeeds.
UPDATE tenuto.sessions
SET link = NULL, -- guard: api_keys.link_works_once
    token = $2,
    expires_at = clock_timestamp() + $3::interval
WHERE link = $1
  AND ended_at IS NULL
  AND expires_at > clock_timestamp() -- guard: api_keys.link_expiry
RETURNING (SELECT name FROM tenuto.api_keys WHERE api_keys.id = sessions.key_id) AS name;

-- name: insert_session
-- Insert a session of an active key.
INSERT INTO tenuto.sessions (id, key_id, token, created_at, expires_at)
SELECT $1, id, $3, clock_timestamp(), clock_timestamp() + $4::interval
FROM tenuto.api_keys
WHERE id = $2
  AND revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > clock_timestamp())
ON CONFLICT DO NOTHING;

-- name: load_session_key
-- Return the key of a session, if neither has ended.
SELECT key.id, key.name, key.role
FROM tenuto.sessions
JOIN tenuto.api_keys AS key ON key.id = sessions.key_id
WHERE sessions.token = $1
  AND sessions.ended_at IS NULL
  AND sessions.expires_at > clock_timestamp()
  AND key.revoked_at IS NULL
  -- guard: api_keys.session_ends_with_key
  AND (key.expires_at IS NULL OR key.expires_at > clock_timestamp());

-- name: end_session
-- End a session.
UPDATE tenuto.sessions
SET ended_at = clock_timestamp()
WHERE token = $1 AND ended_at IS NULL;

-- name: delete_old_sessions
-- Delete a small batch of sessions and login links that expired before the cut-off.
DELETE FROM tenuto.sessions
WHERE id IN (
    SELECT id
    FROM tenuto.sessions
    WHERE expires_at < $1
    ORDER BY expires_at
    LIMIT $2
)
RETURNING id;
