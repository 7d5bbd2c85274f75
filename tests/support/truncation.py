"""Emptying every table at once: what tests do instead of making a new database."""

from __future__ import annotations

EMPTY_ALL = """
DO $$
DECLARE
    used regclass;
BEGIN
    FOR used IN
        SELECT oid
        FROM pg_class
        WHERE relnamespace = 'tenuto'::regnamespace AND relkind = 'r' AND relname <> 'migrations'
          AND pg_relation_size(oid) > 0
    LOOP
        EXECUTE format('DELETE FROM %s', used);
    END LOOP;
END $$;
"""
"""For a connection whose guards of the past sleep (``session_replication_role = replica``)."""
