"""Everything the services write, as scripts for `test_every_statement`: each action is what one process does at one time.

An action may be done again after it was interrupted, with what it was given before (ids are made by the caller), as a
person or a service would do it.
"""

from __future__ import annotations

from tests.races.scenarios.access import ACCESS
from tests.races.scenarios.executions import RUNS
from tests.races.scenarios.manifests import MANIFESTS
from tests.races.scenarios.scenario import Step
from tests.races.scenarios.tasks import TASKS, WORKERS

SCRIPTS: dict[str, tuple[Step, ...]] = {
    "tasks": TASKS,
    "workers": WORKERS,
    **dict.fromkeys(("schedules", "executions"), RUNS),
    **dict.fromkeys(("manifests", "batches", "dead_letters", "step_checkpoints"), MANIFESTS),
    **dict.fromkeys(("api_keys", "secrets", "one_shots", "idempotency_keys", "audit_log", "audit_recorder", "named_logs", "activities"), ACCESS),
}
"""By SQL file: what comes by its statements."""
