"""All routers, in the order in which they are documented. A new one is added here, and nowhere else."""

from __future__ import annotations

from tenuto.api import events, observing, oneshots, schedules

ROUTERS = (
    observing.router,
    oneshots.router,
    schedules.router,
    events.router,
)
