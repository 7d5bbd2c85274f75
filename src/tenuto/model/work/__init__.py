"""Values and decisions of work: tasks, executions, occurrences, one-shots, dead letters and their workers."""
