"""Operations on work: tasks, executions, batches, one-shots, dead letters, bulk operations and queues."""
