-- name: list_failure_groups
-- Group open dead letters by kind of failure, most frequent first. They are counted by manifest and job first: sorting
-- all of them for the distinct ones took three quarters of the time.
WITH parts AS MATERIALIZED (
    SELECT fingerprint, external_id, kind, name, count(*) AS count, min(dead_lettered_at) AS first_at,
           max(dead_lettered_at) AS last_at
    FROM tenuto.dead_letters
    WHERE status = 'awaiting_intervention'
      AND ($1::text IS NULL OR external_id = $1)
      AND ($3::uuid IS NULL OR batch_id = $3)
    GROUP BY fingerprint, external_id, kind, name
), groups AS (
    SELECT fingerprint, sum(count)::bigint AS dead_letter_count,
           count(DISTINCT external_id) FILTER (WHERE external_id <> '') AS manifest_count,
           coalesce(min(external_id) FILTER (WHERE external_id <> ''), '') AS external_id,
           count(DISTINCT (kind, name)) AS job_count, min(name) AS name, min(first_at) AS first_at, max(last_at) AS last_at
    FROM parts
    GROUP BY fingerprint
    ORDER BY sum(count) DESC, fingerprint
    LIMIT $2
)
SELECT groups.*, newest.reason
FROM groups
CROSS JOIN LATERAL (
    SELECT reason
    FROM tenuto.dead_letters
    WHERE status = 'awaiting_intervention'
      AND dead_letters.fingerprint = groups.fingerprint
      AND ($1::text IS NULL OR dead_letters.external_id = $1)
      AND ($3::uuid IS NULL OR batch_id = $3)
    ORDER BY id DESC
    LIMIT 1
) AS newest
ORDER BY dead_letter_count DESC, fingerprint;

-- name: summarise_dead_letters
-- Count dead letters by manifest and kind of failure.
SELECT external_id, name, fingerprint, count(*) AS dead_letter_count,
       CASE WHEN external_id = '' THEN 0 ELSE 1 END AS manifest_count, 1 AS job_count, min(dead_lettered_at) AS first_at,
       max(dead_lettered_at) AS last_at, (array_agg(reason ORDER BY id DESC))[1] AS reason
FROM tenuto.dead_letters
WHERE id = ANY ($1::uuid[])
GROUP BY external_id, name, fingerprint
ORDER BY count(*) DESC, external_id, name, fingerprint
LIMIT $2;

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
