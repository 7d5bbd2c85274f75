"""Pages of work: executions, tasks, attempts, dead letters and bulk operations."""
