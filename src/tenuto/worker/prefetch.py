"""How quickly tasks end here and how long a claim takes, and so how many tasks to claim ahead of free slots.

Claiming ahead hides the round trip to the database: as many tasks are taken as will end while the next claim is under
way, four times over. It does not hoard: where tasks take a second and a claim some milliseconds, that is none at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenuto.clock import steady
from tenuto.jobs.runner import End

_SPAN = 0.05
_LONGEST_CLAIM = 0.05


class Pace:
    """Measures over short spans."""

    def __init__(self) -> None:
        self._since = steady()
        self._ended = 0
        self._per_second = 0.0
        self._claim_takes = 0.0
        self._takes = 1.0

    def ended(self, ends: Sequence[End]) -> None:
        """Attempts have ended. One of them is as good as any other to see how long they take."""
        if ends:
            self._ended += len(ends)
            attempt, outcome = ends[0]
            if outcome is not None and outcome.ended_at is not None and attempt.started_at is not None:
                took = (outcome.ended_at - attempt.started_at).total_seconds()
                self._takes += (took - self._takes) * 0.5

    def claimed(self, seconds: float) -> None:
        """A claim has taken so long."""
        self._claim_takes += (min(seconds, _LONGEST_CLAIM) - self._claim_takes) * 0.2

    def ahead(self, most: int) -> int:
        """How many tasks to take ahead."""
        span = steady() - self._since
        if span > _SPAN:
            self._per_second = self._ended / span
            self._since, self._ended = steady(), 0
        return min(most, int(self._per_second * self._claim_takes * 4))

    def turns(self, seconds: float, most: int) -> float:
        """How many tasks come to their end one after the other in such a time."""
        return min(most, seconds / max(self._takes, 0.001))
