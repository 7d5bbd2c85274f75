-- The version of each object that a sync last decided about without an error, and the rules that it used. A full sync
-- skips objects whose inputs have not changed since. A separate table, because a sync without changes must not write
-- the objects.
CREATE TABLE tenuto_identity.evaluated_objects (
    object_id      bigint PRIMARY KEY,
    version        integer NOT NULL,
    rules_version  bigint NOT NULL,
    engine_version smallint NOT NULL
);
