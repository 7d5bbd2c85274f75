"""States of service processes (workers, schedulers, web services), derived from their last heartbeat."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

STALE_AFTER = {"worker": timedelta(seconds=60), "scheduler": timedelta(seconds=120), "web": timedelta(seconds=60)}
"""How old the health file of each service may be."""
MISSED_HEARTBEATS = 3
MIN_SILENCE_LIMIT_SECONDS = 5.0
"""Lower bound, because a busy machine delays heartbeats."""


class WorkerState(StrEnum):
    """State of a process, as the SQL function ``tenuto.process_state`` decides for all callers."""

    ALIVE = "alive"
    DRAINING = "draining"
    """It claims no more tasks."""
    DEAD = "dead"
    """It has missed several heartbeats: it died, or cannot reach the database."""
    ENDED = "ended"


def silence_limit(heartbeat_seconds: float) -> timedelta:
    """Return how long a process with this heartbeat interval may be silent before it counts as dead."""
    return timedelta(seconds=max(MISSED_HEARTBEATS * heartbeat_seconds, MIN_SILENCE_LIMIT_SECONDS))
