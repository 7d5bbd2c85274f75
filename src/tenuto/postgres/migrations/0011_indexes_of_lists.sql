-- Indexes in the order of lists, which had to sort all rows for each page. Both tables are locked before an index is
-- built, so that a lock conflict costs a moment and not a built index. Reads, claims and renewals continue meanwhile.

LOCK TABLE tenuto.activities, tenuto.occurrences IN SHARE MODE;

CREATE INDEX activities_of_batch_in_order ON tenuto.activities (batch_id, task_id) WHERE batch_id IS NOT NULL AND final;

CREATE INDEX occurrences_in_order ON tenuto.occurrences (due_at, id);
