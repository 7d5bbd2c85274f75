"""The SQL table connector: people and groups in tables of PostgreSQL or SQLite, as a source and as a target."""
