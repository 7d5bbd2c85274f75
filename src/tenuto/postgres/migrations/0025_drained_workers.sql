-- Who asked a worker to claim no more tasks, and why. Both are null if the worker drains because it shuts down.
ALTER TABLE tenuto.workers
    ADD COLUMN drained_by   text,
    ADD COLUMN drain_reason text;
