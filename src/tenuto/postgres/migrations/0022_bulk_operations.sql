-- Bulk operations: one action on many objects, selected once and processed by schedulers in chunks. The selection is
-- stored, so that it does not change while it is processed.

CREATE TABLE tenuto.bulk_operations (
    id             uuid PRIMARY KEY,
    kind           text NOT NULL,                -- 'task.cancel', 'dead_letter.retry'
    filter         text NOT NULL,                -- as the caller wrote it
    description    text NOT NULL,                -- the filter in plain English
    until          timestamptz NOT NULL,         -- objects that appeared later are not selected
    reason         text,
    state          text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'ended', 'aborted')),
    total          bigint NOT NULL,
    succeeded      bigint NOT NULL DEFAULT 0,
    failed         bigint NOT NULL DEFAULT 0,
    skipped        bigint NOT NULL DEFAULT 0,
    arrived        bigint,                       -- matching objects that appeared later, counted at the end
    created_at     timestamptz NOT NULL,
    processed_at   timestamptz,                  -- last chunk
    ended_at       timestamptz,
    aborted_by     text,
    actor_type     text NOT NULL,
    actor_id       text,
    actor_name     text NOT NULL,
    CONSTRAINT bulk_operations_end_has_an_instant CHECK ((ended_at IS NULL) = (state = 'running')),
    CONSTRAINT bulk_operations_count_each_item_once CHECK (succeeded + failed + skipped <= total)
);
CREATE INDEX bulk_operations_running ON tenuto.bulk_operations (processed_at NULLS FIRST, id) WHERE state = 'running';
CREATE INDEX bulk_operations_ended ON tenuto.bulk_operations (ended_at) WHERE ended_at IS NOT NULL;

-- Items that are not processed yet, and the outcomes of items that failed or were skipped. Items that succeeded are
-- counted and deleted.
CREATE TABLE tenuto.bulk_operation_items (
    operation_id  uuid NOT NULL REFERENCES tenuto.bulk_operations (id) ON DELETE CASCADE,
    item_id       uuid NOT NULL,
    outcome       text CHECK (outcome IN ('failed', 'skipped')),
    code          text,
    message       text,
    PRIMARY KEY (operation_id, item_id)
);
CREATE INDEX bulk_operation_items_pending ON tenuto.bulk_operation_items (operation_id, item_id) WHERE outcome IS NULL;
