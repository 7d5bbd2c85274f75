-- The repair of missing dead letters searches for recent final failures of manifests. Many attempts fail and few of
-- them finally; these have their own index, and earlier dead letters of an item are found without reading all of
-- them.

CREATE INDEX activities_manifest_failures ON tenuto.activities (id) WHERE final AND status = 'failed' AND manifest_id IS NOT NULL;

CREATE INDEX dead_letters_of_item ON tenuto.dead_letters (manifest_id, item, dead_lettered_at);
