-- Indexes of filters: a rare name had to be searched in all rows. The index of open tasks includes the worker, which a
-- claim changes, for the reason given in 0009. The tables are locked before an index is built, so that a lock conflict
-- costs a moment and not a built index.

LOCK TABLE tenuto.activities, tenuto.tasks, tenuto.executions IN SHARE MODE;

CREATE INDEX activities_by_name ON tenuto.activities (name, id);

CREATE INDEX tasks_by_name ON tenuto.tasks (name, id, worker_id);

CREATE INDEX executions_by_start ON tenuto.executions USING brin (started_at) WITH (autosummarize = on);
