-- name: write_entry
-- Insert one audit entry and mark it as pending, if this transaction has written anything; return whether it has.
WITH entry AS (
    INSERT INTO tenuto.audit (
        id, at, actor_type, actor_id, actor_name, source, request_id, action, target, reason, before, after
    )
    SELECT $1::uuid, clock_timestamp(), $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text,
           $10::jsonb, $11::jsonb
    WHERE pg_current_xact_id_if_assigned() IS NOT NULL
    ON CONFLICT DO NOTHING
    RETURNING id
),
waiting AS (
    INSERT INTO tenuto.audit_unsealed (audit_id)
    SELECT id
    FROM entry -- guard: audit.entry_is_announced
)
SELECT pg_current_xact_id_if_assigned() IS NOT NULL AS changed;

-- name: store_idempotency_key
-- Store an idempotency key once, and return whether it belongs to this request. Waits for a concurrent transaction
-- with the same key.
INSERT INTO tenuto.requests (actor, key, fingerprint, subject, at)
VALUES ($1::text, $2::text, $3::bytea, $4::uuid, clock_timestamp())
ON CONFLICT (actor, key) DO UPDATE
SET at = requests.at
WHERE requests.subject = excluded.subject -- guard: idempotency.one_request_per_key
RETURNING key;
