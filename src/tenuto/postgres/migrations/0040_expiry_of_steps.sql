-- A step that waits for an earlier group or for the end of a pause does not expire.

DROP INDEX tenuto.tasks_to_expire;
CREATE INDEX tasks_to_expire ON tenuto.tasks (expires_at)
WHERE state <> 'running' AND (state <> 'waiting' OR execution_id IS NULL) AND expires_at IS NOT NULL;
