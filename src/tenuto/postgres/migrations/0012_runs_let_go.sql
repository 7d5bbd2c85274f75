-- A run that goes on long after its time limit is renewed no more by its worker, which says so here first: when the lease is
-- over it has been timed out, and not lost.

ALTER TABLE tenuto.tasks ADD COLUMN ran_over boolean NOT NULL DEFAULT false;
