"""Housekeeping: create partitions ahead of time, end silent processes and delete records past their retention.

Any number of processes may do this concurrently.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from tenuto.clock import Clock
from tenuto.extension import Retention
from tenuto.logs import Log
from tenuto.postgres.database import Database, LockTimeout, StatementTimeout
from tenuto.service.process_identity import ProcessIdentity
from tenuto.service.quarantine import isolate_errors, log_error
from tenuto.settings import Settings
from tenuto.store import database_history, partitions
from tenuto.store.access import api_keys, idempotency_keys, invitations
from tenuto.store.definitions import manifests, schedules
from tenuto.store.partitions import PartitionedTable
from tenuto.store.work import batches, dead_letters, executions, live_logs, rollups, step_checkpoints, workers

SILENT_WORKER_AFTER = timedelta(minutes=5)
"""A process without a heartbeat for this long that holds no task is ended."""

DeleteOldRows = Callable[[Database, datetime, int], Awaitable[int]]
"""Deletes up to so many closed records that are older than the cutoff."""
RETENTION = (
    Retention("executions", executions.delete_old_executions),
    Retention("occurrences", schedules.delete_old_ledger_entries),
    Retention("step checkpoints", step_checkpoints.delete_orphaned_checkpoints),
    Retention("dead letters", dead_letters.delete_resolved_dead_letters),
    Retention("batches", batches.delete_old_batches),
    Retention("polls", manifests.delete_old_polls),
    Retention("activity rollups", rollups.delete_old_hours),
    Retention("sessions", api_keys.delete_old_sessions),
    Retention("invitations", invitations.delete_old_invitations),
    Retention("requests", idempotency_keys.delete_old_requests),
)
"""The records of the core."""

log = Log("tenuto.housekeeping")


class Housekeeping:
    """Housekeeping of one process; ``own`` are the services of this process."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        settings: Settings,
        own: Sequence[ProcessIdentity] = (),
        *,
        retention: Sequence[Retention] = RETENTION,
        tables: Sequence[PartitionedTable] = (),
        batch_size: int = 1000,
        max_batches_per_cycle: int = 50,
    ) -> None:
        self._database = database
        self._batch_size = batch_size
        self._max_batches_per_cycle = max_batches_per_cycle
        self._own = own
        self._retention = retention
        self._tables = tables
        self._clock = clock
        self._settings = settings
        self._retention_applied_at: datetime | None = None
        self._failures: dict[str, str] = {}
        """Kinds of records that could not be deleted in the last cycle, with the error."""
        self._retaining_execution_id: UUID | None = None
        """The open execution for which activities are kept beyond their retention."""

    async def run_cycle(self) -> float:
        """Run one cycle; return the seconds until the next one."""
        now = self._clock.now()
        period = partitions.configured_period(self._settings)
        await partitions.ensure_partitions(self._database, now, period)  # guard: housekeeping.partitions
        for table in self._tables:
            with self._isolate(f"partitions of {table.name}", self._failures):
                await partitions.ensure_partitions_of_table(self._database, table, now, period)
        # Except the services of this process: after a suspension this cycle may run before their next heartbeats.
        # guard: housekeeping.own_services
        await workers.end_silent_processes(self._database, SILENT_WORKER_AFTER, [one.id for one in self._own])
        await live_logs.remove_abandoned(self._database)
        await workers.delete_unused_buckets(self._database)
        interval = timedelta(seconds=self._settings.retention_interval_seconds)
        if self._retention_applied_at is None or now - self._retention_applied_at >= interval:
            if not await self.apply_retention(now):
                return 1.0  # more rows are left
            if not self._failures:  # else repeat in the next cycle
                self._retention_applied_at = now
        return self._settings.housekeeping_seconds

    async def apply_retention(self, now: datetime) -> bool:
        """Delete records past their retention, each kind separately; return False if some are left."""
        cutoff = now - timedelta(days=self._settings.retention_days)  # guard: housekeeping.retention_setting
        earlier_failures, self._failures = self._failures, {}
        completed = []
        with self._isolate("activities", earlier_failures):
            activity_cutoff = await self._activity_cutoff(cutoff)  # guard: retention.records_of_open_executions
            for name in await partitions.drop_old_partitions(
                self._database, activity_cutoff, lambda name: self._isolate(f"partition {name}", earlier_failures)
            ):
                log.info("partition dropped", partition=name)
            completed.append(await self._delete_all(partitions.delete_old_default_rows, activity_cutoff))
        with self._isolate("processes", earlier_failures):
            await workers.delete_ended_processes(self._database, cutoff)
            await database_history.delete_old_marks(self._database, now)
            await database_history.delete_old_losses(self._database, cutoff)
        for each in self._retention:
            with self._isolate(each.name, earlier_failures):
                own_cutoff = cutoff if each.cutoff is None else each.cutoff(now, self._settings)
                completed.append(await self._delete_all(each.delete_batch, own_cutoff))
        for table in self._tables:
            with self._isolate(f"partitions of {table.name}", earlier_failures):
                own_cutoff = cutoff if table.cutoff is None else table.cutoff(now, self._settings)
                for name in await partitions.drop_old_partitions_of_table(self._database, table, own_cutoff):
                    log.info("partition dropped", partition=name)
                delete_default_rows = partial(partitions.delete_old_default_rows_of_table, table=table)
                completed.append(await self._delete_all(delete_default_rows, own_cutoff))
        return all(completed)  # guard: housekeeping.next_round

    async def _activity_cutoff(self, cutoff: datetime) -> datetime:
        """Return the cutoff for activities: not after the start of the oldest open execution.

        An open execution still reads the outcomes of its steps, and a step those of the run that it has started.
        """
        oldest = await executions.load_oldest_open_execution(self._database)
        activity_cutoff: datetime = cutoff if oldest is None else min(cutoff, oldest.started_at)
        earlier_id, self._retaining_execution_id = self._retaining_execution_id, None
        if oldest is not None and activity_cutoff < cutoff:
            self._retaining_execution_id = oldest.id
            if earlier_id != oldest.id:
                log.warning(
                    "activities retained for open execution",
                    execution_id=str(oldest.id),
                    schedule=oldest.schedule_name,
                    since=activity_cutoff.isoformat(),
                )
        return activity_cutoff

    @contextmanager
    def _isolate(self, kind: str, earlier_failures: Mapping[str, str]) -> Iterator[None]:
        """Isolate the errors of one kind of record; log each error once and leave the records for the next cycle."""

        def note(log_failure: Callable[[Exception], None], error: Exception) -> None:
            self._failures[kind] = str(error)
            if earlier_failures.get(kind) != str(error):
                log_failure(error)

        try:
            with isolate_errors(partial(note, log_error(log, "deletion failed", kind=kind))):
                yield
        except (LockTimeout, StatementTimeout) as error:  # the database is reachable, but these rows are busy
            note(lambda error: log.warning("deletion postponed", kind=kind, error=str(error)), error)

    async def _delete_all(self, delete_old_rows: DeleteOldRows, cutoff: datetime) -> bool:
        for _ in range(self._max_batches_per_cycle):  # guard: housekeeping.short_round
            if await delete_old_rows(self._database, cutoff, self._batch_size) < self._batch_size:
                return True
        return False
