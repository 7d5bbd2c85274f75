"""Metrics of this process: counted in memory where the work happens, one call per batch.

Plain numbers keep counting cheap and independent of Prometheus; `observability.prometheus` renders them. Metrics of the
whole installation come from the database (`store.reports.metrics`).
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Generic, TypeVar
from uuid import UUID

from tenuto.clock import monotonic_seconds
from tenuto.model.work.tasks import OutcomeStatus, Settlement

K = TypeVar("K")

BUCKET_BOUNDS_SECONDS = (
    0.001,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    60.0,
    300.0,
    1800.0,
    7200.0,
)
"""Upper bounds of the histogram buckets."""
DEFAULT_MAX_NAMES = 50
"""Default of the setting ``metrics_max_names``."""
OTHER = "other"
"""Label of all names beyond the limit."""
MAX_FOLDED_COUNT = 10_000
"""How many names beyond the limit are remembered in order to count them."""
_MAX_SAMPLES = 20
"""Sampling: of n × this many attempts of a job in a batch, every n-th attempt is measured and counted n times."""
_JOB_KIND = "job"
_COMPLETED = OutcomeStatus.COMPLETED
_COMPLETED_LABELS = (str(OutcomeStatus.COMPLETED), "")
_BUCKET_BOUNDS = [timedelta(seconds=bound) for bound in BUCKET_BOUNDS_SECONDS]


class Histogram:
    """Durations counted in buckets."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKET_BOUNDS_SECONDS) + 1)
        """The last bucket holds durations above all bounds."""
        self.sum = timedelta()

    def add(self, spans: Sequence[timedelta], weight: int) -> None:
        """Count each duration ``weight`` times."""
        counts = self.counts
        for span in spans:
            counts[bisect_left(_BUCKET_BOUNDS, span)] += weight
        self.sum += sum(spans, timedelta()) * weight


class AttemptSeries:
    """Ended attempts of one job in one queue."""

    __slots__ = ("durations", "ended_counts", "start_delays")

    def __init__(self) -> None:
        self.ended_counts: Counter[tuple[str, str]] = Counter()
        """Ended attempts by status and reason."""
        self.durations = Histogram()
        self.start_delays = Histogram()

    def add(self, settlements: Sequence[Settlement]) -> None:
        """Count attempts that have ended or were deferred."""
        notable = [o for s in settlements if (o := s.outcome).status is not _COMPLETED or o.deferral is not None]
        self.ended_counts.update((str(o.status), str(o.reason or "")) for o in notable if o.deferral is None)
        if len(notable) < len(settlements):
            self.ended_counts[_COMPLETED_LABELS] += len(settlements) - len(notable)
        # Attempts of one job in a large batch are alike: each measured one represents its neighbours.
        weight = max(1, len(settlements) // _MAX_SAMPLES)
        sampled = len(settlements) - len(settlements) % weight
        for sample, count in ((settlements[:sampled:weight], weight), (settlements[sampled:], 1)):
            durations, delays = _measure(sample)
            self.durations.add(durations, count)
            self.start_delays.add(delays, count)


class LabelLimit(Generic[K]):
    """The first keys that become labels of metrics. Later ones are counted together, so that the number of series is
    bounded."""

    def __init__(self, max_count: int) -> None:
        self.max_count = max_count
        self._known: set[K] = set()
        self._folded: set[K] = set()

    def admits(self, key: K) -> bool:
        """Return whether a key keeps its label."""
        if key in self._known:
            return True
        if len(self._known) < self.max_count:
            self._known.add(key)
            return True
        if len(self._folded) < MAX_FOLDED_COUNT:
            self._folded.add(key)
        return False

    @property
    def folded_count(self) -> int:
        """Number of keys without a label of their own, at most `MAX_FOLDED_COUNT`."""
        return len(self._folded)


class ProcessMetrics:
    """Counters of one process; thread-safe, because services on several event loops share them."""

    def __init__(self, max_names: int = DEFAULT_MAX_NAMES) -> None:
        self._lock = threading.Lock()
        self.claim_count = 0
        self.claimed_task_count = 0
        self.batch_count = 0
        """Batches of outcomes written."""
        self.attempts: dict[tuple[str, str], AttemptSeries] = {}
        """Ended attempts by the name of the job, or the kind of the step, and by queue."""
        self.stale_count = 0
        """Outcomes rejected by the fence."""
        self.fired_counts: Counter[str] = Counter()
        """Fired schedules by name."""
        self.polled_at: float | None = None
        """When a worker of this process last polled successfully, on the monotonic timer; None without a worker."""
        self.names = LabelLimit[tuple[str, str]](max_names)
        """Jobs with their queues."""
        self.queues = LabelLimit[str](max_names)
        """Queues of jobs without a label of their own."""
        self.schedules = LabelLimit[str](max_names)

    def set_max_names(self, max_names: int) -> None:
        """Set how many jobs, queues and schedules keep their own labels."""
        for limit in (self.names, self.queues, self.schedules):
            limit.max_count = max_names

    def record_claim(self, task_count: int) -> None:
        """Count tasks that were claimed, alone or together with outcomes."""
        with self._lock:
            self.claim_count += task_count > 0
            self.claimed_task_count += task_count

    def record_poll(self) -> None:
        self.polled_at = monotonic_seconds()

    def record_worker_stopped(self) -> None:
        self.polled_at = None

    def record_fired(self, schedule_names: Sequence[str]) -> None:
        with self._lock:
            self.fired_counts.update(name if self.schedules.admits(name) else OTHER for name in schedule_names)

    def record_outcomes(self, settlements: Sequence[Settlement], accepted_ids: Collection[UUID]) -> list[Settlement]:
        """Count a batch of outcomes; ``accepted_ids`` are the tasks whose outcomes were written.

        Return the written settlements that did not simply complete.
        """
        all_accepted = len(accepted_ids) >= len(settlements)
        written = settlements if all_accepted else [each for each in settlements if each.task.id in accepted_ids]
        groups: dict[tuple[str, str, str], list[Settlement]] = {}
        for settlement in written:
            task = settlement.task
            key = (task.kind, task.name, task.queue)
            if key in groups:
                groups[key].append(settlement)
            else:
                groups[key] = [settlement]
        with self._lock:
            self.batch_count += 1
            self.stale_count += len(settlements) - len(written)
            for (kind, name, queue), group in groups.items():
                self._series(name if kind == _JOB_KIND else kind, queue).add(group)
        return [s for s in written if (o := s.outcome).status is not _COMPLETED or o.deferral is not None]

    def _series(self, name: str, queue: str) -> AttemptSeries:
        if not self.names.admits((name, queue)):
            name = OTHER
            if not self.queues.admits(queue):
                queue = OTHER
        found = self.attempts.get((name, queue))
        if found is None:
            found = self.attempts[name, queue] = AttemptSeries()
        return found


def _measure(settlements: Sequence[Settlement]) -> tuple[list[timedelta], list[timedelta]]:
    """Return how long attempts ran, and how late they started."""
    durations: list[timedelta] = []
    delays: list[timedelta] = []
    for settlement in settlements:
        outcome = settlement.outcome
        if (started_at := outcome.started_at) is not None and (ended_at := outcome.ended_at) is not None:
            durations.append(ended_at - started_at)
            delays.append(started_at - settlement.task.run_at)
    return durations, delays


process_metrics = ProcessMetrics()
"""The metrics of this process."""
