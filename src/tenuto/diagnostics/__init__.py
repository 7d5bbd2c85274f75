"""The doctor, and why a task, execution, schedule or manifest does not run. Reads only."""
