"""A worker for tests that runs on request until nothing is due, without polling and without lease renewal.

It claims, runs and finishes tasks with the code of the real worker. Its clock may be manual: the outcome of a task with
a given duration is held until the clock has reached the end of the task.
"""

from __future__ import annotations

import asyncio
import heapq
import os
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from uuid import UUID

from tenuto.clock import monotonic_seconds
from tenuto.errors import Conflict
from tenuto.ids import new_id
from tenuto.jobs import outcomes
from tenuto.jobs.attempts import Attempt, StopReason
from tenuto.jobs.context import Context
from tenuto.jobs.output_capture import OutputCapture
from tenuto.jobs.registry import JobRegistry
from tenuto.jobs.runner import AttemptResult, Runner
from tenuto.lifecycle.completion import finish
from tenuto.model.work.tasks import Outcome, Settlement, Task, cancelled_outcome, settle
from tenuto.postgres.database import Database
from tenuto.store.reports import manual_clock
from tenuto.store.work import tasks as store
from tenuto.store.work import workers
from tenuto.store.work.workers import ProcessRegistration
from tenuto.version import __version__
from tenuto.worker.step_checkpoints import DatabaseStepCheckpoints

LEASE_DURATION = timedelta(hours=1)
"""Longer than any test, because leases are not renewed."""
_CHECK_INTERVAL_SECONDS = 0.02
"""Interval of checks for new work, timeouts and cancellations while code runs."""

HeldAttempt = tuple[datetime, int, Attempt, Outcome]


