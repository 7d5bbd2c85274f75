-- name: lock_progress
-- Return and lock what has been added, with the transactions that have ended by now; no row if another process is
-- adding. A transaction below the next id that is not in progress has ended: all its activities are visible.
SELECT progress.next_transaction_id, progress.in_progress, progress.since,
       pg_snapshot_xmax(snapshot)::text::bigint AS new_next_transaction_id,
       ARRAY (SELECT id::text::bigint FROM pg_snapshot_xip(snapshot) AS id) AS new_in_progress
FROM tenuto.rollup_progress AS progress
CROSS JOIN pg_current_snapshot() AS snapshot
FOR UPDATE OF progress SKIP LOCKED; -- guard: rollups.one_at_a_time

-- name: start_progress
-- Store that nothing has been added, unless progress is stored.
INSERT INTO tenuto.rollup_progress (next_transaction_id, in_progress, since)
VALUES (0, '{}', '2000-01-01 00:00:00+00')
ON CONFLICT DO NOTHING;

-- name: count_new_activities
-- Count the activities of transactions that have ended since the previous snapshot, by bucket, queue, name, outcome and
-- bins of the histograms. The BRIN index leads to the few recent pages. There is no limit: each activity is counted.
SELECT date_bin('10 seconds', ended_at, '2000-01-01 00:00:00+00') AS bucket_at, queue, name, status AS state,
       CASE WHEN started_at IS NOT NULL
            THEN width_bucket(extract(epoch FROM started_at - run_at)::float8, $6::float8[]) END AS wait_bin,
       CASE WHEN started_at IS NOT NULL
            THEN width_bucket(extract(epoch FROM ended_at - started_at)::float8, $6::float8[]) END AS run_bin,
       count(*) AS count
FROM tenuto.activities
WHERE transaction_id >= (SELECT min(id) FROM unnest($2::bigint[] || $1::bigint) AS id)
  AND transaction_id < $3
  AND (transaction_id >= $1 OR transaction_id = ANY ($2::bigint[])) -- guard: rollups.counted_once
  AND transaction_id <> ALL ($4::bigint[]) -- guard: rollups.late_commit
  AND ended_at >= $5
  AND status <> 'skipped' -- a skipped step has not run
GROUP BY 1, 2, 3, 4, 5, 6
ORDER BY 1, 2, 3, 4, 5, 6;

-- name: add_rollups
-- Add counts to buckets.
INSERT INTO tenuto.activity_rollups AS rollup (
    bucket_seconds, dimension, label, bucket_at, completed, warnings, errors, failed, cancelled, wait_bins, run_bins
)
SELECT bucket_seconds, dimension, label, bucket_at, completed, warnings, errors, failed, cancelled, wait_bins, run_bins
FROM jsonb_to_recordset($1::jsonb) AS new (
    bucket_seconds integer, dimension text, label text, bucket_at timestamptz, completed integer, warnings integer,
    errors integer, failed integer, cancelled integer, wait_bins integer[], run_bins integer[]
)
ON CONFLICT (bucket_seconds, dimension, label, bucket_at) DO UPDATE
SET completed = rollup.completed + excluded.completed,
    warnings = rollup.warnings + excluded.warnings,
    errors = rollup.errors + excluded.errors,
    failed = rollup.failed + excluded.failed,
    cancelled = rollup.cancelled + excluded.cancelled,
    wait_bins = tenuto.add_histograms(rollup.wait_bins, excluded.wait_bins),
    run_bins = tenuto.add_histograms(rollup.run_bins, excluded.run_bins);

-- name: store_progress
-- Store what has been added.
UPDATE tenuto.rollup_progress
SET next_transaction_id = $1,
    in_progress = $2,
    since = $3;

-- name: delete_old_rollups
-- Delete a batch of buckets of one size that are older than a cut-off.
DELETE FROM tenuto.activity_rollups
WHERE ctid = ANY (ARRAY (
    SELECT ctid
    FROM tenuto.activity_rollups
    WHERE bucket_seconds = $1
      AND dimension IN ('all', 'queue', 'name')
      AND bucket_at < $2
    LIMIT $3
))
RETURNING 1;

-- name: list_rollups
-- Return buckets of one size in a window, of all labels of a dimension or of some.
SELECT label, bucket_at, completed, warnings, errors, failed, cancelled, wait_bins, run_bins
FROM tenuto.activity_rollups
WHERE bucket_seconds = $1
  AND dimension = $2
  AND bucket_at >= $3
  AND bucket_at < $4
  AND ($5::text[] IS NULL OR label = ANY ($5))
ORDER BY label, bucket_at
LIMIT $6;

-- name: list_busiest_labels
-- Return the labels of a dimension with the most attempts in a window, and the number of all labels.
SELECT label, count(*) OVER () AS label_count
FROM tenuto.activity_rollups
WHERE bucket_seconds = $1
  AND dimension = $2
  AND bucket_at >= $3
  AND bucket_at < $4
GROUP BY label
ORDER BY sum(completed + warnings + errors + failed + cancelled) DESC, label
LIMIT $5;
