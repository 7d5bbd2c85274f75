-- fragment: invitation
-- An invitation without the digest of its link.
id, name, role, created_at, created_by, expires_at, accepted_at, revoked_at, revoked_by,
expires_at <= clock_timestamp() AS expired

-- name: revoke_expired_invitations
-- Revoke the expired invitation of a name, so that a new one can be made.
UPDATE tenuto.invitations
SET revoked_at = expires_at,
    revoked_by = 'expiry'
WHERE name = $1
  AND accepted_at IS NULL
  AND revoked_at IS NULL
  AND expires_at <= clock_timestamp();

-- name: insert_invitation
-- Insert an invitation, which ends with the key of the inviter at the latest. Nothing changes if the name has an open one, or if it was inserted before and the reply was lost.
INSERT INTO tenuto.invitations (id, name, role, digest, created_at, created_by, inviter_id, expires_at)
VALUES (
    $1, $2, $3, $4, clock_timestamp(), $5, $6::text,
    least(clock_timestamp() + $7::interval, (SELECT key.expires_at FROM tenuto.api_keys AS key WHERE key.id::text = $6))
)
ON CONFLICT DO NOTHING;

-- name: load_invitation
-- Return one invitation without the digest of its link.
SELECT {invitation}
FROM tenuto.invitations
WHERE id = $1;

-- name: find_invitations
-- Return the open invitation of a name, and the invitation with an id.
SELECT {invitation}
FROM tenuto.invitations
WHERE (name = $1 AND accepted_at IS NULL AND revoked_at IS NULL) OR id = $2::uuid
ORDER BY id
LIMIT 2;

-- name: list_invitations
-- Return invitations without digests, newest first, below a cursor.
SELECT {invitation}
FROM tenuto.invitations
WHERE $1::uuid IS NULL OR id < $1
ORDER BY id DESC
LIMIT $2;

-- name: lock_open_invitation
-- Return and lock the invitation of a link, if it is open, or if this acceptance was committed and the reply was lost.
SELECT id, name, role, created_by
FROM tenuto.invitations
WHERE digest = $1
  -- guard: invitations.accepted_once
  AND (accepted_at IS NULL OR key_id = $2::uuid)
  AND revoked_at IS NULL -- guard: invitations.revoked
  AND expires_at > clock_timestamp() -- guard: invitations.expired
  AND NOT EXISTS (
      SELECT
      FROM tenuto.api_keys AS key
      WHERE key.id::text = invitations.inviter_id
        AND key.expires_at <= clock_timestamp() -- guard: invitations.end_with_expired_inviter
  )
FOR UPDATE;

-- name: accept_invitation
-- Store that an invitation was accepted, and the key of the person.
UPDATE tenuto.invitations
SET accepted_at = clock_timestamp(),
    key_id = $2
WHERE id = $1;

-- name: revoke_invitation
-- Revoke an open invitation.
UPDATE tenuto.invitations
SET revoked_at = clock_timestamp(),
    revoked_by = $2
WHERE id = $1
  AND accepted_at IS NULL
  AND revoked_at IS NULL
RETURNING id;

-- name: revoke_open_invitations
-- Revoke all open invitations.
UPDATE tenuto.invitations
SET revoked_at = clock_timestamp(),
    revoked_by = $1
WHERE accepted_at IS NULL
  AND revoked_at IS NULL
RETURNING expires_at > clock_timestamp() AS was_open;

-- name: delete_old_invitations
-- Delete a small batch of invitations that expired before the cut-off.
DELETE FROM tenuto.invitations
WHERE id IN (
    SELECT id
    FROM tenuto.invitations
    WHERE expires_at < $1
    ORDER BY expires_at
    LIMIT $2
)
RETURNING id;
