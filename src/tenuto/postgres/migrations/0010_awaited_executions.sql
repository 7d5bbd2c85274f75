-- Whether a step of another execution or a queued run waits for the end of an execution. Set under the lock on the
-- execution, so that the transaction that ends it knows, however old its snapshot is.

ALTER TABLE tenuto.executions ADD COLUMN awaited boolean NOT NULL DEFAULT false;

UPDATE tenuto.executions
SET awaited = true
WHERE ended_at IS NULL
  AND (alone OR parent_task_id IS NOT NULL);   -- only these can be awaited
