-- A task whose next loss would be its last runs beside no other of which the same is true. Those with a limited key of their own
-- have kept it, and with it ran side by side: so what is true of a task stands in its row, and not in its key.

ALTER TABLE tenuto.tasks ADD COLUMN last_chance boolean NOT NULL DEFAULT false;

UPDATE tenuto.tasks SET last_chance = true WHERE losses >= 2;

CREATE INDEX tasks_last_chance ON tenuto.tasks (limit_key, queue, rank, run_at, id) WHERE last_chance;
