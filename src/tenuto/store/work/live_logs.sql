-- name: watch
-- Watch the logs of running attempts for $2 from now on. Workers are notified of logs that were not watched; a watch is
-- renewed only if a third of its time is over.
WITH watched AS (
    SELECT activity_id
    FROM tenuto.log_watches
    WHERE activity_id = ANY ($1::uuid[]) AND watched_until > clock_timestamp()
), renewed AS (
    INSERT INTO tenuto.log_watches AS watch (activity_id, watched_until)
    SELECT id, clock_timestamp() + $2::interval
    FROM unnest($1::uuid[]) AS id
    ORDER BY id
    ON CONFLICT (activity_id) DO UPDATE
    SET watched_until = excluded.watched_until
    WHERE watch.watched_until < excluded.watched_until - $2::interval / 3
    RETURNING activity_id
)
SELECT pg_notify('tenuto', 'watch')
WHERE EXISTS (SELECT FROM renewed WHERE activity_id NOT IN (SELECT activity_id FROM watched));

-- name: list_watched
-- Return the attempts whose logs are watched.
SELECT activity_id
FROM tenuto.log_watches
WHERE watched_until > clock_timestamp()
ORDER BY activity_id
LIMIT $1;

-- name: append_texts
-- Append texts to live logs; a repeated statement appends nothing.
INSERT INTO tenuto.live_logs (activity_id, first_offset, text)
SELECT activity_id, first_offset, text
FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS new (activity_id, first_offset, text)
ON CONFLICT DO NOTHING;

-- name: trim_texts
-- Delete the texts of live logs before an offset.
DELETE FROM tenuto.live_logs
USING unnest($1::uuid[], $2::bigint[]) AS floor (activity_id, first_offset)
WHERE live_logs.activity_id = floor.activity_id AND live_logs.first_offset < floor.first_offset;

-- name: remove_live_logs
-- Delete live logs.
DELETE FROM tenuto.live_logs
WHERE activity_id = ANY ($1::uuid[]);

-- name: remove_abandoned
-- Delete expired watches, and texts without a watch whose worker did not delete them.
WITH expired AS (
    DELETE FROM tenuto.log_watches
    WHERE watched_until < clock_timestamp() - $1::interval
)
DELETE FROM tenuto.live_logs
WHERE written_at < clock_timestamp() - $1::interval
  AND NOT EXISTS (
      SELECT
      FROM tenuto.log_watches
      WHERE log_watches.activity_id = live_logs.activity_id AND watched_until > clock_timestamp()
  );

-- name: list_texts
-- Return the texts of a live log that end after an offset, in order.
SELECT first_offset, text
FROM tenuto.live_logs
WHERE activity_id = $1
  AND first_offset + length(text) > $2
ORDER BY first_offset
LIMIT 10000;
