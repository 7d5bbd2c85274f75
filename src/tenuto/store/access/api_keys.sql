-- name: make_key
-- A new key. What is there already (its name is in use, its prefix is taken, or only our reply was lost) is left alone.
INSERT INTO tenuto.api_keys (id, name, prefix, digest, role, created_at, created_by, expires_at)
VALUES ($1, $2, $3, $4, $5, clock_timestamp(), $6, $7)
ON CONFLICT DO NOTHING;

-- name: key
-- One key, without what is stored of its secret.
SELECT id, name, prefix, role, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by,
       expires_at <= clock_timestamp() AS expired
FROM tenuto.api_keys
WHERE id = $1;

-- name: name_in_use
-- The key that has a name, until it is revoked.
SELECT id
FROM tenuto.api_keys
WHERE name = $1 AND revoked_at IS NULL;

-- name: any_key
-- Whether there is or ever was a key.
SELECT EXISTS (SELECT FROM tenuto.api_keys) AS found;

-- name: one_at_a_time
-- Whoever would make the first key waits for whoever is at it.
SELECT pg_advisory_xact_lock(hashtext('tenuto first key'));

-- name: list_keys
-- Keys, those in use first, by name, after a place in that order; without what is stored of their secrets.
SELECT id, name, prefix, role, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by,
       expires_at <= clock_timestamp() AS expired
FROM tenuto.api_keys
WHERE $2::boolean IS NULL OR (revoked_at IS NOT NULL, name, id) > ($2, $3::text, $4::uuid)
ORDER BY revoked_at IS NOT NULL, name, id
LIMIT $1;

-- name: keys_called
-- The keys somebody may mean by a name (of one that is not revoked) or a prefix (of any).
SELECT id, name, prefix, role, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by,
       expires_at <= clock_timestamp() AS expired
FROM tenuto.api_keys
WHERE (name = $1 AND revoked_at IS NULL) OR prefix = $2
ORDER BY id
LIMIT 3;

-- name: key_in_force
-- Of a key that is neither revoked nor expired, who it is and what proves it.
SELECT id, name, role, digest, last_used_at < clock_timestamp() - interval '1 minute' IS NOT FALSE AS to_be_marked
FROM tenuto.api_keys
WHERE prefix = $1
  AND revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > clock_timestamp());

-- name: mark_used
-- Remember about when a key was used: once a minute is enough.
UPDATE tenuto.api_keys
SET last_used_at = clock_timestamp()
WHERE id = $1
  AND last_used_at < clock_timestamp() - interval '1 minute' IS NOT FALSE;

-- name: revoke_key
-- End a key; whoever was first has ended it.
UPDATE tenuto.api_keys
SET revoked_at = clock_timestamp(),
    revoked_by = $2
WHERE id = $1 AND revoked_at IS NULL
RETURNING revoked_at;

-- name: end_sessions_of
-- With a key end the sessions it opened, and the links nobody has followed yet.
UPDATE tenuto.sessions
SET ended_at = clock_timestamp(),
    link = NULL
WHERE key_id = $1 AND ended_at IS NULL;

-- name: make_link
-- A link that opens a session once, for a key in force.
INSERT INTO tenuto.sessions (id, key_id, link, created_at, expires_at)
SELECT $1, id, $3, clock_timestamp(), clock_timestamp() + $4::interval
FROM tenuto.api_keys
WHERE id = $2
  AND revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > clock_timestamp())
ON CONFLICT DO NOTHING;

-- name: link_made
-- Whether a link is there.
SELECT EXISTS (SELECT FROM tenuto.sessions WHERE id = $1) AS found;

-- name: follow_link
-- A link becomes a session. Of those who follow it at once, the first does: for the others it is no longer there.
UPDATE tenuto.sessions
SET link = NULL,
    token = $2,
    expires_at = clock_timestamp() + $3::interval
WHERE link = $1
  AND ended_at IS NULL
  AND expires_at > clock_timestamp()
RETURNING (SELECT name FROM tenuto.api_keys WHERE api_keys.id = sessions.key_id) AS name;

-- name: session_in_force
-- Whose session this is, if neither it nor its key has ended.
SELECT key.id, key.name, key.role
FROM tenuto.sessions
JOIN tenuto.api_keys AS key ON key.id = sessions.key_id
WHERE sessions.token = $1
  AND sessions.ended_at IS NULL
  AND sessions.expires_at > clock_timestamp()
  AND key.revoked_at IS NULL
  AND (key.expires_at IS NULL OR key.expires_at > clock_timestamp());

-- name: end_session
-- Somebody leaves.
UPDATE tenuto.sessions
SET ended_at = clock_timestamp()
WHERE token = $1 AND ended_at IS NULL;

-- name: forget_sessions
-- Let go a small batch of sessions and links that ran out before the cut-off.
DELETE FROM tenuto.sessions
WHERE id IN (
    SELECT id
    FROM tenuto.sessions
    WHERE expires_at < $1
    ORDER BY expires_at
    LIMIT $2
)
RETURNING id;
