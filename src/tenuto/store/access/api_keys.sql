-- fragment: api_key
-- An API key without the digest of its secret.
id, name, prefix, role, kind, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by,
coalesce(expires_at <= clock_timestamp(), false) AS expired

-- name: insert_key
-- Insert an API key. Nothing changes if its name is in use, its prefix exists, or the key was inserted before and the
-- reply was lost.
INSERT INTO tenuto.api_keys (id, name, prefix, digest, role, created_at, created_by, expires_at, kind)
VALUES ($1, $2, $3, $4, $5, clock_timestamp(), $6, $7, $8)
ON CONFLICT DO NOTHING;

-- name: load_key
-- Return one key without the digest of its secret.
SELECT {api_key}
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
SELECT {api_key}
FROM tenuto.api_keys
WHERE $2::boolean IS NULL OR (revoked_at IS NOT NULL, name, id) > ($2, $3::text, $4::uuid)
ORDER BY revoked_at IS NOT NULL, name, id
LIMIT $1;

-- name: find_keys
-- Return the keys that match a name (unrevoked keys) or a prefix (all keys).
SELECT {api_key}
FROM tenuto.api_keys
WHERE (name = $1 AND revoked_at IS NULL) OR prefix = $2
ORDER BY id
LIMIT 3;

-- name: load_active_key
-- Return the identity and digest of a key that is neither revoked nor expired.
SELECT id, name, role, kind, digest, last_used_at < clock_timestamp() - interval '1 minute' IS NOT FALSE AS needs_use_update
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

-- name: revoke_invitations_of_key
-- Revoke the open invitations that were made with a key.
UPDATE tenuto.invitations
SET revoked_at = clock_timestamp(),
    revoked_by = $2
WHERE inviter_id = $1::uuid::text -- guard: invitations.end_with_inviter
  AND accepted_at IS NULL
  AND revoked_at IS NULL;

-- name: end_all_sessions
-- End all sessions and delete all unused login links.
UPDATE tenuto.sessions
SET ended_at = clock_timestamp(),
    link = NULL
WHERE ended_at IS NULL
RETURNING expires_at > clock_timestamp() AS was_open;

-- name: list_active_keys
-- Return the keys that are neither revoked nor expired.
SELECT name, role
FROM tenuto.api_keys
WHERE revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > clock_timestamp())
ORDER BY name
LIMIT $1;

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
    opened_at = clock_timestamp(),
    last_used_at = clock_timestamp(),
    expires_at = clock_timestamp() + $3::interval,
    ends_at = clock_timestamp() + $4::interval,
    address = $5,
    browser = $6
WHERE link = $1
  AND ended_at IS NULL
  AND expires_at > clock_timestamp() -- guard: api_keys.link_expiry
RETURNING (SELECT name FROM tenuto.api_keys WHERE api_keys.id = sessions.key_id) AS name;

-- name: insert_session
-- Insert a session of an active key.
INSERT INTO tenuto.sessions
    (id, key_id, token, created_at, opened_at, last_used_at, expires_at, ends_at, address, browser)
SELECT $1, id, $3, clock_timestamp(), clock_timestamp(), clock_timestamp(), clock_timestamp() + $4::interval,
       clock_timestamp() + $5::interval, $6, $7
FROM tenuto.api_keys
WHERE id = $2
  AND revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > clock_timestamp())
ON CONFLICT DO NOTHING;

-- name: load_session_key
-- Return the key of a session, if neither has ended.
SELECT key.id, key.name, key.role, key.kind, sessions.id AS session_id,
       sessions.last_used_at < clock_timestamp() - interval '1 minute' IS NOT FALSE AS needs_use_update
FROM tenuto.sessions
JOIN tenuto.api_keys AS key ON key.id = sessions.key_id
WHERE sessions.token = $1
  AND sessions.ended_at IS NULL
  AND sessions.expires_at > clock_timestamp()
  AND key.revoked_at IS NULL
  -- guard: api_keys.session_ends_with_key
  AND (key.expires_at IS NULL OR key.expires_at > clock_timestamp());

-- name: prolong_session
-- Store the use of a session, at most once a minute. The session then lasts for the idle time again, but never longer
-- than its latest end.
UPDATE tenuto.sessions
SET last_used_at = clock_timestamp(),
    -- guard: sessions.latest_end
    expires_at = least(clock_timestamp() + $2::interval, coalesce(ends_at, expires_at))
WHERE id = $1
  AND ended_at IS NULL
  AND expires_at > clock_timestamp() -- guard: sessions.ended_session_is_not_prolonged
  AND last_used_at < clock_timestamp() - interval '1 minute' IS NOT FALSE;

-- name: list_sessions
-- Return open sessions of one key, or of all keys, last used ones first.
SELECT sessions.id, key.name, key.role, key.kind, sessions.key_id,
       coalesce(sessions.opened_at, sessions.created_at) AS opened_at, sessions.last_used_at, sessions.expires_at, sessions.ends_at, sessions.address, sessions.browser
FROM tenuto.sessions
JOIN tenuto.api_keys AS key ON key.id = sessions.key_id
WHERE sessions.token IS NOT NULL
  AND sessions.ended_at IS NULL
  AND sessions.expires_at > clock_timestamp()
  AND key.revoked_at IS NULL
  AND (key.expires_at IS NULL OR key.expires_at > clock_timestamp())
  AND ($1::uuid IS NULL OR sessions.key_id = $1)
ORDER BY sessions.last_used_at DESC NULLS LAST, sessions.id
LIMIT $2;

-- name: end_session_by_id
-- End an open session, of one key only unless the key is null; return the name of its key.
UPDATE tenuto.sessions
SET ended_at = clock_timestamp()
FROM tenuto.api_keys AS key
WHERE sessions.id = $1
  AND key.id = sessions.key_id
  AND sessions.token IS NOT NULL
  AND sessions.ended_at IS NULL
  AND sessions.expires_at > clock_timestamp()
  AND ($2::uuid IS NULL OR sessions.key_id = $2) -- guard: sessions.own_session
RETURNING key.name;

-- name: end_other_sessions
-- End the open sessions of a key but one.
UPDATE tenuto.sessions
SET ended_at = clock_timestamp()
WHERE key_id = $1
  AND token IS NOT NULL
  AND ended_at IS NULL
  AND expires_at > clock_timestamp()
  AND ($2::uuid IS NULL OR id <> $2)
RETURNING id;

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
