-- A worker stops renewing a task that runs far over its time limit, and sets this flag first: when the lease expires
-- the task counts as timed out, not as lost.

ALTER TABLE tenuto.tasks ADD COLUMN ran_over boolean NOT NULL DEFAULT false;
