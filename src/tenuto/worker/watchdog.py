"""The watchdog renews leases and enforces leases and timeouts, from a thread that never runs user code.

Twice a second it checks the attempts that the worker holds. It renews leases in one statement, together with progress,
applies cancellations, stops code past its timeout, and stops code whose lease could not be renewed before the lease
expires. If code cannot be stopped in time, the process exits: two live copies of one task are worse than a restarted
worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn
from uuid import UUID

from tenuto.clock import DatabaseClock, monotonic_seconds
from tenuto.errors import StoreError
from tenuto.jobs.attempts import Attempt, StopReason
from tenuto.logs import Log
from tenuto.model.access.actors import Actor
from tenuto.model.work.tasks import OVERRUN_GRACE
from tenuto.postgres.database import Database
from tenuto.postgres.servers.server_selection import ConnectionGate
from tenuto.service.polling_loop import wait_for_event
from tenuto.service.signals import EXIT_LOST_CONTROL
from tenuto.store.work import tasks as store
from tenuto.store.work import workers
from tenuto.worker.live_logs import LiveLogs

TICK_SECONDS = 0.5
SAFETY_FRACTION = 0.2
"""The last fifth of a lease is reserved for stopping code whose lease could not be renewed."""
MAX_HEARTBEAT_INTERVAL_SECONDS = 10.0
"""Upper bound of the heartbeat interval, however long the leases."""

log = Log("tenuto.watchdog")


@dataclass(frozen=True, slots=True)
class WorkerTiming:
    """Timing policy of a worker: values that tests shorten and services leave at their defaults."""

    max_prefetch_seconds: float = 1.0
    """How long a prefetched or standby task may wait in this worker for a slot."""
    forced_stop_seconds: float = 5.0
    """How long code may take to stop after the grace period before the process ends with it."""
    stop_repeat_seconds: float = 5.0
    """How long stopping code may clean up before the stop is repeated."""
    overrun_seconds: float = OVERRUN_GRACE.total_seconds()
    """How long a manifest run may exceed its timeout before its lease is no longer renewed."""


DEFAULT_TIMING = WorkerTiming()


def _renewal_interval_seconds(lease: timedelta) -> float:
    return lease.total_seconds() / 6


def heartbeat_interval_seconds(lease: timedelta) -> float:
    """Return the interval between the heartbeats of a worker with this lease."""
    return min(_renewal_interval_seconds(lease), MAX_HEARTBEAT_INTERVAL_SECONDS)


class Watchdog:
    """Renews and enforces the leases of one worker."""

    def __init__(
        self,
        url: str,
        worker_id: UUID,
        held: dict[UUID, Attempt],
        lease: timedelta,
        clock: DatabaseClock,
        *,
        on_declared_dead: Callable[[], object],
        behind_pooler: bool = False,
        gate: ConnectionGate | None = None,
        on_drain_changed: Callable[[bool], object] = lambda _is_draining: None,
        check_for_stalls: Callable[[], None] = lambda: None,
        timing: WorkerTiming = DEFAULT_TIMING,
    ) -> None:
        self._timing = timing
        self._url = url
        self._worker_id = worker_id
        self._held = held
        self._lease = lease
        self._clock = clock
        self._on_declared_dead = on_declared_dead
        self._on_drain_changed = on_drain_changed
        self._is_draining = False
        self._drain_check_requested = False
        self._behind_pooler = behind_pooler
        self._gate = gate
        self._check_for_stalls = check_for_stalls
        self._renew_seconds = _renewal_interval_seconds(lease)
        self._tick_seconds = min(TICK_SECONDS, lease.total_seconds() * SAFETY_FRACTION / 8)
        self._heartbeat_seconds = heartbeat_interval_seconds(lease)
        self._thread = threading.Thread(target=self._run_thread, name="tenuto-watchdog", daemon=True)
        self._stopping = False
        self._on_abandoned_code_ended: Callable[[], object] | None = None
        """Set once the worker is gone, while its code may still run."""
        self._cancellation_check_requested = False
        self._idle = False
        self._declared_dead = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._last_heartbeat_at = monotonic_seconds()
        self._last_cancellation_check_at = monotonic_seconds()
        self._database: Database | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._live_logs = LiveLogs()
        self._sending_logs: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; the worker holds no task any more."""
        self._stopping = True
        self._wake_up()
        self._thread.join(timeout=10)

    def abandon(self, on_code_ended: Callable[[], object]) -> None:
        """Renew no lease and send no heartbeat any more: the worker is gone without waiting for its code.

        The leases expire, and other workers take over the tasks. Until the code has ended, the watchdog stops it before
        that. Then it calls ``on_code_ended`` on its thread, and ends.
        """
        self._on_abandoned_code_ended = on_code_ended
        self._wake_up()

    def check_cancellations(self) -> None:
        """Check soon: cancellation of a task of this worker was requested."""
        self._cancellation_check_requested = True
        self._wake_up()

    def check_drain(self) -> None:
        """Check soon: an operator has drained or resumed this worker."""
        self._drain_check_requested = True
        self._wake_up()

    def check_log_watches(self) -> None:
        """Check soon: a client has begun to watch a log, maybe of a task of this worker."""
        if self._held:
            self._live_logs.check_watches()
            self._wake_up()

    def on_tasks_claimed(self) -> None:
        """Wake an idle watchdog one tick later; called on the worker's event loop. An immediate wake-up would compete
        for the interpreter with code that is about to start."""
        if self._idle:
            self._idle = False
            asyncio.get_running_loop().call_later(self._tick_seconds, self._wake_up)

    def _wake_up(self) -> None:
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None and not loop.is_closed():
            loop.call_soon_threadsafe(wake.set)

    def _run_thread(self) -> None:
        try:
            asyncio.run(self._watch())
            if self._on_abandoned_code_ended is not None:
                self._on_abandoned_code_ended()
        except BaseException:
            if self._stopping:
                raise
            # Without the watchdog no lease is renewed and no code is stopped: better no worker than an unwatched one.
            log.exception("process exited because its watchdog failed")
            os._exit(EXIT_LOST_CONTROL)

    async def _watch(self) -> None:
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        try:
            while not self._stopping and not self._is_abandoned_code_ended():
                self._enforce_leases_and_timeouts()
                if self._held:
                    with contextlib.suppress(RuntimeError):  # the event loop of the jobs is closing
                        self._check_for_stalls()
                if self._renewal is None or self._renewal.done():
                    # In a separate task: a database that hangs must not delay stopping code.
                    self._renewal = asyncio.create_task(self._renew())
                if self._sending_logs is None or self._sending_logs.done():
                    # In a separate task: logs must not delay renewals.
                    self._sending_logs = asyncio.create_task(self._send_live_logs())
                self._idle = not self._held
                await wait_for_event(self._heartbeat_seconds if self._idle else self._tick_seconds, self._wake)
                self._wake.clear()
        finally:
            for task in (self._renewal, self._sending_logs):
                if task is not None:
                    task.cancel()
            if self._database is not None:
                await self._database.close()

    async def _connect(self) -> Database:
        """Open connections with a reply timeout short enough to renew over another connection."""
        return await Database.open(
            self._url,
            max_connections=2,
            generic_plans=True,
            behind_pooler=self._behind_pooler,
            gate=self._gate,
            connect_timeout_seconds=0,
            reply_timeout_seconds=max(self._renew_seconds, 1.0),  # guard: watchdog.renewal_timeout
        )

    def _is_abandoned_code_ended(self) -> bool:
        """Return whether the worker is gone, and nothing that it started runs. All attempts were asked to stop before,
        so that none of the others starts."""
        if self._on_abandoned_code_ended is None:
            return False
        return all(attempt.has_ended or attempt.started_at is None for attempt in list(self._held.values()))

    def _enforce_leases_and_timeouts(self) -> None:
        now = monotonic_seconds()
        safety = self._lease.total_seconds() * SAFETY_FRACTION
        for attempt in list(self._held.values()):
            if attempt.has_ended:
                continue
            if now > attempt.lease_expires_at - safety:
                attempt.stop(StopReason.LEASE_LOST)  # guard: watchdog.stop_before_lease_ends
                # guard: watchdog.stop_before_lease_ends
                if attempt.started_at is not None and now > attempt.lease_expires_at - safety / 4:
                    exit_after_losing_control(attempt)
            elif attempt.deadline is not None and now > attempt.deadline and attempt.stop_reason is None:
                attempt.stop(StopReason.TIMED_OUT)
            elif attempt.stop_reason is not None and now > attempt.stop_requested_at + self._timing.stop_repeat_seconds:
                attempt.stop_requested_at = now
                attempt.stop(attempt.stop_reason)  # still running

    async def _renew(self) -> None:
        if self._on_abandoned_code_ended is not None:  # guard: watchdog.abandoned_leases_expire
            return
        try:
            if self._database is None:
                self._database = await self._connect()
            await self._renew_leases(self._database)
            # After the renewal, because it may wait for a row lock.
            await self._end_renewal_of_overrunning(self._database)
            await self._apply_cancellations(self._database)
            await self._send_heartbeat(self._database)
            await self._check_drain(self._database)
        except StoreError as error:
            log.warning("leases not renewed", held_count=len(self._held), error=str(error))
        except Exception:  # the next cycle tries again, until the lease expires
            log.exception("leases not renewed", held_count=len(self._held))

    async def _send_live_logs(self) -> None:
        if self._database is None:
            return
        try:
            await self._live_logs.send(self._database, list(self._held.values()))
        except StoreError as error:  # the complete log is stored when the attempt ends
            log.debug("live logs not sent", error=str(error))
        except Exception:  # a log must not stop the watchdog
            log.exception("live logs not sent")

    async def _end_renewal_of_overrunning(self, database: Database) -> None:
        """End the renewal of attempts that ran far past their timeout: the task ends when its lease expires, and this
        process exits if the code has not stopped by then."""
        overrunning = {
            attempt.task.id: attempt for attempt in list(self._held.values()) if self._is_overrunning(attempt)
        }
        if overrunning:
            held = [(task_id, attempt.task.fence) for task_id, attempt in overrunning.items()]
            for task_id in await store.mark_overrun_tasks(database, self._worker_id, held):
                overrunning[task_id].has_renewal_ended = True
                log.warning("lease renewal ended after timeout overrun", **overrunning[task_id].task.log_fields)

    def _is_overrunning(self, attempt: Attempt) -> bool:
        """Return whether a manifest run exceeded its timeout so far that it is no longer renewed."""
        if (
            attempt.deadline is None
            or attempt.has_ended
            or attempt.has_renewal_ended
            or attempt.task.manifest_id is None
        ):
            return False
        return monotonic_seconds() > attempt.deadline + self._timing.overrun_seconds

    async def _renew_leases(self, database: Database) -> None:
        sent_at = monotonic_seconds()
        due: list[tuple[Attempt, str | None]] = []
        for attempt in list(self._held.values()):
            if attempt.has_renewal_ended:  # guard: watchdog.no_renewal_after_give_up
                continue
            progress = attempt.context.progress_json
            is_new = progress is not attempt.saved_progress
            age_seconds = sent_at - attempt.renewed_at
            if (is_new and age_seconds > 1.0) or age_seconds > self._renew_seconds:
                due.append((attempt, progress if is_new else None))
        if not due:
            return
        held = [(attempt.task.id, attempt.task.fence, progress) for attempt, progress in due]
        renewed = await store.renew_leases(database, self._worker_id, held, self._lease)
        for attempt, progress in due:
            if attempt.task.id in renewed:
                attempt.renewed_at = sent_at
                attempt.lease_expires_at = sent_at + self._lease.total_seconds()
                if progress is not None:
                    attempt.saved_progress = progress
        if missing := [attempt for attempt, _ in due if attempt.task.id not in renewed]:
            await self._stop_lost_attempts(database, missing)

    async def _stop_lost_attempts(self, database: Database, missing: Sequence[Attempt]) -> None:
        """Stop attempts whose lease is lost. A task that another transaction has locked is renewed in a later cycle."""
        fences = [(attempt.task.id, attempt.task.fence) for attempt in missing]
        still_held = await store.find_held_tasks(database, self._worker_id, fences)
        for attempt in missing:
            # guard: renew.locked_task_is_still_held
            if attempt.task.id not in still_held and attempt.task.id in self._held and not attempt.has_ended:
                log.warning("lease lost", task_id=str(attempt.task.id), fence=attempt.task.fence)
                attempt.stop(StopReason.LEASE_LOST)

    async def _apply_cancellations(self, database: Database) -> None:
        requested = self._cancellation_check_requested
        if not requested and (monotonic_seconds() - self._last_cancellation_check_at < 2.0 or not self._held):
            return
        self._cancellation_check_requested = False
        self._last_cancellation_check_at = monotonic_seconds()
        for task_id, fence, actor in await store.list_cancel_requests(database, self._worker_id):
            attempt = self._held.get(task_id)
            # A repeated stop would interrupt the clean-up of the code; `_enforce_leases_and_timeouts` repeats it later.
            # guard: watchdog.stop_once
            if attempt is not None and attempt.task.fence == fence and attempt.stop_reason is None:
                attempt.stop(StopReason.CANCELLED, Actor(actor.type, actor.id, actor.name))

    async def _send_heartbeat(self, database: Database) -> None:
        if self._declared_dead or monotonic_seconds() - self._last_heartbeat_at < self._heartbeat_seconds:
            return
        self._last_heartbeat_at = sent_at = monotonic_seconds()
        now = await workers.record_heartbeat(database, self._worker_id)
        if now is None:
            self._declared_dead = True
            log.error(
                "worker declared dead by another process",
                reason="it was silent for longer than its lease, and its tasks went to other workers",
                remedy="restart it",
            )
            for attempt in list(self._held.values()):
                attempt.stop(StopReason.LEASE_LOST)
            self._on_declared_dead()
        else:
            self._clock.synchronize(now, sent_at)
            self._drain_check_requested = True

    async def _check_drain(self, database: Database) -> None:
        """Read whether an operator has drained this worker, after every heartbeat and notification."""
        if not self._drain_check_requested:
            return
        self._drain_check_requested = False
        is_draining = await workers.is_draining(database, self._worker_id)
        if is_draining is not self._is_draining:
            self._is_draining = is_draining
            self._on_drain_changed(is_draining)


def exit_after_losing_control(attempt: Attempt) -> NoReturn:
    """Exit the process: code that cannot be stopped must not outlive its lease."""
    log.critical(
        "process exited because a job could not be stopped",
        task_id=str(attempt.task.id),
        job=attempt.task.name,
        remedy="declare the job isolated=True, or check ctx.cancelled in it",
    )
    os._exit(EXIT_LOST_CONTROL)  # guard: watchdog.exit_if_code_goes_on
