"""All routers, in the order in which they are documented. A new one is added here, and nowhere else."""

from __future__ import annotations

from tenuto.api import (
    about,
    activities,
    audit,
    batches,
    bulk,
    deadletters,
    events,
    executions,
    keys,
    logs,
    manifests,
    observing,
    oneshots,
    pages,
    plans,
    schedules,
    secrets,
    tasks,
    workers,
)

ROUTERS = (
    observing.router,
    oneshots.router,
    logs.router,
    schedules.router,
    executions.router,
    tasks.router,
    activities.router,
    manifests.router,
    bulk.router,
    batches.router,
    deadletters.router,
    plans.router,
    workers.router,
    events.router,
    about.router,
    keys.router,
    secrets.router,
    audit.router,
    pages.router,
)
