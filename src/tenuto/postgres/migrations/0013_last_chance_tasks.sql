-- A task that would be set aside after its next loss runs while no other such task runs. The flag is stored in the
-- row and not in the limit key: tasks with their own limit key kept it and ran side by side.

ALTER TABLE tenuto.tasks ADD COLUMN last_chance boolean NOT NULL DEFAULT false;

UPDATE tenuto.tasks SET last_chance = true WHERE losses >= 2;

CREATE INDEX tasks_last_chance ON tenuto.tasks (limit_key, queue, rank, run_at, id) WHERE last_chance;
