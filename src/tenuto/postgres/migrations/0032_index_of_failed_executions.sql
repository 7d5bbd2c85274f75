-- Index of the executions that operators look for: lists and counts of failed and cancelled ones read the whole table.
-- Executions that complete have no entry in it, so it costs them nothing.

LOCK TABLE tenuto.executions IN SHARE MODE;

CREATE INDEX executions_failed ON tenuto.executions (state, id) WHERE state IN ('failed', 'cancelled');
