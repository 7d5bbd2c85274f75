-- Each service process records the schedules and manifests that its app declares in code; NULL if it has no app. What no
-- running app declares any more is reported.
ALTER TABLE tenuto.workers
    ADD COLUMN declared_schedules text[],
    ADD COLUMN declared_manifests text[];
