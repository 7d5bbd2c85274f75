"""Fetches tasks from the queues of one worker: refreshes, claims, and schedules rescans as the claim policy says.

Also estimates how many tasks to prefetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from tenuto.clock import DatabaseClock, monotonic_seconds
from tenuto.jobs.runner import AttemptResult
from tenuto.lifecycle.expiry import EXPIRY_BATCH_SIZE, expire_tasks
from tenuto.model.work.known_handlers import KnownHandlers
from tenuto.model.work.tasks import Task
from tenuto.observability.process_metrics import process_metrics
from tenuto.postgres.database import Database
from tenuto.postgres.listener import RECONNECTED
from tenuto.store.work import tasks as store
from tenuto.worker.claim_policy import ClaimPolicy, ClaimState

_RESCAN_DELAY_SECONDS = 0.01
"""Claimed tasks start first: an immediate rescan would compete with their code for the interpreter."""
_ESTIMATE_WINDOW_SECONDS = 0.05
_MAX_CLAIM_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Claim:
    """Result of one claim."""

    tasks: Sequence[Task]
    limit: int
    sent_at: float
    """On the monotonic timer: leases of the claimed tasks run from here."""


class PrefetchEstimator:
    """Estimates how many tasks to claim ahead of free slots, from how quickly tasks end and how long a claim takes.

    Prefetching hides the round trip to the database: the worker claims four times as many tasks as end during one
    claim. Where tasks take a second and a claim some milliseconds, that is none at all.
    """

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
        if elapsed_seconds > _ESTIMATE_WINDOW_SECONDS:
            self._ended_per_second = self._ended_count / elapsed_seconds
            self._window_started_at, self._ended_count = monotonic_seconds(), 0
        return min(max_count, int(self._ended_per_second * self._claim_seconds * 4))  # guard: worker.bounded_prefetch

    def sequential_task_count(self, seconds: float, max_count: int) -> float:
        """Return how many tasks end one after the other in this time."""
        return min(max_count, seconds / max(self._task_seconds, 0.001))


class Fetcher:
    """Claims tasks for one worker."""

    def __init__(
        self,
        database: Database,
        worker_id: UUID,
        queues: Sequence[str],
        lease: timedelta,
        poll_seconds: float,
        wake: asyncio.Event,
        estimator: PrefetchEstimator,
    ) -> None:
        self._database = database
        self._clock: DatabaseClock = database.clock
        self._worker_id = worker_id
        self._queues = queues
        self._lease = lease
        self._wake = wake
        self._estimator = estimator
        self._rescan_timer: asyncio.TimerHandle | None = None
        self.policy = ClaimPolicy(poll_seconds)

    def on_notification(self, kind: str, details: str) -> None:
        """Apply a notification about queued or scheduled tasks, or about changed limits."""
        if kind in ("queued", "limited"):
            queue, *rank = details.split()
            if queue not in self._queues:
                return
            self.policy.announce_tasks(queue, int(rank[0]) if rank else None, limited=kind == "limited")
        elif kind in ("scheduled", "limits", RECONNECTED):
            self.policy.request_refresh()
        else:
            return
        self._wake.set()

    async def refresh_if_due(self) -> None:
        """Promote due tasks, and read when the next one is due and whether limits apply."""
        if not self.policy.is_refresh_due(self._clock.now()):
            return
        self.policy.begin_refresh()
        try:
            result = await store.promote_due_tasks(self._database, self._clock.now(), self._queues)
        except BaseException:
            self.policy.fail_refresh()
            raise
        process_metrics.record_poll()
        self.policy.finish_refresh(result)
        if result.has_expired and await expire_tasks(self._database, self._clock.now()) == EXPIRY_BATCH_SIZE:
            self.policy.request_refresh()

    async def claim(self, limit: int, excluded: Collection[UUID], known: KnownHandlers, free_count: int) -> Claim:
        """Claim up to ``limit`` tasks of known jobs and step kinds, most urgent first; under a rate limit only as many
        as there are free slots."""
        policy, sent_at = self.policy, monotonic_seconds()
        policy.begin_claim(limit)
        try:
            if policy.is_limited:
                tasks = await self._claim_limited(limit, excluded, known, free_count)
            else:
                tasks = await self._claim_unlimited(limit, excluded, known)
        except BaseException:
            policy.fail_claim()
            raise
        self._estimator.record_claim(monotonic_seconds() - sent_at)
        return Claim(tasks, limit, sent_at)

    async def _claim_limited(
        self, limit: int, excluded: Collection[UUID], known: KnownHandlers, free_count: int
    ) -> list[Task]:
        cursor = self.policy.limit_cursor
        tasks = await store.claim_limited_tasks(
            self._database, self._worker_id, self._queues, limit, self._lease, cursor, excluded, known, free_count
        )
        self.policy.finish_limited_claim(tasks, limit)
        return tasks

    async def _claim_unlimited(self, limit: int, excluded: Collection[UUID], known: KnownHandlers) -> list[Task]:
        start = self.policy.start_position()
        tasks = await store.claim_tasks(
            self._database, self._worker_id, self._queues, limit, self._lease, start, excluded, known
        )
        self.policy.finish_claim(tasks, limit, start)
        return tasks

    def should_claim_again(self, claim: Claim) -> bool:
        """Return whether the next claim follows at once; schedule a pending rescan for a moment later."""
        if claim.tasks and self.policy.is_rescan_pending:
            self._schedule_rescan(few=len(claim.tasks) <= max(claim.limit // 10, 2))
            return False
        return self.policy.wants_claim

    def _schedule_rescan(self, *, few: bool) -> None:
        """Schedule a rescan, so that the claimed tasks start first. After a claim of few tasks, wake-ups do not
        trigger it earlier."""
        if few:
            self.policy.postpone_rescan()
        if self._rescan_timer is None:
            self._rescan_timer = asyncio.get_running_loop().call_later(_RESCAN_DELAY_SECONDS, self.rescan)

    def rescan(self) -> None:
        """Claim from the head of the queues at the next opportunity."""
        self._rescan_timer = None
        self.policy.request_rescan()
        self._wake.set()

    def seconds_until_refresh(self) -> float:
        """Return how long the worker may wait for a wake-up before tasks become due or the poll is due."""
        if self.policy.state is ClaimState.REFRESH:
            return 0
        wait = self.policy.refreshed_at + self.policy.poll_seconds - monotonic_seconds()
        if self.policy.next_due_at is not None:
            wait = min(wait, (self.policy.next_due_at - self._clock.now()).total_seconds())
        return wait
