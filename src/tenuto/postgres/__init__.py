"""Access to PostgreSQL: pool, transactions, notifications, migrations and the embedded server."""
