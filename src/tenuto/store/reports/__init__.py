"""Read-only queries for reports: diagnosis, metrics, changes and checks."""