class InlineWorker:
    """A worker without background loops."""

    def __init__(
        self, database: Database, jobs: JobRegistry, *, slots: int, durations: Mapping[str, float], max_attempts: int
    ) -> None:
        self._database = database
        self._id: UUID = new_id()
        self._slots = slots
        self._durations = durations
        self._max_attempts = max_attempts
        self._loop = asyncio.get_running_loop()
        self._delivery_event = asyncio.Event()
        self._running: dict[UUID, Attempt] = {}
        self._delivered: deque[AttemptResult] = deque()
        self._held: list[HeldAttempt] = []
        self._sequence = count()
        self._jobs = jobs
        self._runner = Runner(jobs, database.clock, self._deliver, threads=slots)

    async def start(self) -> None:
        registration = ProcessRegistration(
            self._id, f"test-{self._id}", "worker", "test", "test", os.getpid(), __version__, [], self._slots,
            LEASE_DURATION, self._jobs.known_handlers(),
        )  # fmt: skip
        await workers.register_process(self._database, registration, holds_name_lock=True, reserved_for=LEASE_DURATION)
        OutputCapture.start()
        self._runner.start()

    async def stop(self) -> None:
        """Write all held outcomes and deregister."""
        try:
            while self._held:
                await self._write([self._end_held(heapq.heappop(self._held))])
        finally:
            self._runner.close()
            OutputCapture.stop()
        await workers.deregister_process(self._database, self._id)

    @property
    def next_end_at(self) -> datetime | None:
        """End of the next held attempt."""
        return self._held[0][0] if self._held else None

    async def run_until_idle(self) -> int:
        """Claim and run due tasks until none is due, and return the number of attempts that ended."""
        ended = 0
        await self._handle_cancellations()
        while True:
            claimed = await self._claim()
            if self._running:
                await self._wait()
            written = await self._collect()
            ended += written
            if ended > self._max_attempts:
                raise Conflict(
                    f"more than {self._max_attempts:,} attempts ended at one instant",
                    code="testing.attempts.too_many",
                    remedy="check for a job that enqueues itself forever, or raise max_attempts",
                )
            if not (claimed or written or self._running):
                return ended

    # --- claim ------------------------------------------------------------------------------------------------------

    async def _claim(self) -> int:
        free = self._slots - len(self._running) - len(self._held)
        now = self._database.clock.now()
        if free <= 0:
            return 0
        found = await manual_clock.find_claimable_queues(self._database, now)
        if not found.queues:
            return 0
        if found.has_due_tasks:
            await store.promote_due_tasks(self._database, now, found.queues)
        claim = store.claim_limited_tasks if found.has_limits else store.claim_tasks
        claimed_at = monotonic_seconds()
        claimed: list[Task] = await claim(
            self._database, self._id, found.queues, free, LEASE_DURATION, known=self._jobs.known_handlers()
        )
        checkpoints = partial(DatabaseStepCheckpoints, self._database)
        contexts = [Context(task, self._database.connection, checkpoints) for task in claimed]
        attempts = [
            Attempt(context.task, context, claimed_at + LEASE_DURATION.total_seconds(), claimed_at)
            for context in contexts
        ]
        self._running.update((attempt.task.id, attempt) for attempt in attempts)
        self._runner.launch(attempts)
        return len(claimed)

    async def _wait(self) -> None:
        """Wait until an attempt has ended, or check for timeouts and cancellations."""
        self._delivery_event.clear()
        if self._delivered:
            return
        try:
            async with asyncio.timeout(_CHECK_INTERVAL_SECONDS):
                await self._delivery_event.wait()
        except TimeoutError:
            for attempt in self._running.values():
                if attempt.deadline is not None and monotonic_seconds() > attempt.deadline:
                    attempt.stop(StopReason.TIMED_OUT)
            await self._handle_cancellations()

    async def _handle_cancellations(self) -> None:
        if not (self._running or self._held):
            return
        requests = {id: actor for id, _, actor in await store.list_cancel_requests(self._database, self._id)}
        for id, actor in requests.items():
            if id in self._running:
                self._running[id].stop(StopReason.CANCELLED, actor)
        stopped = [held for held in self._held if held[2].task.id in requests]
        if stopped:
            self._held = [held for held in self._held if held not in stopped]
            heapq.heapify(self._held)
            now = self._database.clock.now()
            await self._write(
                [
                    (attempt, cancelled_outcome(attempt.task, now, requests[attempt.task.id]))
                    for _, _, attempt, _ in stopped
                ]
            )

    # --- finish -----------------------------------------------------------------------------------------------------

    def _deliver(self, results: Sequence[AttemptResult]) -> None:
        """Receive results; called on the thread on which the code ended."""
        self._delivered.extend(results)
        self._loop.call_soon_threadsafe(self._delivery_event.set)

    async def _collect(self) -> int:
        now = self._database.clock.now()
        ready: list[tuple[Attempt, Outcome]] = []
        while self._delivered:
            attempt, outcome = self._delivered.popleft()
            del self._running[attempt.task.id]
            if outcome is None:
                continue
            duration = self._durations.get(attempt.task.name, 0.0)
            if duration and outcome.deferral is None:
                heapq.heappush(self._held, self._hold(attempt, outcome, duration))
            else:
                ready.append((attempt, outcome))
        while self._held and self._held[0][0] <= now:
            ready.append(self._end_held(heapq.heappop(self._held)))
        if ready:
            await self._write(ready)
        return len(ready)

    def _hold(self, attempt: Attempt, outcome: Outcome, duration: float) -> HeldAttempt:
        """Hold an outcome until the duration of the task or its timeout has passed."""
        started_at = attempt.started_at or self._database.clock.now()
        limit = attempt.task.policy.timeout_seconds
        if limit is not None and duration > limit:
            attempt.stop_reason = StopReason.TIMED_OUT
            duration = limit
        return started_at + timedelta(seconds=duration), next(self._sequence), attempt, outcome

    def _end_held(self, held: HeldAttempt) -> tuple[Attempt, Outcome]:
        ends_at, _, attempt, outcome = held
        if attempt.stop_reason is StopReason.TIMED_OUT:
            outcome = outcomes.from_stop(attempt, ends_at) or outcome
        outcome.ended_at = ends_at
        return attempt, outcome

    async def _write(self, ended: list[tuple[Attempt, Outcome]]) -> None:
        now = self._database.clock.now()
        settlements: list[Settlement] = [settle(attempt.task, outcome, now, new_id) for attempt, outcome in ended]
        await finish(self._database, settlements)
        if any(settlement.retry or settlement.outcome.deferral for settlement in settlements):
            await manual_clock.reschedule_future_retries(self._database, now)
