"""The scheduler and the manifest manager: from due instants to executions and runs."""
