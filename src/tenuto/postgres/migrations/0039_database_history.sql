-- Marks by which service processes recognise the history of the database: each process increments its own number. After
-- a failover, a number that is smaller than the one the process remembers proves that acknowledged commits are lost.

CREATE TABLE tenuto.history_marks (
    process   uuid PRIMARY KEY,
    service   text NOT NULL,
    name      text NOT NULL,
    number    bigint NOT NULL,
    marked_at timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE tenuto.history_losses (
    id             uuid PRIMARY KEY,
    found_at       timestamptz NOT NULL,
    service        text NOT NULL,
    name           text NOT NULL,
    seen_at        timestamptz NOT NULL, -- when the newest mark of the process was acknowledged
    seen_number    bigint NOT NULL,
    found_number   bigint NOT NULL,
    seen_timeline  integer NOT NULL,
    found_timeline integer NOT NULL
);
