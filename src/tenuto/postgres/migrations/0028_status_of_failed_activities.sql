-- Failed attempts are counted and listed by their status without reading the table. Both tables are locked in the order in
-- which workers lock them, because a later migration of the same transaction changes an index of tasks.

LOCK TABLE tenuto.tasks, tenuto.activities IN ACCESS EXCLUSIVE MODE;

DROP INDEX tenuto.activities_not_completed;
CREATE INDEX activities_not_completed ON tenuto.activities (id) INCLUDE (status) WHERE status <> 'completed';
