"""The worker: claims tasks into free slots, has an executor run their code, and writes every outcome.

`Worker._process_tasks` shows the life of a task, stage by stage. The worker holds no more tasks than it has slots; it
prefetches a few only where tasks end within milliseconds. Notifications wake it; polling and the next due time are the
fallback. On shutdown it stops claiming, lets running code end for a grace period, then stops it and hands tasks back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from uuid import UUID

from tenuto.clock import DatabaseClock, monotonic_seconds
from tenuto.errors import EngineError, StoreError
from tenuto.jobs.attempts import Attempt, StopReason
from tenuto.jobs.context import Context
from tenuto.jobs.output_capture import capture_output
from tenuto.jobs.registry import JobRegistry
from tenuto.jobs.runner import AttemptResult
from tenuto.logs import Log
from tenuto.maintenance.recovery import recover_tasks_of_worker
from tenuto.model import validation
from tenuto.model.partition_ranges import PartitionPeriod
from tenuto.model.work.known_handlers import KnownHandlers
from tenuto.model.work.tasks import Settlement, Task
from tenuto.observability.process_metrics import process_metrics
from tenuto.postgres.database import Database
from tenuto.postgres.listener import RECONNECTED, Listener
from tenuto.service import polling_loop
from tenuto.service.process_identity import ProcessIdentity, register_process
from tenuto.settings import WorkerSettings
from tenuto.store import partitions
from tenuto.store.work import tasks as store
from tenuto.store.work import workers
from tenuto.store.work.executions import NextGroupClaim
from tenuto.worker.completer import CompletedAttempt, Completer
from tenuto.worker.executors import ExecutorContext, ExecutorFactory, ResultQueue
from tenuto.worker.executors.native import NativeExecutor
from tenuto.worker.fetcher import Claim, Fetcher, PrefetchEstimator
from tenuto.worker.limit_handoff import LimitHandoff, confirm_successors
from tenuto.worker.slots import ReclaimedTasks, SlotPool
from tenuto.worker.step_checkpoints import DatabaseStepCheckpoints
from tenuto.worker.watchdog import (
    DEFAULT_TIMING,
    SAFETY_FRACTION,
    Watchdog,
    WorkerTiming,
    exit_after_losing_control,
    heartbeat_interval_seconds,
)

MAX_PREFETCHED_BATCHES = 3
"""How many full claims a worker may hold ahead of its slots where tasks end within milliseconds: one would be used up
before the next claim is committed (benchmark drain)."""

_PLANNED_CONNECTION_COUNT = 3
"""How many connections a hardly busy worker uses at a time: for a claim, for outcomes, and for the rest."""
_PLANNING_DELAY_SECONDS = 1.0
"""A worker that finds queued tasks at its start needs its time for these."""

log = Log("tenuto.worker")


class Worker:
    """One worker, from start to stop."""

    def __init__(
        self,
        database: Database,
        jobs: JobRegistry,
        identity: ProcessIdentity,
        settings: WorkerSettings,
        *,
        write_health_file: Callable[[], None] = lambda: None,
        executor: ExecutorFactory = NativeExecutor,
        timing: WorkerTiming = DEFAULT_TIMING,
        partition_period: PartitionPeriod | None = None,
    ) -> None:
        self._timing = timing
        self._partition_period = partition_period
        self.settings = settings
        self.identity = identity
        self.stopping = False
        self.finished_count = 0
        """Attempts that ended here and are settled: written, rejected as stale, or left to the recovery sweep."""
        self._database = database
        self._jobs = jobs
        self._registered_handlers: KnownHandlers | None = None
        self._write_health_file = write_health_file
        self._clock: DatabaseClock = database.clock
        self._lease = timedelta(seconds=settings.lease_seconds)
        self._queues = [
            validation.check_name(queue, field="queues", limit=64) for queue in dict.fromkeys(settings.queues)
        ]
        self._wake = asyncio.Event()
        self._ready = asyncio.Event()
        self._stop_immediately = False
        self._declared_dead = False
        self._is_draining = False
        """An operator asked the worker to claim no more tasks."""
        self._slots = SlotPool(settings.slots)
        self._max_held_count = settings.slots * 2 + settings.claim_batch * MAX_PREFETCHED_BATCHES * 2
        """Includes ended attempts that are not written yet: it bounds how far the database may fall behind."""
        self._estimator = PrefetchEstimator()
        self._fetcher = Fetcher(
            database, identity.id, self._queues, self._lease, settings.poll_seconds, self._wake, self._estimator
        )
        self._handoff = LimitHandoff()
        self._reclaimed = ReclaimedTasks(self._slots.held)
        self._completer = Completer(
            database, self._clock, self._next_group_claim, self._start_claimed, worker=identity.name
        )
        loop = asyncio.get_running_loop()
        self._registered_slots = settings.slots
        set_capacity = partial(self._call_soon, loop, self._set_capacity)
        deliver = ResultQueue(loop, self._collect)
        self._executor = executor(ExecutorContext(jobs, self._clock, deliver, settings.slots, set_capacity))
        self._make_checkpoints = partial(DatabaseStepCheckpoints, database)
        self._watchdog = Watchdog(
            database.url, identity.id, self._slots.held, self._lease, self._clock,
            on_declared_dead=partial(loop.call_soon_threadsafe, self._give_up),  # called on the watchdog's thread
            behind_pooler=database.behind_pooler,
            gate=database.gate,
            on_drain_changed=lambda is_draining: loop.call_soon_threadsafe(self._set_draining, is_draining),
            check_for_stalls=self._executor.check_for_stalls,
            timing=timing,
        )  # fmt: skip
        self._listener = Listener(database, self._on_notification)
        self._planning: asyncio.Task[None] | None = None

    # --- the life of a task -------------------------------------------------------------------------------------------

    async def _process_tasks(self) -> None:
        """Process tasks until the worker stops. Each stage works on a batch; the two loops run concurrently.

        Between start and outcome the executor runs the code and the watchdog renews the leases. `_collect` frees the
        slots as results arrive.
        """

        async def claim_and_start() -> float:
            claim = await self._claim()  # claim: lease queued tasks for the free slots
            await self._start(claim)  # start: the executor runs their code
            return await self._seconds_until_next_claim(claim)

        async def complete(results: Sequence[CompletedAttempt]) -> None:
            # outcome: the code of these attempts returned, raised or was stopped
            settlements = self._completer.settle(results)  # settle: decide between end, retry and deferral
            written = await self._completer.write(settlements)  # write: activities and task rows, fenced, in one commit
            self._release(results, settlements)  # release: leases and limit slots are free again
            await self._completer.record_batch_successes(settlements, written)

        self._completer.start(complete, self._release)
        await polling_loop.run_cycles(claim_and_start, self._wake, lambda: self.stopping, log, "tenuto-worker")

    # --- lifecycle ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until asked to stop, then shut down in order."""
        try:
            if not await polling_loop.retry_until_database_answers(self._register, lambda: self.stopping, log):
                return
            with capture_output():
                self._start_services()
                try:
                    await self._process_tasks()
                finally:
                    await self._shut_down()
        finally:
            self.identity.release()
        if self._declared_dead:
            raise EngineError(
                f"worker {self.identity.name} was declared dead by another process and gave up its tasks",
                code="worker.declared_dead",
                remedy="start it again; if it was neither suspended nor disconnected, check that its name is unique",
            )

    def unserved_jobs(self) -> dict[str, list[str]]:
        """Return the known jobs whose queue this worker does not serve, by queue."""
        found: dict[str, list[str]] = {}
        for name, job in sorted(self._jobs.jobs_by_name.items()):
            if job.options.queue not in self._queues:
                found.setdefault(job.options.queue, []).append(name)
        return found

    async def wait_until_ready(self, running: asyncio.Task[None]) -> None:
        """Wait until the worker accepts work, or has failed to start."""
        await polling_loop.wait_for_event_of_task(self._ready, running)

    def stop(self) -> None:
        """Claim no more work."""
        self.stopping = True
        self._wake.set()

    def stop_now(self) -> None:
        """Stop running code as well, without a grace period, and hand its tasks back."""
        self.stopping = self._stop_immediately = True
        self._stop_held_attempts()
        self._wake.set()

    def _set_draining(self, is_draining: bool) -> None:
        """Stop or continue claiming, as an operator asked."""
        if self.stopping or is_draining is self._is_draining:
            return
        self._is_draining = is_draining
        log.info(
            "worker draining requested" if is_draining else "worker draining ended", running=self._slots.running_count
        )
        if not is_draining:
            self._fetcher.rescan()
        self._wake.set()

    @staticmethod
    def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed, so the worker is gone
            loop.call_soon_threadsafe(function, *arguments)

    def _set_capacity(self, slots: int) -> None:
        """Follow the number of slots that the executor has now."""
        self._slots.slot_count = min(self.settings.slots, slots)
        self._slots.start_prefetched(self._executor)
        self._wake.set()

    def _give_up(self) -> None:
        """Stop because another process declared this worker dead or took its name."""
        self._declared_dead = True
        self.stop()

    async def _register(self) -> None:
        await partitions.ensure_partitions(self._database, self._clock.now(), self._partition_period)
        self._jobs.load_more_kinds()
        handlers = self._jobs.known_handlers()
        previous = await register_process(
            self._database,
            self.identity,
            self._queues,
            self.settings.slots,
            reserved_for=self._lease * 2,
            heartbeat_seconds=heartbeat_interval_seconds(self._lease),
            handlers=handlers,
        )
        self._registered_handlers = handlers
        if previous is not None:
            recovered_count = await recover_tasks_of_worker(self._database, previous, self._clock.now())
            log.info("tasks of previous process recovered", tasks=recovered_count)

    def _start_services(self) -> None:
        polling_loop.reduce_garbage_collection()
        polling_loop.leave_loaded_code_out_of_garbage_collections("worker")
        self._executor.start()
        self._watchdog.start()
        self._listener.start()
        self._planning = asyncio.create_task(self._plan_statements(), name="tenuto-planning")
        self._ready.set()
        log.info("worker started", name=self.identity.name, queues=self._queues, slots=self.settings.slots)
        if unserved := self.unserved_jobs():
            log.info("jobs of other queues not served by this worker", jobs=unserved)

    async def _plan_statements(self) -> None:
        """Have the connections plan the statements of the hot path before a task waits for it.

        The first of them also reads the catalog: together 11 ms of the server's CPU time on each connection.
        """
        await asyncio.sleep(_PLANNING_DELAY_SECONDS)
        with contextlib.suppress(StoreError):  # the statements are then planned at their first use
            await self._database.plan_statements(store.HOT_STATEMENTS, _PLANNED_CONNECTION_COUNT)

    async def _shut_down(self) -> None:
        process_metrics.record_worker_stopped()
        if self._planning is not None:
            self._planning.cancel()
        try:
            with contextlib.suppress(StoreError):
                await workers.mark_draining(self._database, self.identity.id)
            await self._return_unstarted()
            await self._drain()
            await self._completer.stop()
            await self._listener.stop()
        except BaseException:  # cancelled: the caller does not wait for the code that runs
            self._abandon()
            raise
        self._watchdog.stop()
        self._executor.close()
        with contextlib.suppress(StoreError):
            await workers.deregister_process(self._database, self.identity.id)
        log.info("worker stopped", finished=self.finished_count)

    def _abandon(self) -> None:
        """Stop the code and write nothing more. The registration stays: it would otherwise release the tasks at once,
        while their code may still run. The leases expire instead, and the watchdog goes on until the code has ended."""
        log.warning("worker shutdown aborted", running=self._slots.running_count)
        self.stopping = True
        self._stop_held_attempts()
        self._completer.cancel()
        self._listener.cancel()
        self._watchdog.abandon(self._executor.close)

    async def _drain(self) -> None:
        """Let running code end for the grace period, then stop it; wait until it has really stopped."""
        grace_ends_at = monotonic_seconds() + self.settings.grace_seconds
        if self._slots.running_count:
            log.info("drain started", running=self._slots.running_count, grace_seconds=self.settings.grace_seconds)
        while self._slots.running_count:
            now = monotonic_seconds()
            if self._stop_immediately:
                grace_ends_at = min(grace_ends_at, now)
            if now > grace_ends_at:
                self._stop_held_attempts(only_unstopped=True)
            if now > grace_ends_at + self._timing.forced_stop_seconds:
                # The leases outlive this process, so no second copy of the code can run beside it.
                stuck = next((attempt for attempt in self._slots.held.values() if not attempt.has_ended), None)
                if stuck is not None:
                    exit_after_losing_control(stuck)
            self._write_health_file()
            await polling_loop.wait_for_event(0.2, self._wake)
            self._wake.clear()

    def _stop_held_attempts(self, *, only_unstopped: bool = False) -> None:
        """Stop all held attempts. A second stop request would interrupt the clean-up of code that is stopping."""
        for attempt in list(self._slots.held.values()):
            if not only_unstopped or attempt.stop_reason is None:  # guard: worker.stop_once
                attempt.stop(StopReason.HANDED_BACK)

    # --- claim --------------------------------------------------------------------------------------------------------

    async def _claim(self) -> Claim | None:
        """Claim tasks for the free slots; None if there is no reason to claim or no free slot."""
        self._write_health_file()
        self._wake.clear()
        await self._fetcher.refresh_if_due()
        await self._register_new_handlers()
        await self._register_slots()
        if self._oldest_unstarted_at() + self._timing.max_prefetch_seconds <= monotonic_seconds():
            await self._return_unstarted()  # long tasks occupy the slots: other workers may run these tasks sooner
        limit = self._claim_limit()
        if not limit:
            return None
        known = self._jobs.known_handlers()
        return await self._fetcher.claim(limit, self._reclaimed.ids, known, self._slots.free_count)

    async def _register_slots(self) -> None:
        """Update the registration if the executor has another number of slots now."""
        if self._slots.slot_count != self._registered_slots:
            slots = self._slots.slot_count
            await workers.update_slots(self._database, self.identity.id, slots)
            self._registered_slots = slots

    async def _register_new_handlers(self) -> None:
        """Update the registration if the program has registered further jobs since."""
        handlers = self._jobs.known_handlers()
        if handlers is not self._registered_handlers:
            await workers.update_handlers(self._database, self.identity.id, handlers)
            self._registered_handlers = handlers
            self._fetcher.rescan()

    def _claim_limit(self) -> int:
        prefetch_count = self._estimator.prefetch_count(self.settings.claim_batch * MAX_PREFETCHED_BATCHES)
        free_count = self._slots.free_count + prefetch_count
        # Where tasks end quickly, the worker waits until half of the prefetch is used up: the rest lasts long enough.
        if self._is_draining:  # guard: worker.drained_claims_nothing
            return 0
        if self._slots.slot_count <= 0:  # no prefetch either
            return 0
        if not self._fetcher.policy.wants_claim or free_count <= prefetch_count // 2 or not self._may_hold_more():
            return 0
        return min(free_count, self.settings.claim_batch)

    def _may_hold_more(self) -> bool:
        return len(self._slots.held) < self._max_held_count  # guard: worker.bounded_backlog

    async def _seconds_until_next_claim(self, claim: Claim | None) -> float:
        """Return how long to wait without a wake-up."""
        policy = self._fetcher.policy
        if claim is not None:
            if policy.is_limited:
                self._handoff.record_claimed(claim.tasks)
            if self._fetcher.should_claim_again(claim):
                return 0  # if no slot is free then, the next one that becomes free wakes the worker
        # guard: worker.drained_claims_no_standby
        if policy.is_limited and self._may_hold_more() and not self._is_draining:
            await self._claim_standby()
        seconds = self._fetcher.seconds_until_refresh()
        return seconds and max(
            min(seconds, self._oldest_unstarted_at() + self._timing.max_prefetch_seconds - monotonic_seconds()), 0.001
        )

    async def _claim_standby(self) -> None:
        """Prefetch tasks that share all limits with running tasks that end quickly."""
        last_claimed, count = self._handoff.standby_demand(
            self._slots.held.values(), self._estimator, self.settings.claim_batch
        )
        if not count:
            return
        sent_at = monotonic_seconds()
        tasks = await store.claim_standby_tasks(
            self._database, self.identity.id, last_claimed, count, self._lease, self._reclaimed.ids,
            self._jobs.known_handlers(),
        )  # fmt: skip
        self._estimator.record_claim(monotonic_seconds() - sent_at)
        if len(tasks) < count:
            self._handoff.record_no_candidates()
        running = self._reclaimed.still_running(tasks)
        self._handoff.add_standby(self._hold([task for task in tasks if task.id not in running], sent_at))
        await self._return_to_queue([task for task in tasks if task.id in running], "earlier attempt still stopping")
        if self.stopping or self._is_late(sent_at):
            await self._return_unstarted()

    def _next_group_claim(self) -> NextGroupClaim | None:
        """Return what the completer may claim of following step groups. While other queued tasks may exist, step
        groups wait their turn in the queues."""
        policy = self._fetcher.policy
        free_count = self._slots.free_count - policy.slots_in_flight
        # guard: worker.drained_claims_no_group
        if free_count <= 0 or self.stopping or policy.may_have_tasks or self._is_draining:
            return None
        return NextGroupClaim(self.identity.id, self._lease, self._queues, free_count, self._jobs.known_handlers())

    def _on_notification(self, notification: str) -> None:
        kind, _, details = notification.partition(" ")
        if kind == "cancel":
            if details == str(self.identity.id):
                self._watchdog.check_cancellations()
            return
        if kind == "drain":
            if details == str(self.identity.id):
                self._watchdog.check_drain()
            return
        if kind == "watch":
            self._watchdog.check_log_watches()
            return
        if kind in ("limits", RECONNECTED):
            self._handoff.invalidate()  # guard: handoff.changed_limits
        self._fetcher.on_notification(kind, details)

    # --- start --------------------------------------------------------------------------------------------------------

    async def _start(self, claim: Claim | None) -> None:
        if claim is not None and claim.tasks:
            await self._start_claimed(claim.tasks, claim.sent_at)

    async def _start_claimed(self, tasks: Sequence[Task], sent_at: float) -> None:
        """Start claimed tasks, except when the claim took most of the lease, or when an earlier attempt at the same
        task has not stopped here yet; these return to the queue."""
        too_late = self.stopping or self._is_late(sent_at)  # guard: claim.late_reply
        running = self._reclaimed.still_running(tasks)
        accepted = [task for task in tasks if not too_late and task.id not in running]
        self._slots.prefetched.extend(self._hold(accepted, sent_at))
        self._slots.start_prefetched(self._executor)
        rejected = [task for task in tasks if too_late or task.id in running]
        await self._return_to_queue(rejected, "claimed too late" if too_late else "earlier attempt still stopping")

    def _hold(self, tasks: Sequence[Task], sent_at: float) -> list[Attempt]:
        lease_expires_at = sent_at + self._lease.total_seconds()
        connect, checkpoints = self._database.connection, self._make_checkpoints
        attempts = [Attempt(task, Context(task, connect, checkpoints), lease_expires_at, sent_at) for task in tasks]
        process_metrics.record_claim(len(attempts))
        self._slots.hold(attempts)
        self._watchdog.on_tasks_claimed()
        return attempts

    async def _return_unstarted(self) -> None:
        """Return prefetched and standby tasks to the queue; no attempt is recorded. Attempts that were asked to stop
        meanwhile, or could not be returned, are launched already stopped, so that each reports its outcome."""
        unstarted = [
            *self._slots.take_prefetched(),
            *self._handoff.take_all_standby(pause=self._timing.max_prefetch_seconds),
        ]
        returned = [attempt for attempt in unstarted if attempt.stop_reason is None]
        with contextlib.suppress(StoreError):  # tasks that cannot be returned stay leased until the lease expires
            returned_ids = await self._return_tasks([attempt.task for attempt in returned])
            returned = [attempt for attempt in returned if attempt.task.id in returned_ids]
        self._slots.release(returned)
        if not_returned := set(unstarted).difference(returned):
            for attempt in not_returned:
                attempt.stop(StopReason.HANDED_BACK)
            self._slots.start(list(not_returned), self._executor)

    async def _return_to_queue(self, tasks: Sequence[Task], reason: str) -> None:
        if tasks:
            log.warning("tasks returned to queue", tasks=len(tasks), reason=reason)
            await self._return_tasks(tasks)

    async def _return_tasks(self, tasks: Sequence[Task]) -> set[UUID]:
        return await store.return_tasks_to_queue(self._database, self.identity.id, tasks) if tasks else set()

    def _is_late(self, sent_at: float) -> bool:
        return monotonic_seconds() > sent_at + self._lease.total_seconds() * (1 - SAFETY_FRACTION)

    def _oldest_unstarted_at(self) -> float:
        return min(self._slots.oldest_prefetched_at(), self._handoff.oldest_standby_at())

    # --- outcome and release ------------------------------------------------------------------------------------------

    def _collect(self, results: Sequence[AttemptResult]) -> None:
        """Free the slots of ended attempts, start their successors and prefetched tasks, and pass the outcomes on."""
        self._estimator.record_ended(results)
        self._slots.running_count -= len(results)
        for task in self._reclaimed.release_ended(attempt.task for attempt, _ in results):
            self._fetcher.policy.announce_tasks(task.queue)
        outcomes = [(attempt, outcome) for attempt, outcome in results if outcome is not None]
        if len(outcomes) < len(results):
            self._slots.release([attempt for attempt, outcome in results if outcome is None])
        if self._handoff.standby_count and not self.stopping:
            successors = [self._handoff.hand_slot_to_successor(attempt) for attempt, _ in outcomes]
            self._slots.start([successor for successor in successors if successor is not None], self._executor)
        self._completer.put(outcomes)
        if self._slots.prefetched and not self.stopping:
            self._slots.start_prefetched(self._executor)
        self._wake.set()

    def _release(self, results: Sequence[CompletedAttempt], settlements: Sequence[Settlement]) -> None:
        """Forget attempts whose outcomes are written, or can only be left to the recovery sweep."""
        attempts = [attempt for attempt, _ in results]
        if self._handoff.handed_on_count and any(attempt.successor is not None for attempt in attempts):
            confirm_successors(results, settlements)
        self.finished_count += len(attempts)
        self._slots.release(attempts)
        if self._fetcher.policy.is_limited and any(attempt.successor is None for attempt in attempts):
            self._fetcher.policy.announce_free_limit_slot()
        if self._may_hold_more():
            self._wake.set()
