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
                duration_seconds = (outcome.ended_at - attempt.started_at).total_seconds()
                self._task_seconds += (duration_seconds - self._task_seconds) * 0.5

    def record_claim(self, seconds: float) -> None:
        """Record the duration of a claim."""
        self._claim_seconds += (min(seconds, _MAX_CLAIM_SECONDS) - self._claim_seconds) * 0.2

    def prefetch_count(self, max_count: int) -> int:
        """Return how many tasks to claim ahead of free slots."""
        elapsed_seconds = monotonic_seconds() - self._window_started_at
        if elapsed_seconds > _WINDOW_SECONDS:
            self._ended_per_second = self._ended_count / elapsed_seconds
            self._window_started_at, self._ended_count = monotonic_seconds(), 0
        return min(max_count, int(self._ended_per_second * self._claim_seconds * 4))

    def sequential_task_count(self, seconds: float, max_count: int) -> float:
        """Return how many tasks end one after the other in this time."""
        return min(max_count, seconds / max(self._task_seconds, 0.001))
