-- name: find_request
-- A request by its key.
SELECT fingerprint, subject, answer
FROM tenuto.requests
WHERE actor = $1 AND key = $2;

-- name: answer_request
-- What was answered to it.
UPDATE tenuto.requests
SET answer = $3
WHERE actor = $1 AND key = $2 AND answer IS NULL
RETURNING key;

-- name: forget_requests
-- A small batch of old requests: nobody sends those again.
DELETE FROM tenuto.requests
WHERE (actor, key) IN (
    SELECT actor, key
    FROM tenuto.requests
    WHERE at < $1
    ORDER BY at
    LIMIT $2
)
RETURNING key;
