-- What stops enabled schedules and manifests. Dead processes do not count as running. A definition
-- from code counts as not declared only while some running app is known.

-- name: list_stopped_definitions
-- Return obstacles, of one definition type $1 and of the keys $2 if these are given: the first $3 of each kind, with the
-- number of all.
WITH live AS MATERIALIZED (
    SELECT service, declared_schedules, declared_manifests
    FROM tenuto.workers
    WHERE tenuto.process_state(workers) IN ('alive', 'draining')
), stopped AS (
    SELECT 'manifest' AS definition, manifests.external_id AS key, 'dead_letter' AS kind, blocking.id::text AS subject
    FROM tenuto.dead_letters AS blocking
    JOIN tenuto.manifests ON manifests.id = blocking.manifest_id
    WHERE blocking.status = 'awaiting_intervention'
      AND blocking.item = ''
      AND manifests.enabled
      AND manifests.schedule_type IN ('cron', 'interval', 'dependent')
      AND manifests.definition ->> 'on_dead_letter' IS DISTINCT FROM 'continue'
    UNION ALL
    SELECT 'manifest', later.external_id, 'dependency_disabled', later.depends_on
    FROM tenuto.manifests AS later
    JOIN tenuto.manifests AS earlier ON earlier.external_id = later.depends_on
    WHERE later.depends_on IS NOT NULL AND later.enabled AND NOT earlier.enabled
    UNION ALL
    SELECT 'manifest', manifests.external_id, 'group_disabled', manifests.group_name
    FROM tenuto.manifest_groups AS off
    JOIN tenuto.manifests ON manifests.group_name = off.name
    WHERE NOT off.enabled AND manifests.enabled
    UNION ALL
    SELECT 'schedule', schedules.name, 'not_declared', NULL
    FROM tenuto.schedules
    WHERE schedules.enabled
      AND schedules.origin = 'code'
      AND EXISTS (SELECT FROM live WHERE declared_schedules IS NOT NULL)
      AND NOT EXISTS (SELECT FROM live WHERE schedules.name = ANY (declared_schedules))
    UNION ALL
    SELECT 'manifest', manifests.external_id, 'not_declared', NULL
    FROM tenuto.manifests
    WHERE manifests.enabled
      AND manifests.origin = 'code'
      AND EXISTS (SELECT FROM live WHERE declared_manifests IS NOT NULL)
      AND NOT EXISTS (SELECT FROM live WHERE manifests.external_id = ANY (declared_manifests))
    UNION ALL
    SELECT 'schedule', schedules.name, 'no_scheduler', NULL
    FROM tenuto.schedules
    WHERE schedules.enabled
      AND schedules.next_run_at IS NOT NULL
      AND NOT EXISTS (SELECT FROM live WHERE service = 'scheduler')
    UNION ALL
    SELECT 'manifest', manifests.external_id, 'no_scheduler', NULL
    FROM tenuto.manifests
    WHERE manifests.enabled
      AND manifests.schedule_type IN ('cron', 'interval', 'dependent')
      AND NOT EXISTS (SELECT FROM live WHERE service = 'scheduler')
)
SELECT definition, key, kind, subject, total
FROM (
    SELECT definition, key, kind, subject,
           count(*) OVER (PARTITION BY definition, kind) AS total,
           row_number() OVER (PARTITION BY definition, kind ORDER BY key) AS place
    FROM stopped
    WHERE ($1::text IS NULL OR definition = $1)
      AND ($2::text[] IS NULL OR key = ANY ($2))
) AS numbered
WHERE place <= $3
ORDER BY definition, key, kind
LIMIT 100000;

-- name: list_undeclared
-- Return definitions of the type $1 from code that are neither among $2 nor declared by a running app.
WITH live AS MATERIALIZED (
    SELECT service, declared_schedules, declared_manifests
    FROM tenuto.workers
    WHERE tenuto.process_state(workers) IN ('alive', 'draining')
)
SELECT found.key
FROM (
    SELECT 'schedule' AS definition, name AS key
    FROM tenuto.schedules
    WHERE origin = 'code' AND name <> ALL ($2::text[])
      AND NOT EXISTS (SELECT FROM live WHERE schedules.name = ANY (declared_schedules))
    UNION ALL
    SELECT 'manifest', external_id
    FROM tenuto.manifests
    WHERE origin = 'code' AND external_id <> ALL ($2::text[])
      AND NOT EXISTS (SELECT FROM live WHERE manifests.external_id = ANY (declared_manifests))
) AS found
WHERE found.definition = $1
ORDER BY found.key
LIMIT $3;
