-- Standby tasks: under a limit a worker claims a few tasks ahead. They count under no limit until they take over the
-- limit slot of a task that ends.

ALTER TABLE tenuto.tasks
    ADD COLUMN standby boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT tasks_only_what_is_held_stands_by CHECK (NOT standby OR state = 'running');
