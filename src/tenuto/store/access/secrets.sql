-- name: lock_secrets
-- Block other changes of secrets until the transaction ends; reading continues.
LOCK TABLE tenuto.secrets IN SHARE ROW EXCLUSIVE MODE;

-- name: count_secrets_by_key
-- Count the secrets of each master key.
SELECT key_id, count(*) AS secrets
FROM tenuto.secrets
GROUP BY key_id
ORDER BY key_id
LIMIT 1000;

-- name: load_version
-- Return the stored version of a secret.
SELECT version
FROM tenuto.secrets
WHERE name = $1;

-- name: store_secret
-- Store a secret, new or in a new version.
INSERT INTO tenuto.secrets (name, version, key_id, wrapped, sealed, created_at, updated_at, updated_by)
VALUES ($1, $2, $3, $4, $5, $6, $6, $7)
ON CONFLICT (name) DO UPDATE
SET version = excluded.version,
    key_id = excluded.key_id,
    wrapped = excluded.wrapped,
    sealed = excluded.sealed,
    updated_at = excluded.updated_at,
    updated_by = excluded.updated_by;

-- name: load_secret
-- Return one encrypted secret.
SELECT name, version, key_id, wrapped AS wrapped_key, sealed AS ciphertext
FROM tenuto.secrets
WHERE name = $1;

-- name: list_secrets
-- Return secrets by name, without their values.
SELECT name, version, key_id, created_at, updated_at, updated_by
FROM tenuto.secrets
WHERE name > $1
ORDER BY name
LIMIT $2;

-- name: list_secrets_under_other_keys
-- Return secrets that are encrypted with other master keys, by name.
SELECT name, version, key_id, wrapped AS wrapped_key, sealed AS ciphertext
FROM tenuto.secrets
WHERE key_id <> $1 AND name > $2
ORDER BY name
LIMIT 500;

-- name: update_wrapping
-- Store the data key of a secret wrapped by another master key; the secret is unchanged.
UPDATE tenuto.secrets
SET key_id = $3,
    wrapped = $4
WHERE name = $1 AND version = $2;

-- name: delete_secret
-- Delete a secret.
DELETE FROM tenuto.secrets
WHERE name = $1
RETURNING name;
