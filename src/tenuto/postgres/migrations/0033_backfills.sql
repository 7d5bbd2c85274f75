-- Backfills: bulk operations that run a schedule for past due instants. The interval of an execution is the time from
-- the previous due instant of its trigger to its own.

ALTER TABLE tenuto.executions
    ADD COLUMN interval_start timestamptz,
    DROP CONSTRAINT executions_origin_check,
    ADD CONSTRAINT executions_origin_check CHECK (origin IN ('trigger', 'manual', 'step', 'retry', 'backfill'));

ALTER TABLE tenuto.occurrences
    DROP CONSTRAINT occurrences_origin_check,
    ADD CONSTRAINT occurrences_origin_check CHECK (origin IN ('trigger', 'manual', 'backfill'));
CREATE UNIQUE INDEX occurrences_backfilled_once ON tenuto.occurrences (schedule_id, due_at) WHERE origin = 'backfill';

ALTER TABLE tenuto.bulk_operations
    ADD COLUMN schedule_id  uuid,                -- of a backfill
    ADD COLUMN max_running  integer CHECK (max_running > 0),   -- of a backfill: executions that may run at a time
    ADD COLUMN paused_at    timestamptz,
    ADD COLUMN paused_by    text,
    ADD CONSTRAINT bulk_operations_ended_is_not_paused CHECK (paused_at IS NULL OR state = 'running');

-- The item of a backfill is a future execution: its id, its due instant, and whether it was started.
ALTER TABLE tenuto.bulk_operation_items
    ADD COLUMN due_at      timestamptz,
    ADD COLUMN started_at  timestamptz;
CREATE INDEX bulk_operation_items_running ON tenuto.bulk_operation_items (operation_id)
    WHERE started_at IS NOT NULL AND outcome IS NULL;
