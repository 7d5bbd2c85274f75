-- Under a limit a worker takes a few tasks ahead: held, but without a seat of their own until one they share their limits
-- with has ended. Until then they count under no limit.

ALTER TABLE tenuto.tasks
    ADD COLUMN standby boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT tasks_only_what_is_held_stands_by CHECK (NOT standby OR state = 'running');
