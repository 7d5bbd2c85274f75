"""Commands for tasks, executions, batches, dead letters and one-shots."""
