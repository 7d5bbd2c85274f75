"""SQL that empties all tables, which is faster than creating a new database for each test."""

from __future__ import annotations

TRUNCATE_ALL_TABLES = """
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
"""Requires ``session_replication_role = replica``, which disables the triggers that protect history."""
