-- name: write_audit
-- One entry of the audit trail, if anything has been written in this transaction; whether it has. It waits to be sealed.
WITH entry AS (
    INSERT INTO tenuto.audit (
        id, at, actor_type, actor_id, actor_name, source, request_id, action, target, reason, before, after
    )
    SELECT $1, clock_timestamp(), $2, $3, $4, $5, $6, $7, $8, $9, $10, $11
    WHERE pg_current_xact_id_if_assigned() IS NOT NULL
    ON CONFLICT DO NOTHING
    RETURNING id
),
waiting AS (
    INSERT INTO tenuto.audit_unsealed (audit_id)
    SELECT id
    FROM entry
)
SELECT pg_current_xact_id_if_assigned() IS NOT NULL AS changed;

-- name: keep_request
-- A request by its key, once; whether it is this very one. One that is being done elsewhere is waited for.
INSERT INTO tenuto.requests (actor, key, fingerprint, subject, at)
VALUES ($1, $2, $3, $4, clock_timestamp())
ON CONFLICT (actor, key) DO UPDATE
SET at = requests.at
WHERE requests.subject = excluded.subject
RETURNING key;
