-- Pin the search path of all functions whose names are resolved when they run, so that no object in another schema can
-- take the place of one that a function of Tenuto means.

DO $$
DECLARE
    code regprocedure;
BEGIN
    FOR code IN
        SELECT oid FROM pg_catalog.pg_proc
        WHERE pronamespace = 'tenuto'::regnamespace AND prosqlbody IS NULL
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, tenuto, pg_temp', code);
    END LOOP;
END $$;
