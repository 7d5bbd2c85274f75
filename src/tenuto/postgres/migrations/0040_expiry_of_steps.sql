-- A step that waits for an earlier group or for the end of a pause does not expire.
-- Workers of earlier versions look for expired tasks by the index tasks_to_expire, so it stays until the next release.
-- To drop it here would also lock the table exclusively while the other index is built.

CREATE INDEX tasks_by_expiry ON tenuto.tasks (expires_at)
WHERE state <> 'running' AND (state <> 'waiting' OR execution_id IS NULL) AND expires_at IS NOT NULL;
