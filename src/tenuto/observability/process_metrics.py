"""What the services of this process have done so far, counted where it happens: one call for a batch, none for a task.

Plain numbers, so that counting costs next to nothing and nobody needs Prometheus to work; `observability.prometheus` puts them
into its words. What the whole installation has done, the database tells (`observability.cached_query`).
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import timedelta
from uuid import UUID

from tenuto.clock import steady
from tenuto.model.tasks import Settlement, Status

BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0, 1800.0, 7200.0)
"""The upper ends of the buckets, in seconds."""
_MEASURED = 20
"""Of a larger batch no more than twice as many are measured."""
_COMPLETED = Status.COMPLETED
_PLAINLY = (str(Status.COMPLETED), "")
_BOUNDS = [timedelta(seconds=bound) for bound in BOUNDS]


class Spread:
    """How spans are spread over the buckets."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        """The last one is for what is longer than all bounds."""
        self.sum = timedelta()

    def add(self, spans: Sequence[timedelta], times: int) -> None:
        """Each of these, so many times."""
        counts = self.counts
        for span in spans:
            counts[bisect_left(_BOUNDS, span)] += times
        self.sum += sum(spans, timedelta()) * times


class Counters:
    """The numbers of one process. Services on several loops may share them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.takes = 0
        """How often tasks were taken, and how many."""
        self.taken = 0
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

    def take(self, tasks: int) -> None:
        """Tasks were taken: by a claim, or along with the end of others."""
        with self._lock:
            self.takes += tasks > 0
            self.taken += tasks

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

    def finish(self, settlements: Sequence[Settlement], done: Collection[UUID]) -> list[Settlement]:
        """A batch of outcomes was written; only those of ``done`` were still ours to write. Those that did not plainly
        complete."""
        written = settlements if len(done) >= len(settlements) else [s for s in settlements if s.task.id in done]
        notable = [s for s in written if (o := s.outcome).status is not _COMPLETED or o.aside is not None]
        words = Counter([(str(o.status), str(o.reason or "")) for s in notable if (o := s.outcome).aside is None])
        # What ends by the hundred ends alike: of so many, each that is measured stands for its neighbours.
        weight = max(1, len(written) // _MEASURED)
        whole = len(written) - len(written) % weight
        measured = [(written[:whole:weight], weight), (written[whole:], 1)]
        spans = [(*_spans(some), each) for some, each in measured if some]
        with self._lock:
            self.batches += 1
            self.stale += len(settlements) - len(written)
            self.ended[_PLAINLY] += len(written) - len(notable)
            self.ended.update(words)
            for durations, lateness, each in spans:
                self.durations.add(durations, each)
                self.lateness.add(lateness, each)
        return notable


def _spans(settlements: Sequence[Settlement]) -> tuple[list[timedelta], list[timedelta]]:
    """How long attempts ran, and how late they began: of those that came to their end."""
    durations: list[timedelta] = []
    lateness: list[timedelta] = []
    for settlement in settlements:
        outcome = settlement.outcome
        if (began := outcome.started_at) is not None and (ended := outcome.ended_at) is not None:
            durations.append(ended - began)
            lateness.append(began - settlement.task.run_at)
    return durations, lateness


counters = Counters()
"""Those of this process."""
