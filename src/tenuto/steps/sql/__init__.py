"""The step kind ``sql``: scripts on PostgreSQL, SQLite and registered drivers."""
