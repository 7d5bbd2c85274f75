"""Rows of work: tasks, activities, executions, batches, dead letters, one-shots, processes and queues."""
