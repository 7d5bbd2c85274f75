-- name: can_change_tenuto_tables
-- Return whether the login can change Tenuto's tables, directly or after SET ROLE.
SELECT coalesce(
           bool_or(has_table_privilege(role.oid, relation.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')), false
       ) AS it_may
FROM pg_catalog.pg_class AS relation
JOIN pg_catalog.pg_namespace AS space ON space.oid = relation.relnamespace
JOIN pg_catalog.pg_roles AS role ON pg_has_role(role.oid, 'MEMBER') -- guard: sql_scripts.role_membership
WHERE space.nspname = 'tenuto' AND relation.relname IN ('tasks', 'activities', 'secrets', 'audit');

-- name: is_superuser
-- Return whether the login is a superuser, directly or after SET ROLE.
SELECT coalesce(bool_or(role.rolsuper), false) AS it_is
FROM pg_catalog.pg_roles AS role
-- guard: sql_scripts.superuser_membership
WHERE pg_has_role(session_user, role.oid, 'MEMBER');

-- name: load_login
-- Return the login role and its server, identified by the server's start time.
SELECT extract(epoch FROM pg_postmaster_start_time())::text || ' ' || role.oid::text AS login
FROM pg_catalog.pg_roles AS role
WHERE role.rolname = session_user;

-- name: store_parameter
-- Store a secret parameter in the session, so that it is not part of a statement.
SELECT set_config('tenuto.' || $1::text, $2::text, false);

-- name: check_client_connection
-- Let the server check every second whether the client is connected, and cancel the statement if not.
SELECT set_config('client_connection_check_interval', '1000', false);

-- name: terminate_backend
-- Terminate an unresponsive connection of this login.
SELECT pg_terminate_backend($1);
