-- name: find_request
-- Return a request by its idempotency key.
SELECT fingerprint, subject, answer AS response
FROM tenuto.requests
WHERE actor = $1 AND key = $2;

-- name: store_response
-- Store the response to a request.
UPDATE tenuto.requests
SET answer = $3
WHERE actor = $1 AND key = $2 AND answer IS NULL
RETURNING key;

-- name: delete_old_requests
-- Delete a small batch of old requests.
DELETE FROM tenuto.requests
WHERE (actor, key) IN (
    SELECT actor, key
    FROM tenuto.requests
    WHERE at < $1
    ORDER BY at
    LIMIT $2
)
RETURNING key;
