-- Values that imports found cleared in the source, until a complete import or a user lets them pass: a run that fails, is
-- killed or is repeated does not forget them.
CREATE TABLE tenuto_identity.pending_clearings (
    object_id     bigint NOT NULL,
    attribute     text NOT NULL,
    system_number smallint NOT NULL,
    type_number   smallint NOT NULL,
    PRIMARY KEY (object_id, attribute)
);
CREATE INDEX pending_clearings_of_system ON tenuto_identity.pending_clearings (system_number);
