-- Steps take values from earlier steps, have conditions, and name the steps that they need. An execution whose steps do
-- is marked, so that all others are advanced as before. A retry keeps the results of the steps that it does not repeat.

ALTER TABLE tenuto.executions
    ADD COLUMN step_dependencies text CHECK (step_dependencies IN ('by_group', 'by_step')),
    ADD COLUMN kept_results      jsonb;          -- of a retry: status and output of earlier steps, by position

-- A step whose condition is not met is skipped. All rows meet the wider check, so they are not read again.
ALTER TABLE tenuto.activities DROP CONSTRAINT activities_status_check;
ALTER TABLE tenuto.activities ADD CONSTRAINT activities_status_check CHECK (
    status IN ('completed', 'completed_with_warning', 'completed_with_error', 'failed', 'cancelled', 'skipped')
) NOT VALID;
