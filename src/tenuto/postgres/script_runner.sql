-- name: find_privilege_on_tenuto
-- Return one privilege by which the login can change Tenuto's data or code, directly or after SET ROLE; no row if it has
-- none. A trigger or a foreign key on a table of Tenuto runs code or blocks changes with the rights of Tenuto.
WITH roles AS MATERIALIZED (
    SELECT oid
    FROM pg_catalog.pg_roles
    WHERE pg_has_role(session_user, oid, 'MEMBER') -- guard: sql_scripts.role_membership
), spaces AS MATERIALIZED (
    SELECT oid, nspname, nspowner
    FROM pg_catalog.pg_namespace
    WHERE nspname = 'tenuto' OR starts_with(nspname, 'tenuto_')
), relations AS MATERIALIZED (
    SELECT relation.oid, relation.relkind, format('%s.%s', nspname, relname) AS name
    FROM pg_catalog.pg_class AS relation
    JOIN spaces ON spaces.oid = relation.relnamespace
    WHERE relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
)
SELECT 'may change ' || relations.name AS privilege
FROM relations
CROSS JOIN roles
WHERE relkind <> 'S'
  -- guard: sql_scripts.table_grants
  AND (has_table_privilege(roles.oid, relations.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
       -- guard: sql_scripts.column_grants
       OR has_any_column_privilege(roles.oid, relations.oid, 'INSERT, UPDATE, REFERENCES'))
UNION ALL
SELECT 'may change ' || relations.name
FROM relations
CROSS JOIN roles
WHERE CASE WHEN relkind = 'S' THEN has_sequence_privilege(roles.oid, relations.oid, 'UPDATE') END
UNION ALL
SELECT 'may create objects in the schema ' || nspname
FROM spaces
CROSS JOIN roles
WHERE has_schema_privilege(roles.oid, spaces.oid, 'CREATE') -- guard: sql_scripts.schema_create
UNION ALL
SELECT 'owns the function ' || code.oid::regprocedure
FROM pg_catalog.pg_proc AS code
JOIN roles ON roles.oid = proowner -- guard: sql_scripts.function_owner
WHERE pronamespace IN (SELECT oid FROM spaces)
   OR code.oid IN (SELECT tgfoid FROM pg_catalog.pg_trigger WHERE tgrelid IN (SELECT oid FROM relations))
UNION ALL
SELECT 'owns the database of Tenuto'
FROM pg_catalog.pg_database
JOIN roles ON roles.oid = datdba
WHERE datname = current_database() AND EXISTS (SELECT FROM spaces)
LIMIT 1;

-- name: find_privilege_on_server
-- Return one privilege by which the login can become another role or act as the server, directly or after SET ROLE; no
-- row if it has none.
SELECT CASE
           WHEN role.rolsuper THEN 'is a superuser or can become one'
           WHEN role.rolcreaterole THEN 'may create roles, and grant itself others'
           ELSE 'may act as the server (' || role.rolname || ')'
       END AS privilege
FROM pg_catalog.pg_roles AS role
-- guard: sql_scripts.superuser_membership
WHERE pg_has_role(session_user, role.oid, 'MEMBER')
  AND (role.rolsuper
       OR role.rolcreaterole -- guard: sql_scripts.create_role
       -- guard: sql_scripts.server_programs
       OR role.rolname IN ('pg_execute_server_program', 'pg_write_server_files'))
ORDER BY role.rolsuper DESC
LIMIT 1;

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
