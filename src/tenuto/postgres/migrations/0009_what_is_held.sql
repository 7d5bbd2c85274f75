-- Indexes as claims change them. A claim writes a new version of each task. Where no column of an index has changed, the
-- server takes the entry for a mere copy and looks for old ones to clear away each time a page is full, in vain as long as
-- their transactions are fresh: an eighth of its time under load. What is held is therefore indexed together with its
-- holder, which a claim does change; and the pages of the key have room for the second version from the beginning.

DROP INDEX tenuto.tasks_held;
CREATE INDEX tasks_held ON tenuto.tasks (queue, worker_id) WHERE state = 'running';

DROP INDEX tenuto.tasks_held_by_key;
CREATE INDEX tasks_held_by_key ON tenuto.tasks (limit_key, worker_id) WHERE state = 'running' AND limit_key IS NOT NULL;

DROP INDEX tenuto.tasks_held_of_manifests;
CREATE INDEX tasks_held_of_manifests ON tenuto.tasks (manifest_id, limit_group, worker_id)
    WHERE state = 'running' AND manifest_id IS NOT NULL;

ALTER INDEX tenuto.tasks_pkey SET (fillfactor = 45);
