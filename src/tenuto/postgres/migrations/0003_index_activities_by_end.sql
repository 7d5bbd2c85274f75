-- Retention checks whether a partition has an activity that ended after the cut-off before it drops it. Activities
-- are appended roughly in the order of their ends, so a BRIN index suffices and costs little to maintain.
CREATE INDEX activities_by_end ON tenuto.activities USING brin (ended_at) WITH (autosummarize = on);
