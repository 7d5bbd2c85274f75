-- name: hold
-- Nobody else changes a secret until the transaction ends; reading goes on.
LOCK TABLE tenuto.secrets IN SHARE ROW EXCLUSIVE MODE;

-- name: key_ids
-- With which master keys secrets are sealed, and how many with each.
SELECT key_id, count(*) AS secrets
FROM tenuto.secrets
GROUP BY key_id
ORDER BY key_id
LIMIT 1000;

-- name: version
-- Which version of a secret is stored.
SELECT version
FROM tenuto.secrets
WHERE name = $1;

-- name: put
-- A secret, new or in a new version.
INSERT INTO tenuto.secrets (name, version, key_id, wrapped, sealed, created_at, updated_at, updated_by)
VALUES ($1, $2, $3, $4, $5, $6, $6, $7)
ON CONFLICT (name) DO UPDATE
SET version = excluded.version,
    key_id = excluded.key_id,
    wrapped = excluded.wrapped,
    sealed = excluded.sealed,
    updated_at = excluded.updated_at,
    updated_by = excluded.updated_by;

-- name: secret
-- One secret, sealed.
SELECT name, version, key_id, wrapped, sealed
FROM tenuto.secrets
WHERE name = $1;

-- name: list_secrets
-- What is known of secrets but for their values, by name.
SELECT name, version, key_id, created_at, updated_at, updated_by
FROM tenuto.secrets
WHERE name > $1
ORDER BY name
LIMIT $2;

-- name: under_other_keys
-- Secrets that are not sealed with the given master key, by name.
SELECT name, version, key_id, wrapped, sealed
FROM tenuto.secrets
WHERE key_id <> $1 AND name > $2
ORDER BY name
LIMIT 500;

-- name: rewrapped
-- The data key of a secret is now wrapped by another master key; the secret itself is as it was.
UPDATE tenuto.secrets
SET key_id = $3,
    wrapped = $4
WHERE name = $1 AND version = $2;

-- name: delete
-- A secret goes.
DELETE FROM tenuto.secrets
WHERE name = $1
RETURNING name;
