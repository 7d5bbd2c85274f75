-- Logs of running attempts, written only while a client watches. Both tables are unlogged: after a crash of the server
-- they are empty, and the next request starts again. The complete log is written when the attempt ends.

CREATE UNLOGGED TABLE tenuto.log_watches (
    activity_id   uuid PRIMARY KEY,
    watched_until timestamptz NOT NULL         -- by the clock of the database
);

CREATE UNLOGGED TABLE tenuto.live_logs (
    activity_id  uuid NOT NULL,
    first_offset bigint NOT NULL,              -- characters of the log before the text
    text         text NOT NULL,
    written_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (activity_id, first_offset)
);
