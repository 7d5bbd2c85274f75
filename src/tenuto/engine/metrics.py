"""What the services of this process have done so far, counted where it happens: one call for a batch, none for a task.

Plain numbers, so that counting costs next to nothing and nobody needs Prometheus to work; `engine.exposition` puts them
into its words. What the whole installation has done, the database tells (`engine.gathering`).
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import timedelta
from uuid import UUID

from tenuto.clock import steady
from tenuto.model.tasks import Settlement

BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0, 1800.0, 7200.0)
"""The upper ends of the buckets, in seconds."""
_BOUNDS = [timedelta(seconds=bound) for bound in BOUNDS]


class Spread:
    """How spans are spread over the buckets."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        """The last one is for what is longer than all bounds."""
        self.sum = timedelta()

    def add(self, spans: Sequence[timedelta]) -> None:
        counts = self.counts
        for span in spans:
            counts[bisect_left(_BOUNDS, span)] += 1
        self.sum = sum(spans, self.sum)


class Counters:
    """The numbers of one process. Services on several loops may share them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.claims = 0
        """Claims sent, and the tasks they took."""
        self.claimed = 0
        self.batches = 0
        """Batches of outcomes written, and what was in them: by status and reason."""
        self.ended: Counter[tuple[str, str]] = Counter()
        self.stale = 0
        """Outcomes that came too late: the task belonged to somebody else by then."""
        self.durations = Spread()
        self.lateness = Spread()
        self.fired = 0
        """Schedules fired."""
        self.polled_at: float | None = None
        """On the steady timer: when a worker here last looked for work and was answered; None if there is none."""

    def claim(self, tasks: int) -> None:
        """A claim was answered."""
        with self._lock:
            self.claims += 1
            self.claimed += tasks

    def poll(self) -> None:
        """A worker has looked for work and was answered."""
        self.polled_at = steady()

    def no_worker(self) -> None:
        """The worker has left."""
        self.polled_at = None

    def fire(self, schedules: int) -> None:
        """Schedules were fired."""
        with self._lock:
            self.fired += schedules

    def finish(self, settlements: Sequence[Settlement], done: Collection[UUID]) -> None:
        """A batch of outcomes was written; only those of ``done`` were still ours to write."""
        written = settlements if len(done) >= len(settlements) else [s for s in settlements if s.task.id in done]
        ended = [settlement for settlement in written if settlement.outcome.aside is None]
        words = Counter([(s.outcome.status, s.outcome.reason or "") for s in ended])
        durations = [o.ended_at - o.started_at for s in ended if (o := s.outcome).started_at and o.ended_at]
        lateness = [begun - s.task.run_at for s in ended if (begun := s.outcome.started_at)]
        with self._lock:
            self.batches += 1
            self.stale += len(settlements) - len(written)
            self.ended.update(words)
            self.durations.add(durations)
            self.lateness.add(lateness)


counters = Counters()
"""Those of this process."""
