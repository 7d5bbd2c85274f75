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
from uuid import UUID

from tenuto.clock import monotonic_seconds
from tenuto.model.work.tasks import OutcomeStatus, Settlement

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
_MAX_SAMPLES = 20
"""Sampling: of a batch with n × this many attempts, every n-th attempt is measured and counted n times."""
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


class ProcessMetrics:
    """Counters of one process; thread-safe, because services on several event loops share them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.claim_count = 0
        self.claimed_task_count = 0
        self.batch_count = 0
        """Batches of outcomes written."""
        self.ended_counts: Counter[tuple[str, str]] = Counter()
        """Ended attempts by status and reason."""
        self.stale_count = 0
        """Outcomes rejected by the fence."""
        self.durations = Histogram()
        self.start_delays = Histogram()
        self.fired_count = 0
        self.polled_at: float | None = None
        """When a worker of this process last polled successfully, on the monotonic timer; None without a worker."""

    def record_claim(self, task_count: int) -> None:
        """Count tasks that were claimed, alone or together with outcomes."""
        with self._lock:
            self.claim_count += task_count > 0
            self.claimed_task_count += task_count

    def record_poll(self) -> None:
        self.polled_at = monotonic_seconds()

    def record_worker_stopped(self) -> None:
        self.polled_at = None

    def record_fired(self, schedule_count: int) -> None:
        with self._lock:
            self.fired_count += schedule_count

    def record_outcomes(self, settlements: Sequence[Settlement], accepted_ids: Collection[UUID]) -> list[Settlement]:
        """Count a batch of outcomes; ``accepted_ids`` are the tasks whose outcomes were written.

        Return the written settlements that did not simply complete.
        """
        all_accepted = len(accepted_ids) >= len(settlements)
        written = settlements if all_accepted else [each for each in settlements if each.task.id in accepted_ids]
        notable = [s for s in written if (o := s.outcome).status is not _COMPLETED or o.deferral is not None]
        labels = Counter([(str(o.status), str(o.reason or "")) for s in notable if (o := s.outcome).deferral is None])
        # Attempts of a large batch are alike: each measured one represents its neighbours.
        weight = max(1, len(written) // _MAX_SAMPLES)
        sampled = len(written) - len(written) % weight
        samples = [(written[:sampled:weight], weight), (written[sampled:], 1)]
        spans = [(*_measure(sample), weight) for sample, weight in samples if sample]
        with self._lock:
            self.batch_count += 1
            self.stale_count += len(settlements) - len(written)
            self.ended_counts[_COMPLETED_LABELS] += len(written) - len(notable)
            self.ended_counts.update(labels)
            for durations, delays, weight in spans:
                self.durations.add(durations, weight)
                self.start_delays.add(delays, weight)
        return notable


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
