-- Tasks without a manifest become dead letters too. Their manifest is null, their external id is empty, and the dead
-- letter contains what a retry needs of the task. Every dead letter names its job or step kind.

ALTER TABLE tenuto.dead_letters
    ALTER COLUMN manifest_id DROP NOT NULL,
    ADD COLUMN kind text NOT NULL DEFAULT 'job',
    ADD COLUMN name text NOT NULL DEFAULT '',
    ADD COLUMN task jsonb;

ALTER TABLE tenuto.dead_letters DISABLE TRIGGER dead_letters_resolve_once;
UPDATE tenuto.dead_letters
SET kind = past.kind, name = past.name
FROM tenuto.activities AS past
WHERE past.id = dead_letters.activity_id;
ALTER TABLE tenuto.dead_letters ENABLE TRIGGER dead_letters_resolve_once;

ALTER TABLE tenuto.dead_letters
    ADD CONSTRAINT dead_letters_task_is_whole CHECK ((manifest_id IS NULL) = (task IS NOT NULL));

CREATE INDEX dead_letters_of_tasks_by_age ON tenuto.dead_letters (dead_lettered_at)
    WHERE manifest_id IS NULL AND status = 'awaiting_intervention';
CREATE INDEX dead_letters_open_by_name ON tenuto.dead_letters (name, id) WHERE status = 'awaiting_intervention';
