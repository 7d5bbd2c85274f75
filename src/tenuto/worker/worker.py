"""The worker: takes tasks whenever it has free slots, has them run by its task server, and sees every outcome written.

It claims a batch at a time, most urgent first, and holds no more than it has slots for; only where tasks end within
milliseconds does it take the next few ahead, so that nobody waits for the database. Notifications wake it;
polling and the next due instant are the net beneath. On leaving it takes no more, lets running work end for a grace,
then stops it and hands it back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from math import inf
from uuid import UUID

from tenuto.clock import DatabaseClock, steady
from tenuto.errors import EngineError, StoreError
from tenuto.jobs.attempts import Attempt, Stop
from tenuto.jobs.context import Context
from tenuto.jobs.output_capture import Capture
from tenuto.jobs.registry import Jobs
from tenuto.jobs.runner import End
from tenuto.logs import Log
from tenuto.maintenance.recovery import recover
from tenuto.model import stored_values
from tenuto.model.tasks import Task
from tenuto.observability.process_metrics import counters
from tenuto.postgres.database import Database
from tenuto.postgres.listener import RECONNECTED, Listener
from tenuto.service import polling_loop
from tenuto.service.process_identity import Identity, enter_register
from tenuto.settings import WorkerSettings
from tenuto.store import partitions, workers
from tenuto.store import tasks as store
from tenuto.store.claim_cursor import Bounds, Lap
from tenuto.store.executions import Taking
from tenuto.worker.completer import Finisher
from tenuto.worker.executors import MakeServer, Terms
from tenuto.worker.executors.native import Native
from tenuto.worker.limit_handoff import Seats
from tenuto.worker.prefetch import Pace
from tenuto.worker.reclaimed_tasks import Comebacks
from tenuto.worker.result_queue import Deliveries
from tenuto.worker.step_checkpoints import DatabaseMemory
from tenuto.worker.watchdog import SAFETY, Watchdog, lost_control

_LAST_RESORT = 5.0
"""How long code may take to stop at the very end, before the process ends with it."""

_AHEAD_AT_MOST = 1.0
"""How long what was taken ahead of a free slot may wait for one."""

_A_MOMENT = 0.01
"""What was taken begins first: asking for more at once would compete with its code for the interpreter."""

log = Log("tenuto.worker")


class Worker:
    """One worker, from start to stop."""

    def __init__(
        self,
        database: Database,
        jobs: Jobs,
        identity: Identity,
        settings: WorkerSettings,
        *,
        beat: Callable[[], None] = lambda: None,
        server: MakeServer = Native,
    ) -> None:
        self.settings = settings
        self.identity = identity
        self._database = database
        self._beat = beat
        self._clock: DatabaseClock = database.clock
        self._lease = timedelta(seconds=settings.lease_seconds)
        self._queues = [stored_values.name(queue, field="queues", limit=64) for queue in dict.fromkeys(settings.queues)]
        self._held: dict[UUID, Attempt] = {}
        self._executing = 0
        self._backlog: deque[Attempt] = deque()
        self._pace = Pace()
        self._most_held = settings.slots * 2 + settings.claim_batch * 2
        """With what has ended but is not written yet: the database may fall behind only so far."""
        self._wake = asyncio.Event()
        self._ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._bounds = Bounds()
        self._from_the_beginning = False
        self._looking_back: asyncio.TimerHandle | None = None
        self._lap = Lap()
        self._limited = self._told_of_limits = True
        self._next_due: datetime | None = None
        self._look_ahead = True
        self._looked_at = self._asked_at = steady()
        self._more = True
        """There may be something to take: we were told so, or the last claim got all it asked for."""
        self._asking = 0
        """How many slots the claim under way may fill."""
        self._seats = Seats()
        self._comebacks = Comebacks(self._held)
        self._leave_now = False
        self._dead = False
        self.stopping = False
        self.finished = 0
        """How many attempts have ended here and are off our hands: written, come too late, or left to the sweep."""
        self._finisher = Finisher(database, self._clock, self._forget, self._may_take_over, self._launch_what_may_begin)
        self._server = server(Terms(jobs, self._clock, Deliveries(self._loop, self._collect), settings.slots))
        self._remember = partial(DatabaseMemory, database)
        self._watchdog = Watchdog(
            database.url, identity.id, self._held, self._lease, self._clock,
            declared_dead=partial(self._loop.call_soon_threadsafe, self._give_up),  # from a thread of its own
            behind_pooler=database.behind_pooler,
            look_for_stalls=self._server.look,
        )  # fmt: skip
        self._listener = Listener(database, self._hear)

    # --- life -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until told to stop, then leave in good order."""
        try:
            if not await polling_loop.once_the_database_answers(self._enter, lambda: self.stopping, log):
                return self.identity.release()
            self._arrive()
        except BaseException:
            self.identity.release()
            raise
        try:
            await polling_loop.poll_until_stopped(self._take_work, self._wake, lambda: self.stopping, log)
        finally:
            await self._leave()
        if self._dead:
            what = f"worker {self.identity.name} was declared dead by another service and has given up what it held"
            remedy = "start it again; if it was neither suspended nor cut off, see that its name is its own"
            raise EngineError(what, remedy=remedy)

    async def is_ready(self, running: asyncio.Task[None]) -> None:
        """Wait until it takes work, or has failed to start."""
        await polling_loop.happens_before_the_end(self._ready, running)

    def stop(self) -> None:
        """Take no more work."""
        self.stopping = True
        self._wake.set()

    def stop_now(self) -> None:
        """Do not wait for running work either: stop it and hand it back."""
        self.stopping = self._leave_now = True
        for attempt in list(self._held.values()):
            attempt.stop(Stop.HANDED_BACK)
        self._wake.set()

    def _give_up(self) -> None:  # somebody has taken our name or given us up
        self._dead = True
        self.stop()

    async def _enter(self) -> None:
        await partitions.ensure(self._database, self._clock.now())
        slots, silence = self.settings.slots, self._lease * 2
        previous = await enter_register(self._database, self.identity, self._queues, slots, silence=silence)
        if previous is not None:
            back = await recover(self._database, previous, self._clock.now())
            log.info("took back what the previous start held", tasks=back)

    def _arrive(self) -> None:
        polling_loop.collect_garbage_less_often()
        Capture.start()
        self._server.start()
        self._finisher.start()
        self._watchdog.start()
        self._listener.start()
        self._ready.set()
        log.info("worker ready", name=self.identity.name, queues=self._queues, slots=self.settings.slots)

    async def _leave(self) -> None:
        counters.no_worker()
        with contextlib.suppress(StoreError):
            await workers.draining(self._database, self.identity.id)
        await self._return_backlog()
        await self._drain()
        await self._finisher.stop()
        self._watchdog.stop()
        await self._listener.stop()
        self._server.close()
        Capture.stop()
        with contextlib.suppress(StoreError):
            await workers.leave(self._database, self.identity.id)
        self.identity.release()
        log.info("worker left", finished=self.finished)

    async def _drain(self) -> None:
        """Let running work end for the grace, then stop it; the slot is free only when the code has really stopped."""
        grace_ends = steady() + self.settings.grace_seconds
        if self._executing:
            log.info("draining", running=self._executing, grace_seconds=self.settings.grace_seconds)
        while self._executing:
            if self._leave_now:
                grace_ends = min(grace_ends, steady())
            if steady() > grace_ends:
                for attempt in list(self._held.values()):
                    if attempt.stop_reason is None:  # told once: pressing again would break into its cleaning up
                        attempt.stop(Stop.HANDED_BACK)
            if steady() > grace_ends + _LAST_RESORT:
                # Its tasks stay ours until the leases run out, and by then this process is gone: no second live copy.
                stuck = next((attempt for attempt in self._held.values() if not attempt.over), None)
                if stuck is not None:
                    lost_control(stuck)
            self._beat()
            await polling_loop.wait_at_most(0.2, self._wake)
            self._wake.clear()

    # --- taking -----------------------------------------------------------------------------------------------------

    async def _take_work(self) -> float:
        """Claim what fits into the free slots; how long to wait if nothing wakes us."""
        self._beat()
        self._wake.clear()
        # The net beneath the notifications is cast by the clock: under load nothing ever times out.
        due = self._next_due is not None and self._next_due <= self._clock.now()
        if self._look_ahead or due or steady() >= self._looked_at + self.settings.poll_seconds:
            await self._look()
        if self._oldest_ahead() + _AHEAD_AT_MOST <= steady():
            await self._return_backlog()  # the slots have filled with long work: let others have what waits here
        ahead = self._pace.ahead(self.settings.claim_batch)
        free = self.settings.slots - self._executing - len(self._backlog) + ahead
        # Where tasks end quickly, half a batch is worth waiting for: the rest of it ends within milliseconds.
        if (self._more or self._from_the_beginning) and free > ahead // 2 and len(self._held) < self._most_held:
            limit = min(free, self.settings.claim_batch)
            self._more = False  # before asking: whatever we are told meanwhile must not be forgotten
            self._asking = limit
            try:
                taken = await self._claim(limit)
            except BaseException:
                self._more = True  # what we were told of is still there
                raise
            finally:
                self._asking = 0
            self._pace.claimed(steady() - self._asked_at)
            self._more = self._more or len(taken) == limit
            if taken:
                await self._launch_what_may_begin(taken, self._asked_at)
            if self._limited:
                self._seats.claimed(taken)
            if taken and self._from_the_beginning:
                self._look_back_in_a_moment(hardly_anything=len(taken) <= max(limit // 10, 2))
            elif self._more or self._from_the_beginning:
                return 0  # there may be room for more at once; if not, the next slot that becomes free wakes us
        if self._limited and len(self._held) < self._most_held:
            await self._let_some_stand_by()
        return self._until_something_is_due()

    def _look_back_in_a_moment(self, *, hardly_anything: bool) -> None:
        """From the beginning of the queues. What we have taken begins first; where there is hardly anything, nothing
        that wakes us until then brings the moment forward."""
        self._from_the_beginning = not hardly_anything
        if self._looking_back is None:
            self._looking_back = self._loop.call_later(_A_MOMENT, self._look_back)

    def _look_back(self) -> None:
        self._looking_back, self._from_the_beginning = None, True
        self._wake.set()

    async def _let_some_stand_by(self) -> None:
        """Where tasks end quickly, those that share their limits with them are taken ahead too."""
        kinds, each = self._seats.short_of(self._held.values(), self._pace, self.settings.claim_batch)
        if not each:
            return
        me, without, asked_at = self.identity.id, self._comebacks.ids, steady()
        taken = await store.stand_by(self._database, me, kinds, each, self._lease, without)
        self._pace.claimed(steady() - asked_at)
        if len(taken) < each:
            self._seats.none_is_left()
        early = self._comebacks.among(taken)
        self._seats.stand_by(self._hold([task for task in taken if task.id not in early], asked_at))
        await self._put_back([task for task in taken if task.id in early], "still stopping here")
        if self.stopping or self._is_late(asked_at):
            await self._return_backlog()

    async def _look(self) -> None:
        """See what has fallen due, what is due next, and whether limits must be heeded."""
        self._look_ahead = self._told_of_limits = False  # before asking, as above
        self._looked_at = steady()
        self._more = True
        try:
            outlook = await store.promote(self._database, self._clock.now(), self._queues)
        except BaseException:
            self._look_ahead = True
            raise
        counters.poll()
        self._next_due, self._limited = outlook.next_due, outlook.limited or self._told_of_limits
        self._bounds = Bounds()
        if outlook.promoted:
            self._look_ahead = True  # there may be more than one round takes in

    async def _claim(self, limit: int) -> list[Task]:
        self._asked_at = steady()
        me, without = self.identity.id, self._comebacks.ids
        if self._limited:
            lap = self._lap
            taken = await store.claim_under_limits(self._database, me, self._queues, limit, self._lease, lap, without)
            self._from_the_beginning = False  # as such a claim looks anyway
            self._more = self._more or lap.left_out
            return taken
        whole = self._from_the_beginning
        bounds = Bounds() if whole else self._bounds
        self._bounds.asked()
        taken = await store.claim(self._database, me, self._queues, limit, self._lease, bounds, without)
        self._from_the_beginning = False
        if len(taken) < limit and bounds.after:
            # The shortcut has run out: whatever lies before it is looked at too, once what we have has begun.
            self._from_the_beginning = True
        elif len(taken) == limit and whole:
            self._bounds.after.clear()  # there may be more between the last of these and where we were
        self._bounds.moved_past(taken)
        return taken

    def _may_take_over(self) -> Taking | None:
        """What we would take of the next step groups; while there may be other work in the queues, they get in line."""
        free = self.settings.slots - self._executing - len(self._backlog) - self._asking
        if free <= 0 or self.stopping or self._more:
            return None
        return Taking(self.identity.id, self._lease, self._queues, free)

    def _hold(self, taken: Sequence[Task], asked_at: float) -> list[Attempt]:
        lease_ends = asked_at + self._lease.total_seconds()
        connect, remember = self._database.connection, self._remember
        attempts = [Attempt(task, Context(task, connect, remember), lease_ends, asked_at) for task in taken]
        counters.take(len(attempts))
        self._held.update((attempt.task.id, attempt) for attempt in attempts)
        self._watchdog.something_is_held()
        return attempts

    def _begin_backlog(self) -> None:
        """As many as there are slots begin; the others wait here for the moment until one is free."""
        free = min(self.settings.slots - self._executing, len(self._backlog))
        if free > 0:
            self._executing += free
            self._server.launch([self._backlog.popleft() for _ in range(free)])

    async def _return_backlog(self) -> None:
        """What never began goes back as if it had not been touched; what is to be stopped never begins."""
        waiting = [*self._backlog, *self._seats.give_back(pause=_AHEAD_AT_MOST)]
        self._backlog.clear()
        gone = [attempt for attempt in waiting if attempt.stop_reason is None]
        with contextlib.suppress(StoreError):  # if it cannot be returned, the leases run out
            back = await store.put_back(self._database, self.identity.id, [each.task for each in gone]) if gone else ()
            gone = [attempt for attempt in gone if attempt.task.id in back]
        self._release(gone)
        if kept := set(waiting).difference(gone):
            for attempt in kept:
                attempt.stop(Stop.HANDED_BACK)
            self._executing += len(kept)
            self._server.launch(list(kept))

    async def _launch_what_may_begin(self, taken: Sequence[Task], asked_at: float) -> None:
        """Not what took so long to get that little of its lease is left, nor what has come back to us before our own
        earlier attempt at it has stopped: that one may be taken by others, and by us when it has."""
        too_late = self.stopping or self._is_late(asked_at)
        early = self._comebacks.among(taken)
        may_begin = [task for task in taken if not too_late and task.id not in early]
        self._backlog.extend(self._hold(may_begin, asked_at))
        self._begin_backlog()
        refused = [task for task in taken if too_late or task.id in early]
        await self._put_back(refused, "late" if too_late else "still stopping here")

    async def _put_back(self, refused: Sequence[Task], why: str) -> None:
        if refused:
            log.warning("tasks put back", tasks=len(refused), why=why)
            await store.put_back(self._database, self.identity.id, refused)

    def _is_late(self, asked_at: float) -> bool:
        return steady() > asked_at + self._lease.total_seconds() * (1 - SAFETY)

    def _until_something_is_due(self) -> float:
        """The next due instant, the next poll, or the end of the time for which a task may wait here for a slot."""
        if self._look_ahead:
            return 0
        wait = min(self._looked_at + self.settings.poll_seconds, self._oldest_ahead() + _AHEAD_AT_MOST) - steady()
        if self._next_due is not None:
            wait = min(wait, (self._next_due - self._clock.now()).total_seconds())
        return max(wait, 0.001)

    def _oldest_ahead(self) -> float:
        return min(self._backlog[0].taken_at if self._backlog else inf, self._seats.oldest())

    def _hear(self, word: str) -> None:
        kind, _, rest = word.partition(" ")
        match kind:
            case "queued" | "limited":
                self._hear_of_work(kind, *rest.split())
            case "cancel" if rest == str(self.identity.id):
                self._watchdog.look_for_cancellations()
            case _ if kind in ("scheduled", "limits", RECONNECTED):
                if kind != "scheduled":
                    self._seats.distrust()
                self._look_ahead = True
                self._wake.set()

    def _hear_of_work(self, kind: str, queue: str, rank: str | None = None) -> None:
        if queue not in self._queues:
            return
        self._bounds.more_urgent(queue, *([] if rank is None else [int(rank)]))
        if kind == "limited":
            self._limited = self._told_of_limits = True
        self._more = True
        self._wake.set()

    # --- ending -----------------------------------------------------------------------------------------------------

    def _collect(self, ends: Sequence[End]) -> None:
        self._pace.ended(ends)
        self._executing -= len(ends)
        for task in self._comebacks.may_now(attempt.task for attempt, _ in ends):
            self._bounds.more_urgent(task.queue)
            self._more = True
        reported = [(attempt, outcome) for attempt, outcome in ends if outcome is not None]
        if len(reported) < len(ends):
            self._release([attempt for attempt, outcome in ends if outcome is None])
        if self._seats.count and not self.stopping:
            heirs = [heir for attempt, _ in reported if (heir := self._seats.hand_on(attempt)) is not None]
            self._executing += len(heirs)
            self._server.launch(heirs)
        self._finisher.put(reported)
        if self._backlog and not self.stopping:
            self._begin_backlog()
        self._wake.set()

    def _forget(self, attempts: Sequence[Attempt]) -> None:
        """The outcomes are written: nothing of these is held any more."""
        self.finished += len(attempts)
        self._release(attempts)
        if self._limited and any(attempt.heir is None for attempt in attempts):
            self._more = True  # a seat under a limit has become free, and nobody has looked what it is good for
        if len(self._held) < self._most_held:
            self._wake.set()

    def _release(self, attempts: Iterable[Attempt]) -> None:
        held = self._held
        for attempt in attempts:
            if held.get(attempt.task.id) is attempt:
                del held[attempt.task.id]
