-- The index of ended executions holds their state, so that completed ones are counted without reading the table. The
-- condition and the key are as before; no further index is written when an execution ends.

LOCK TABLE tenuto.executions IN ACCESS EXCLUSIVE MODE;

DROP INDEX tenuto.executions_ended;

CREATE INDEX executions_ended ON tenuto.executions (ended_at) INCLUDE (state) WHERE ended_at IS NOT NULL;
