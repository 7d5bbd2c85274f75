-- Whether a month holds a record younger than its keeping is asked before it is dropped. Records are appended about in the
-- order in which they end, so a summary of each stretch is enough, and costs the writing of a record next to nothing.
CREATE INDEX activities_by_end ON tenuto.activities USING brin (ended_at) WITH (autosummarize = on);
