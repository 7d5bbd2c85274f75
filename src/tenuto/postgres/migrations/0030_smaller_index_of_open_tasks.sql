-- The index of open tasks by name holds only tasks that do not run. A claim wrote a second entry for every task, an eighth
-- of the log that a drained task wrote. The few running tasks are found by the index of running tasks; statements that
-- search by name therefore read both parts of the table (see list_tasks). The condition is one that no other statement
-- has, so that the planner does not use this index for them while the table is empty.

LOCK TABLE tenuto.tasks IN ACCESS EXCLUSIVE MODE;

DROP INDEX tenuto.tasks_by_name;

CREATE INDEX tasks_by_name ON tenuto.tasks (name, id) WHERE worker_id IS NULL;
