-- Whether somebody waits for the end of an execution: a step of another, or a run that is queued behind it. Said by who
-- begins to wait, while holding the execution; so whoever ends it knows, however old the picture is that it has of all else.

ALTER TABLE tenuto.executions ADD COLUMN awaited boolean NOT NULL DEFAULT false;

UPDATE tenuto.executions
SET awaited = true
WHERE ended_at IS NULL
  AND (alone OR parent_task_id IS NOT NULL);   -- of these it could be so
