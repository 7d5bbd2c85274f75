"""States of service processes (workers, schedulers, web services), derived from their last heartbeat."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

STALE_AFTER = {"worker": timedelta(seconds=60), "scheduler": timedelta(seconds=120), "web": timedelta(seconds=60)}
"""How long each service may be silent."""


class WorkerState(StrEnum):
    ALIVE = "alive"
    DRAINING = "draining"
    """It claims no more tasks."""
    STALE = "stale"
    """Its heartbeat is overdue."""
    ENDED = "ended"


def worker_state(
    service: str, silent: timedelta, draining_at: datetime | None, ended_at: datetime | None
) -> WorkerState:
    """Return the state of a registered process that was silent for this time."""
    if ended_at is not None:
        return WorkerState.ENDED
    if silent > STALE_AFTER[service]:
        return WorkerState.STALE
    return WorkerState.ALIVE if draining_at is None else WorkerState.DRAINING
