"""Keeps leases alive and code within its bounds, from a thread that never runs user code.

Twice a second it looks at what the worker holds: leases due for renewal are renewed in one statement, progress goes
along; cancellations are heard; code past its time limit is stopped; code whose lease could not be renewed is stopped
before the lease ends. If code cannot be stopped in time the whole process ends: two live copies of one task are worse
than a restarted worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NoReturn
from uuid import UUID

from tenuto.clock import DatabaseClock, steady
from tenuto.errors import StoreError
from tenuto.jobs.attempts import Attempt, Stop
from tenuto.logs import Log
from tenuto.model.actors import Actor
from tenuto.model.tasks import OVERRUN
from tenuto.postgres.database import Database
from tenuto.service.polling_loop import wait_at_most
from tenuto.service.signals import EXIT_LOST_CONTROL
from tenuto.store import tasks as store
from tenuto.store import workers

TICK = 0.5
SAFETY = 0.2
"""The last fifth of a lease is kept for stopping code that could not be renewed."""
LONGEST_SILENCE = 10.0
"""However long its leases, a worker gives a sign of life this often: after a minute without one it counts as stale."""

PRESS_AGAIN = 5.0
"""Code that was told to stop may clean up for so long before it is told again."""

log = Log("tenuto.watchdog")


class Watchdog:
    """The guard of what one worker holds."""

    def __init__(
        self,
        url: str,
        worker_id: UUID,
        held: dict[UUID, Attempt],
        lease: timedelta,
        clock: DatabaseClock,
        *,
        declared_dead: Callable[[], object],
        behind_pooler: bool = False,
        look_for_stalls: Callable[[], None] = lambda: None,
    ) -> None:
        self._url = url
        self._worker_id = worker_id
        self._held = held
        self._lease = lease
        self._clock = clock
        self._declared_dead = declared_dead
        self._behind_pooler = behind_pooler
        self._look_for_stalls = look_for_stalls
        self._renew_every = lease.total_seconds() / 6
        self._tick = min(TICK, lease.total_seconds() * SAFETY / 8)
        self._show_life_every = min(self._renew_every, LONGEST_SILENCE)
        self._thread = threading.Thread(target=self._live, name="tenuto-watchdog", daemon=True)
        self._stopping = False
        self._look_for_cancellations = False
        self._idle = False
        self._dead = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._last_seen = steady()
        self._last_cancel_look = steady()
        self._database: Database | None = None
        self._renewing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End; nothing is held any more."""
        self._stopping = True
        self._rouse()
        self._thread.join(timeout=10)

    def look_for_cancellations(self) -> None:
        """Somebody has asked for one of our tasks to be stopped."""
        self._look_for_cancellations = True
        self._rouse()

    def something_is_held(self) -> None:
        """Work was taken: if the watch was asleep, it wakes, a tick later, when there is something to see. At once it
        would only compete for the interpreter with code that is about to begin. From a loop that is not ours."""
        if self._idle:
            self._idle = False
            asyncio.get_running_loop().call_later(self._tick, self._rouse)

    def _rouse(self) -> None:
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None and not loop.is_closed():
            loop.call_soon_threadsafe(wake.set)

    def _live(self) -> None:
        try:
            asyncio.run(self._watch())
        except BaseException:
            if self._stopping:
                raise
            # Without a watch nobody renews and nobody stops: better no worker than an unwatched one.
            log.exception("leaving: the watchdog has failed")
            os._exit(EXIT_LOST_CONTROL)

    async def _watch(self) -> None:
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        try:
            while not self._stopping:
                self._enforce_limits()
                if self._held:
                    with contextlib.suppress(RuntimeError):  # the loop of the jobs is closing
                        self._look_for_stalls()
                if self._renewing is None or self._renewing.done():
                    # Apart from the watch itself: a database that hangs must not keep us from stopping code.
                    self._renewing = asyncio.create_task(self._renew())
                self._idle = not self._held
                await wait_at_most(self._show_life_every if self._idle else self._tick, self._wake)
                self._wake.clear()
        finally:
            if self._renewing is not None:
                self._renewing.cancel()
            if self._database is not None:
                await self._database.close()

    async def _connect(self) -> Database:
        """A connection of our own, given up for dead early enough to renew over another one."""
        return await Database.open(
            self._url,
            max_connections=2,
            generic_plans=True,
            behind_pooler=self._behind_pooler,
            wait=0,
            patience=max(self._renew_every, 1.0),
        )

    def _enforce_limits(self) -> None:
        now = steady()
        safety = self._lease.total_seconds() * SAFETY
        for attempt in list(self._held.values()):
            if attempt.over:
                continue
            if now > attempt.lease_ends - safety:
                attempt.stop(Stop.LEASE_LOST)
                if attempt.started_at is not None and now > attempt.lease_ends - safety / 4:
                    lost_control(attempt)
            elif attempt.deadline is not None and now > attempt.deadline and attempt.stop_reason is None:
                attempt.stop(Stop.TIMED_OUT)
            elif attempt.stop_reason is not None and now > attempt.stop_since + PRESS_AGAIN:
                attempt.stop_since = now
                attempt.stop(attempt.stop_reason)  # it has not stopped yet

    async def _renew(self) -> None:
        try:
            if self._database is None:
                self._database = await self._connect()
            await self._renew_leases(self._database)
            await self._let_go(self._database)  # may have to wait for somebody, for which no lease has the time
            await self._hear_cancellations(self._database)
            await self._show_life(self._database)
        except StoreError as error:
            log.warning("leases could not be renewed", held=len(self._held), error=str(error))
        except Exception:  # whatever it was, the next renewal is a new try, and the lease is the limit
            log.exception("leases could not be renewed", held=len(self._held))

    async def _let_go(self, database: Database) -> None:
        """What runs on though it should have stopped long ago is renewed no more: it ends with its lease, for the task
        and, if the code cannot be stopped by then, for this process."""
        over = {attempt.task.id: attempt for attempt in list(self._held.values()) if _ran_over(attempt)}
        if over:
            held = [(task_id, attempt.task.fence) for task_id, attempt in over.items()]
            for task_id in await store.let_go(database, self._worker_id, held):
                over[task_id].let_go = True
                log.warning("not renewed any more: it runs far over its time limit", **over[task_id].task.about)

    async def _renew_leases(self, database: Database) -> None:
        asked_at = steady()
        due: list[tuple[Attempt, str | None]] = []
        for attempt in list(self._held.values()):
            if attempt.let_go:
                continue
            progress = attempt.context.latest_progress
            fresh = progress is not attempt.sent_progress
            if (fresh and asked_at - attempt.renewed > 1.0) or asked_at - attempt.renewed > self._renew_every:
                due.append((attempt, progress if fresh else None))
        if not due:
            return
        held = [(attempt.task.id, attempt.task.fence, progress) for attempt, progress in due]
        renewed = await store.renew(database, self._worker_id, held, self._lease)
        for attempt, progress in due:
            if attempt.task.id in renewed:
                attempt.renewed = asked_at
                attempt.lease_ends = asked_at + self._lease.total_seconds()
                if progress is not None:
                    attempt.sent_progress = progress
        if missing := [attempt for attempt, _ in due if attempt.task.id not in renewed]:
            await self._give_up_what_is_lost(database, missing)

    async def _give_up_what_is_lost(self, database: Database, missing: Sequence[Attempt]) -> None:
        """What could not be renewed because somebody is at it is asked for again soon; its lease is the limit."""
        fences = [(attempt.task.id, attempt.task.fence) for attempt in missing]
        still_ours = await store.still_held(database, self._worker_id, fences)
        for attempt in missing:
            if attempt.task.id not in still_ours and attempt.task.id in self._held and not attempt.over:
                log.warning("lease lost", task=str(attempt.task.id), fence=attempt.task.fence)
                attempt.stop(Stop.LEASE_LOST)

    async def _hear_cancellations(self, database: Database) -> None:
        told = self._look_for_cancellations
        if not told and (steady() - self._last_cancel_look < 2.0 or not self._held):
            return
        self._look_for_cancellations = False
        self._last_cancel_look = steady()
        for task_id, fence, who in await store.cancellations(database, self._worker_id):
            attempt = self._held.get(task_id)
            # Told once: again at every look would break into its cleaning up. Who does not stop is pressed in time.
            if attempt is not None and attempt.task.fence == fence and attempt.stop_reason is None:
                attempt.stop(Stop.CANCELLED, Actor(who.type, who.id, who.name))

    async def _show_life(self, database: Database) -> None:
        if self._dead or steady() - self._last_seen < self._show_life_every:
            return
        self._last_seen = asked_at = steady()
        now = await workers.seen(database, self._worker_id)
        if now is None:
            self._dead = True
            log.error("declared dead by somebody else; giving up what is held")
            for attempt in list(self._held.values()):
                attempt.stop(Stop.LEASE_LOST)
            self._declared_dead()
        else:
            self._clock.heard(now, asked_at)


def _ran_over(attempt: Attempt) -> bool:
    """Whether a run of a manifest must be let go now (see `model.tasks.OVERRUN`)."""
    if attempt.deadline is None or attempt.over or attempt.let_go or attempt.task.manifest_id is None:
        return False
    return steady() > attempt.deadline + OVERRUN.total_seconds()


def lost_control(attempt: Attempt) -> NoReturn:
    """End the process: code that cannot be stopped must not outlive our right to run it."""
    log.critical(
        "leaving: a job could not be stopped in time",
        task=str(attempt.task.id),
        job=attempt.task.name,
        remedy="declare it isolated=True, or let it look at ctx.cancelled",
    )
    os._exit(EXIT_LOST_CONTROL)
