"""Scenarios that together send every writing statement, for `test_every_statement`.

An action is the work of one process at one time. It can be repeated with the same arguments after an interruption
(the caller generates ids), as an operator or a service would repeat it.
"""

from __future__ import annotations

from tests.races.scenarios.access import ACCESS
from tests.races.scenarios.bulk_operations import BULK_OPERATIONS
from tests.races.scenarios.events import EVENTS
from tests.races.scenarios.executions import EXECUTIONS
from tests.races.scenarios.manifests import MANIFESTS
from tests.races.scenarios.observability import DATABASE_HISTORY, LIVE_LOGS, ROLLUPS
from tests.races.scenarios.scenario import Action
from tests.races.scenarios.tasks import TASKS, WORKERS

SCENARIOS: dict[str, tuple[Action, ...]] = {
    **dict.fromkeys(("tasks", "task_creation"), TASKS),
    "workers": WORKERS,
    "bulk_operations": BULK_OPERATIONS,
    "live_logs": LIVE_LOGS,
    "rollups": ROLLUPS,
    "database_history": DATABASE_HISTORY,
    **dict.fromkeys(("schedules", "executions"), EXECUTIONS),
    **dict.fromkeys(("external_events", "approvals"), EVENTS),
    **dict.fromkeys(("manifests", "batches", "dead_letters", "step_checkpoints", "queues"), MANIFESTS),
    **dict.fromkeys(
        (
            "api_keys",
            "invitations",
            "secrets",
            "one_shots",
            "idempotency_keys",
            "audit_log",
            "audit_recorder",
            "named_logs",
            "activities",
        ),
        ACCESS,
    ),
}
"""By SQL file: the scenario that sends its statements."""
