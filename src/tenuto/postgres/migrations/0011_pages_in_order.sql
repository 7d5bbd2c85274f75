-- Pages that are read in their order, where all that was left had to be sorted for each. Both tables are held before either
-- index is built: whoever meets us half-way costs a moment, not what was built. Readers, claims and leases go on meanwhile.

LOCK TABLE tenuto.activities, tenuto.occurrences IN SHARE MODE;

CREATE INDEX activities_of_batch_in_order ON tenuto.activities (batch_id, task_id) WHERE batch_id IS NOT NULL AND final;

CREATE INDEX occurrences_in_order ON tenuto.occurrences (due_at, id);
