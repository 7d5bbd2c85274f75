"""Transitions of tasks and executions that worker, scheduler, maintenance and operations share."""
