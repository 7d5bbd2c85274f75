-- Which objects were joined to the same metaverse object when a sync decided: a full sync skips an object only if they
-- are the same. Objects that were decided about before are processed once more.
ALTER TABLE tenuto_identity.evaluated_objects ADD COLUMN joined_key bigint NOT NULL DEFAULT 0;
