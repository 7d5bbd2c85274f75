"""A worker holds a bounded number of tasks, however quickly its tasks end and however far the database falls behind."""

from __future__ import annotations

import threading

import asyncpg
import pytest

from tenuto import Tenuto
from tenuto.worker.fetcher import PrefetchEstimator
from tenuto.worker.watchdog import WorkerTiming
from tenuto.worker.worker import MAX_PREFETCHED_BATCHES, Worker
from tests.support.waiting import eventually

SLOTS, BATCH = 2, 4
KEEP_PREFETCHED = WorkerTiming(max_prefetch_seconds=60)


class EndlesslyFast(PrefetchEstimator):
    """Estimates as if a million tasks a second had ended until now."""

    def prefetch_count(self, max_count: int) -> int:
        self._ended_count, self._claim_seconds = 1_000_000, 0.05
        self._window_started_at -= 1.0
        return super().prefetch_count(max_count)


def refuses_to_claim(worker: Worker) -> bool:
    """Return whether the worker claims nothing although more tasks are queued, and no claim is in flight."""
    return worker._fetcher.policy.may_have_tasks and worker._claim_limit() == 0


async def test_worker_prefetches_at_most_three_claims(app: Tenuto, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()

    @app.job
    def bake(n: int) -> None:
        may_end.wait(60)

    async with app.worker(slots=SLOTS, claim_batch=BATCH, poll_seconds=60, timing=KEEP_PREFETCHED) as one:
        monkeypatch.setattr(one, "_estimator", EndlesslyFast())
        await app.enqueue_many(bake, range(100))
        try:
            await eventually(lambda: len(one._slots.prefetched) > BATCH and refuses_to_claim(one))
            held_count = len(one._slots.held)
        finally:
            may_end.set()
        assert held_count <= SLOTS + BATCH * MAX_PREFETCHED_BATCHES
        await eventually(lambda: one.finished_count == 100)


async def test_worker_claims_nothing_more_while_too_many_outcomes_are_not_written(app: Tenuto, url: str) -> None:
    @app.job
    async def bake(n: int) -> None: ...

    locker = await asyncpg.connect(url)
    try:
        async with app.worker(slots=SLOTS, claim_batch=BATCH, poll_seconds=60) as one:
            async with locker.transaction():
                await locker.execute("LOCK TABLE tenuto.activities IN SHARE ROW EXCLUSIVE MODE")
                await app.enqueue_many(bake, range(100))
                await eventually(lambda: len(one._slots.held) >= one._max_held_count and refuses_to_claim(one))
                held_count = len(one._slots.held)
            assert held_count < one._max_held_count + BATCH
            await eventually(lambda: one.finished_count == 100)
    finally:
        await locker.close()
