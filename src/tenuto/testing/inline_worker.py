"""A worker that works only when told to, and stops when nothing is left to take: no polling, no lease to prolong.

Tasks are claimed, run and finished as by any worker. Its clock may stand still: a task whose job takes a given time is
held, its code run and its outcome kept back, until that clock has come so far.
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

from tenuto.clock import steady
from tenuto.errors import Conflict
from tenuto.ids import new_id
from tenuto.jobs import outcomes
from tenuto.jobs.attempts import Attempt, Stop
from tenuto.jobs.context import Context
from tenuto.jobs.output_capture import Capture
from tenuto.jobs.registry import Jobs
from tenuto.jobs.runner import End, Runner
from tenuto.lifecycle.completion import finish
from tenuto.model.tasks import Outcome, Settlement, Task, cancelled, settle
from tenuto.postgres.database import Database
from tenuto.store import tasks as store
from tenuto.store import workers
from tenuto.store.reports import test_clock
from tenuto.store.workers import Incarnation
from tenuto.version import __version__
from tenuto.worker.step_checkpoints import DatabaseMemory

LEASE = timedelta(hours=1)
"""Longer than any test: nothing prolongs it."""
_A_LOOK = 0.02
"""How often, while code runs, somebody looks for new work, time limits and cancellations."""

Parked = tuple[datetime, int, Attempt, Outcome]


class Hands:
    """One worker without a loop of its own."""

    def __init__(self, database: Database, jobs: Jobs, *, slots: int, takes: Mapping[str, float], most: int) -> None:
        self._database = database
        self._id: UUID = new_id()
        self._slots = slots
        self._takes = takes
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._running: dict[UUID, Attempt] = {}
        self._delivered: deque[End] = deque()
        self._parked: list[Parked] = []
        self._order = count()
        self._runner = Runner(jobs, database.clock, self._deliver, threads=slots)

    async def start(self) -> None:
        me = Incarnation(
            self._id, f"test-{self._id}", "worker", "test", "test", os.getpid(), __version__, [], self._slots
        )
        await workers.register(self._database, me, name_is_mine=True, silence=LEASE)
        Capture.start()
        self._runner.start()

    async def stop(self) -> None:
        """Leave; what is held until later ends when it was to end."""
        while self._parked:
            await self._write([self._at_its_end(heapq.heappop(self._parked))])
        self._runner.close()
        Capture.stop()
        await workers.leave(self._database, self._id)

    @property
    def next_end(self) -> datetime | None:
        """When the next of the tasks that are held comes to its end."""
        return self._parked[0][0] if self._parked else None

    async def until_idle(self) -> int:
        """Take and run what is due by the clock, until nothing is; how many attempts have ended."""
        ended = 0
        await self._heed_cancellations()
        while True:
            taken = await self._take()
            if self._running:
                await self._wait()
            written = await self._collect()
            ended += written
            if ended > self._most:
                raise Conflict(
                    f"more than {self._most:,} attempts at one instant",
                    remedy="look for a job that asks for itself over and over; or say most=",
                )
            if not (taken or written or self._running):
                return ended

    # --- taking -----------------------------------------------------------------------------------------------------

    async def _take(self) -> int:
        free = self._slots - len(self._running) - len(self._parked)
        now = self._database.clock.now()
        if free <= 0:
            return 0
        found = await test_clock.to_take(self._database, now)
        if not found.queues:
            return 0
        if found.to_promote:
            await store.promote(self._database, now, found.queues)
        claim = store.claim_under_limits if found.limited else store.claim
        asked = steady()
        taken: list[Task] = await claim(self._database, self._id, found.queues, free, LEASE)
        remember = partial(DatabaseMemory, self._database)
        contexts = [Context(task, self._database.connection, remember) for task in taken]
        attempts = [Attempt(context.task, context, asked + LEASE.total_seconds(), asked) for context in contexts]
        self._running.update((attempt.task.id, attempt) for attempt in attempts)
        self._runner.launch(attempts)
        return len(taken)

    async def _wait(self) -> None:
        """Until some code has ended, or for a moment."""
        self._news.clear()
        if self._delivered:
            return
        try:
            async with asyncio.timeout(_A_LOOK):
                await self._news.wait()
        except TimeoutError:
            for attempt in self._running.values():
                if attempt.deadline is not None and steady() > attempt.deadline:
                    attempt.stop(Stop.TIMED_OUT)
            await self._heed_cancellations()

    async def _heed_cancellations(self) -> None:
        if not (self._running or self._parked):
            return
        asked = {id: actor for id, _, actor in await store.cancellations(self._database, self._id)}
        for id, actor in asked.items():
            if id in self._running:
                self._running[id].stop(Stop.CANCELLED, actor)
        stopped = [parked for parked in self._parked if parked[2].task.id in asked]
        if stopped:
            self._parked = [parked for parked in self._parked if parked not in stopped]
            heapq.heapify(self._parked)
            now = self._database.clock.now()
            await self._write(
                [(attempt, cancelled(attempt.task, now, asked[attempt.task.id])) for _, _, attempt, _ in stopped]
            )

    # --- ending -----------------------------------------------------------------------------------------------------

    def _deliver(self, ends: Sequence[End]) -> None:
        """From whichever thread the code ended on."""
        self._delivered.extend(ends)
        self._loop.call_soon_threadsafe(self._news.set)

    async def _collect(self) -> int:
        now = self._database.clock.now()
        ready: list[tuple[Attempt, Outcome]] = []
        while self._delivered:
            attempt, outcome = self._delivered.popleft()
            del self._running[attempt.task.id]
            if outcome is None:
                continue
            long = self._takes.get(attempt.task.name, 0.0)
            if long and outcome.aside is None:
                heapq.heappush(self._parked, self._park(attempt, outcome, long))
            else:
                ready.append((attempt, outcome))
        while self._parked and self._parked[0][0] <= now:
            ready.append(self._at_its_end(heapq.heappop(self._parked)))
        if ready:
            await self._write(ready)
        return len(ready)

    def _park(self, attempt: Attempt, outcome: Outcome, long: float) -> Parked:
        """Until the job has taken its time, or its time limit is reached."""
        began = attempt.started_at or self._database.clock.now()
        limit = attempt.task.policy.timeout_seconds
        if limit is not None and long > limit:
            attempt.stop_reason = Stop.TIMED_OUT
            long = limit
        return began + timedelta(seconds=long), next(self._order), attempt, outcome

    def _at_its_end(self, parked: Parked) -> tuple[Attempt, Outcome]:
        ends_at, _, attempt, outcome = parked
        if attempt.stop_reason is Stop.TIMED_OUT:
            outcome = outcomes.of_stop(attempt, ends_at) or outcome
        outcome.ended_at = ends_at
        return attempt, outcome

    async def _write(self, ended: list[tuple[Attempt, Outcome]]) -> None:
        now = self._database.clock.now()
        settlements: list[Settlement] = [settle(attempt.task, outcome, now, new_id) for attempt, outcome in ended]
        await finish(self._database, settlements)
        if any(settlement.again or settlement.outcome.aside for settlement in settlements):
            await test_clock.not_due_yet(self._database, now)
