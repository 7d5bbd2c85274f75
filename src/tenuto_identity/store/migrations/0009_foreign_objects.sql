-- The object for which a system refused a create because it has the address: no import takes it for the one that was to
-- be created, and no export changes or deletes it. Empty if its anchor is not known.
ALTER TABLE tenuto_identity.pending_exports ADD COLUMN foreign_anchor text;
UPDATE tenuto_identity.pending_exports SET foreign_anchor = '' WHERE kind = 'create' AND error LIKE 'exists:%';
