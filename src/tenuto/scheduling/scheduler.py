"""The scheduler: fire due schedules, start queued runs, repair stuck executions and recover lost tasks.

Any number of schedulers may run. A scheduler sleeps until the next due instant; a change of any schedule wakes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from tenuto.clock import monotonic_seconds
from tenuto.logs import Log
from tenuto.maintenance.recovery import recover_lost_tasks
from tenuto.maintenance.stuck_executions import repair_stuck_executions
from tenuto.observability.process_metrics import process_metrics
from tenuto.postgres.database import Database
from tenuto.scheduling import firing
from tenuto.scheduling.next_runs import seconds_until_due
from tenuto.service.polling_loop import PollingLoop
from tenuto.service.quarantine import isolate_errors, log_error
from tenuto.store.definitions import schedules

log = Log("tenuto.scheduler")


class Scheduler:
    """One scheduler. ``loop`` runs its cycles in the background."""

    def __init__(
        self, database: Database, name: str, poll_seconds: float, write_health_file: Callable[[], None]
    ) -> None:
        self._database = database
        self._name = name
        self._poll_seconds = poll_seconds
        self._write_health_file = write_health_file
        self._maintained_at: float | None = None
        self._quarantine = firing.new_quarantine()
        self._queued_run_quarantine = firing.new_quarantine()
        """Schedules with a queued run that cannot be started; the schedule itself may be fine."""
        self.loop = PollingLoop("tenuto-scheduler", self.run_cycle, log, database=database, notifications={"schedules"})
        self.fired_count = 0
        """Number of schedules fired since the start."""

    async def run_cycle(self) -> float:
        """Run one cycle; return the seconds until the next one.

        Firing comes before the computation of missing next runs, so that no due instant is skipped. A stage that fails
        does not prevent the others.
        """
        self._write_health_file()
        database = self._database
        if self._is_maintenance_due():
            self._quarantine.release_all()
            self._queued_run_quarantine.release_all()
        now, errors = database.clock.now(), list[Exception]()
        with _stage("fire due schedules", errors):
            await self._fire(now)
        with _stage("start queued runs", errors):
            await firing.start_queued_runs(database, now, self._name, self._queued_run_quarantine)
        with _stage("compute missing next runs", errors):
            await firing.compute_missing_next_runs(database, now, self._quarantine)
        if self._is_maintenance_due():
            with _stage("repair stuck executions", errors):
                await repair_stuck_executions(database, now)
            with _stage("recover lost tasks", errors):
                await recover_lost_tasks(database, now)
            self._maintained_at = monotonic_seconds()
        if errors:
            raise errors[0]  # the rows are still due; the loop repeats the cycle after a pause
        next_due_at = await schedules.load_next_due_at(database, self._quarantine.rows)
        return seconds_until_due(database, next_due_at, now, self._poll_seconds)

    async def _fire(self, now: datetime) -> None:
        report = process_metrics.record_fired
        fired_count = await firing.fire_due_schedules(self._database, now, self._name, self._quarantine, report)
        if fired_count:
            self.fired_count += fired_count
            log.debug("schedules fired", schedules=fired_count)

    def _is_maintenance_due(self) -> bool:
        return self._maintained_at is None or monotonic_seconds() - self._maintained_at >= self._poll_seconds


@contextmanager
def _stage(name: str, errors: list[Exception]) -> Iterator[None]:
    """Isolate and collect the errors of one stage of a cycle."""

    def collect(error: Exception) -> None:
        log_error(log, "cycle stage failed", stage=name)(error)
        errors.append(error)

    with isolate_errors(collect):
        yield
