-- Numbers of ended attempts per time bucket, for charts. Schedulers add every activity once: the activities of
-- transactions that have ended since the previous snapshot. An instant would not do, because an attempt that ended
-- earlier may be committed later.

ALTER TABLE tenuto.activities ADD COLUMN transaction_id bigint;            -- null: written before this migration
ALTER TABLE tenuto.activities ALTER COLUMN transaction_id SET DEFAULT pg_current_xact_id()::text::bigint;
CREATE INDEX activities_by_transaction ON tenuto.activities USING brin (transaction_id) WITH (autosummarize = on);

CREATE TABLE tenuto.activity_rollups (
    bucket_seconds integer NOT NULL CHECK (bucket_seconds IN (10, 60, 3600)),
    dimension      text NOT NULL CHECK (dimension IN ('all', 'queue', 'name')),
    label          text NOT NULL,              -- the queue or the name; empty for all
    bucket_at      timestamptz NOT NULL,
    completed      integer NOT NULL,
    warnings       integer NOT NULL,           -- completed with warning
    errors         integer NOT NULL,           -- completed with error
    failed         integer NOT NULL,
    cancelled      integer NOT NULL,
    wait_bins      integer[] NOT NULL,         -- histogram of the waits before the attempts; bounds: model.rollups
    run_bins       integer[] NOT NULL,         -- histogram of the durations
    PRIMARY KEY (bucket_seconds, dimension, label, bucket_at)
);
CREATE INDEX activity_rollups_in_order ON tenuto.activity_rollups (bucket_seconds, dimension, bucket_at);

-- Which transactions have been added: those below next_transaction_id, except those that were in progress. Without a
-- row, none has been added.
CREATE TABLE tenuto.rollup_progress (
    singleton           boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    next_transaction_id bigint NOT NULL,
    in_progress         bigint[] NOT NULL,
    since               timestamptz NOT NULL   -- earlier activities are never added; moved if the database was restored
);
CREATE FUNCTION tenuto.add_histograms(first integer[], second integer[]) RETURNS integer[] LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(coalesce(a, 0) + coalesce(b, 0) ORDER BY place), '{}')
    FROM unnest(first, second) WITH ORDINALITY AS bins (a, b, place)
$$;
