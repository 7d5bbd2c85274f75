"""Background maintenance: recovery of lost tasks, stuck executions, retention and partitions."""
