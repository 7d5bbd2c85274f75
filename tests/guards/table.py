"""The table of all guards, from the modules by component."""

from __future__ import annotations

from tests.guards.components import (
    access,
    bulk_operations,
    events,
    failover,
    identity,
    maintenance,
    manifests,
    notifications,
    schedules,
    steps,
    tasks,
    workers,
    workflows,
)
from tests.guards.guard import Guard

GUARDS: tuple[Guard, ...] = (
    *tasks.GUARDS,
    *workers.GUARDS,
    *schedules.GUARDS,
    *manifests.GUARDS,
    *access.GUARDS,
    *steps.GUARDS,
    *maintenance.GUARDS,
    *identity.GUARDS,
    *bulk_operations.GUARDS,
    *events.GUARDS,
    *failover.GUARDS,
    *notifications.GUARDS,
    *workflows.GUARDS,
)
