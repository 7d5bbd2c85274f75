-- The net for letters asks which failures of manifests of the last days left none. Many attempts fail, and few of them for
-- good: so those are at hand, and what an item left before is found without reading all letters.

CREATE INDEX activities_manifest_failures ON tenuto.activities (id) WHERE final AND status = 'failed' AND manifest_id IS NOT NULL;

CREATE INDEX dead_letters_of_item ON tenuto.dead_letters (manifest_id, item, dead_lettered_at);
