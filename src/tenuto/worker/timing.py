"""Timing policy of a worker: values that tests shorten and services leave at their defaults."""

from __future__ import annotations

from dataclasses import dataclass

from tenuto.model.tasks import OVERRUN_GRACE


@dataclass(frozen=True, slots=True)
class WorkerTiming:
    max_prefetch_seconds: float = 1.0
    """How long a prefetched or standby task may wait in this worker for a slot."""
    forced_stop_seconds: float = 5.0
    """How long code may take to stop after the grace period before the process ends with it."""
    stop_repeat_seconds: float = 5.0
    """How long stopping code may clean up before the stop is repeated."""
    overrun_seconds: float = OVERRUN_GRACE.total_seconds()
    """How long a manifest run may exceed its timeout before its lease is no longer renewed."""


DEFAULT_TIMING = WorkerTiming()
