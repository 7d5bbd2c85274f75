"""Prefetch: how many tasks to claim ahead of free slots, from how quickly tasks end and how long a claim takes.

Prefetching hides the round trip to the database: the worker claims four times as many tasks as end during one claim.
Where tasks take a second and a claim some milliseconds, that is none at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenuto.clock import monotonic_seconds
from tenuto.jobs.runner import AttemptResult

_WINDOW_SECONDS = 0.05
_MAX_CLAIM_SECONDS = 0.05


class PrefetchEstimator:
    """Measures task and claim durations over short windows."""

    def __init__(self) -> None:
        self._window_started_at = monotonic_seconds()
        self._ended_count = 0
        self._ended_per_second = 0.0
        self._claim_seconds = 0.0
        self._task_seconds = 1.0

    def record_ended(self, results: Sequence[AttemptResult]) -> None:
        """Record ended attempts; the duration of the first one stands for all."""
        if results:
            self._ended_count += len(results)
            attempt, outcome = results[0]
            if outcome is not None and outcome.ended_at is not None and attempt.started_at is not None:
                took = (outcome.ended_at - attempt.started_at).total_seconds()
                self._task_seconds += (took - self._task_seconds) * 0.5

    def record_claim(self, seconds: float) -> None:
        """Record the duration of a claim."""
        self._claim_seconds += (min(seconds, _MAX_CLAIM_SECONDS) - self._claim_seconds) * 0.2

    def prefetch_count(self, most: int) -> int:
        """Return how many tasks to claim ahead of free slots."""
        span = monotonic_seconds() - self._window_started_at
        if span > _WINDOW_SECONDS:
            self._ended_per_second = self._ended_count / span
            self._window_started_at, self._ended_count = monotonic_seconds(), 0
        return min(most, int(self._ended_per_second * self._claim_seconds * 4))

    def sequential_tasks(self, seconds: float, most: int) -> float:
        """Return how many tasks end one after the other in this time."""
        return min(most, seconds / max(self._task_seconds, 0.001))
