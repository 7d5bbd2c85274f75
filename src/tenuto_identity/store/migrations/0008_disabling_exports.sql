-- Updates by which a rule disables the object of a metaverse object that is out of scope or deleted: the guard of deletes
-- counts and holds them, too.
ALTER TABLE tenuto_identity.pending_exports ADD COLUMN disables boolean NOT NULL DEFAULT false;
