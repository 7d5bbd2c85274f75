-- name: may_change_tenuto
-- Whether whoever is logged in could change Tenuto's own tables, be it by SET ROLE to another role they are a member of.
SELECT coalesce(
           bool_or(has_table_privilege(role.oid, relation.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')), false
       ) AS it_may
FROM pg_catalog.pg_class AS relation
JOIN pg_catalog.pg_namespace AS space ON space.oid = relation.relnamespace
JOIN pg_catalog.pg_roles AS role ON pg_has_role(role.oid, 'MEMBER')
WHERE space.nspname = 'tenuto' AND relation.relname IN ('tasks', 'activities', 'secrets', 'audit');

-- name: is_superuser
-- Whether whoever is logged in is a superuser, or could be one by SET ROLE.
SELECT coalesce(bool_or(role.rolsuper), false) AS it_is
FROM pg_catalog.pg_roles AS role
WHERE pg_has_role(session_user, role.oid, 'MEMBER');

-- name: who_is_logged_in
-- The login role, and the server it is one of: a server begins at one instant only.
SELECT extract(epoch FROM pg_postmaster_start_time())::text || ' ' || role.oid::text AS login
FROM pg_catalog.pg_roles AS role
WHERE role.rolname = session_user;

-- name: keep_parameter
-- A parameter that must not stand in a statement, kept in the session.
SELECT set_config('tenuto.' || $1::text, $2::text, false);

-- name: notice_when_we_are_gone
-- Let the server look every second whether we are still there: what nobody waits for is broken off.
SELECT set_config('client_connection_check_interval', '1000', false);

-- name: end_backend
-- End a connection of this login that does not listen any more.
SELECT pg_terminate_backend($1);
