-- name: list_manifests_of_failures
-- Return the manifests with open dead letters of each kind of failure.
SELECT fingerprint, array_agg(DISTINCT external_id ORDER BY external_id) AS manifests
FROM tenuto.dead_letters
WHERE status = 'awaiting_intervention' AND fingerprint = ANY ($1::text[]) AND external_id <> ''
GROUP BY fingerprint
ORDER BY fingerprint;

-- name: count_failures_by_hour
-- Count the dead letters of each kind of failure by hour since an instant; resolved ones are counted too.
SELECT fingerprint, floor(extract(epoch FROM dead_lettered_at - $2::timestamptz) / 3600)::integer AS hour, count(*) AS count
FROM (
    SELECT fingerprint, dead_lettered_at
    FROM tenuto.dead_letters
    WHERE status = 'awaiting_intervention' AND fingerprint = ANY ($1::text[])
    UNION ALL
    SELECT fingerprint, dead_lettered_at
    FROM tenuto.dead_letters
    WHERE resolved_at >= $2::timestamptz AND fingerprint = ANY ($1::text[])
) AS failures
WHERE dead_lettered_at >= $2::timestamptz
GROUP BY 1, 2
ORDER BY 1, 2;

-- name: list_last_resolutions
-- Return how the last resolved dead letter of each kind of failure was resolved.
SELECT last.fingerprint, last.id, last.status AS state, last.resolved_at, last.resolved_name AS resolved_by, last.note
FROM unnest($1::text[]) AS wanted (fingerprint)
CROSS JOIN LATERAL (
    SELECT fingerprint, id, status, resolved_at, resolved_name, note
    FROM tenuto.dead_letters
    WHERE dead_letters.fingerprint = wanted.fingerprint AND resolved_at IS NOT NULL
    ORDER BY resolved_at DESC
    LIMIT 1
) AS last
ORDER BY last.fingerprint;
