-- Indexes that a claim changes. A claim writes a new version of a task. If no indexed column changes, the server
-- treats the index entry as a duplicate version and searches for dead entries whenever a page is full, in vain while
-- their transactions are recent: an eighth of its time under load. The indexes of running tasks therefore include the
-- worker, which a claim changes, and the pages of the primary key have space for the second version.

DROP INDEX tenuto.tasks_held;
CREATE INDEX tasks_held ON tenuto.tasks (queue, worker_id) WHERE state = 'running';

DROP INDEX tenuto.tasks_held_by_key;
CREATE INDEX tasks_held_by_key ON tenuto.tasks (limit_key, worker_id) WHERE state = 'running' AND limit_key IS NOT NULL;

DROP INDEX tenuto.tasks_held_of_manifests;
CREATE INDEX tasks_held_of_manifests ON tenuto.tasks (manifest_id, limit_group, worker_id)
    WHERE state = 'running' AND manifest_id IS NOT NULL;

ALTER INDEX tenuto.tasks_pkey SET (fillfactor = 45);
