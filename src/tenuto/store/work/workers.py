"""Rows of the service processes (workers, schedulers, …), queues and repair counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated
from uuid import UUID

from tenuto.errors import Conflict
from tenuto.model.work.known_handlers import KnownHandlers
from tenuto.model.work.worker_states import WorkerState
from tenuto.postgres.database import UNIQUE_VIOLATION, Connection, Database, DatabaseError, Row
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import FromInterval, FromJson, RowMapper

SQL = load_statements(__file__)


@dataclass(frozen=True, slots=True)
class ProcessRegistration:
    """One process of a named service; every start has a new id."""

    id: UUID
    name: str
    service: str
    host: str
    boot: str
    pid: int
    version: str
    queues: list[str]
    slots: int
    silence_limit: timedelta = timedelta(minutes=2)
    """How long it may be silent before it counts as dead."""
    handlers: KnownHandlers | None = None
    """The jobs and step kinds that a worker knows."""


@dataclass(frozen=True, slots=True)
class Declarations:
    """Names of the schedules and external ids of the manifests that an app declares in code."""

    schedules: Sequence[str]
    manifests: Sequence[str]


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A registered process and the number of tasks that it holds."""

    id: UUID
    name: str
    service: str
    host: str
    boot: str
    pid: int
    version: str
    queues: Sequence[str]
    slots: int
    started_at: datetime
    seen_at: datetime
    draining_at: datetime | None
    ended_at: datetime | None
    silent_seconds: Annotated[float, FromInterval]
    """Time since the last heartbeat."""
    running_count: int
    state: WorkerState
    jobs: Annotated[Mapping[str, str | None] | None, FromJson] = None
    """The jobs that it knows, with their versions."""
    kinds: Annotated[Mapping[str, str | None] | None, FromJson] = None
    """The step kinds that it knows, with their versions."""
    drained_by: str | None = None
    """Who asked it to claim no more tasks; None if it drains because it shuts down."""
    drain_reason: str | None = None
    recovered_at: datetime | None = None
    """When all its tasks are recovered, unless it sends a heartbeat; None if it holds none."""


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """A queue that has settings or open tasks."""

    name: str
    max_running: int | None = None
    paused_at: datetime | None = None
    paused_by: str | None = None
    reason: str | None = None
    """Reason of the pause."""
    queued_count: int = 0
    scheduled_count: int = 0
    running_count: int = 0
    oldest_due_at: datetime | None = None
    """When the oldest queued task became due."""
    worker_count: int = 0
    """Number of live workers that serve the queue."""
    unknown_jobs: Sequence[str] = ()
    """Jobs and step kinds with due tasks that no live worker of the queue knows."""
    rate_limit: str | None = None
    """Maximum number of starts, such as ``100/m``."""


@dataclass(frozen=True, slots=True)
class RepairRecord:
    """Number of repairs of one kind."""

    repair: str
    count: int
    last_at: datetime


_WORKERS = RowMapper(WorkerRecord, SQL.list_workers)
_QUEUES = RowMapper(QueueRecord, SQL.list_queues)
_REPAIRS = RowMapper(RepairRecord, SQL.list_repairs)


async def register_process(
    database: Database, registration: ProcessRegistration, *, holds_name_lock: bool, reserved_for: timedelta
) -> UUID | None:
    """Register a process; return the previous process of this name if its end is proven only now: its tasks can be
    recovered at once.

    Proof is that this process holds the lock of the name in the same home directory, whatever the host is called now,
    or that the host has booted since.
    Without proof, the previous process counts as ended if it was silent for ``reserved_for`` and has no live lease.
    Otherwise the name is in use.
    """

    async def insert(connection: Connection) -> UUID | None:
        before = await connection.fetchrow(SQL.lock_live_process_by_name, registration.service, registration.name)
        proven = False
        if before is not None and before["id"] != registration.id:
            host, _, lock_folder = registration.host.rpartition("#")
            host_before, _, lock_folder_before = before["host"].rpartition("#")
            is_same_boot = before["boot"] == registration.boot
            # guard: workers.name_lock_on_same_host
            proven = (lock_folder == lock_folder_before and is_same_boot and holds_name_lock) or (
                host == host_before
                and lock_folder.partition("@")[0] == lock_folder_before.partition("@")[0]
                and not is_same_boot
            )
            # guard: workers.name_reserved_by_lease
            if not proven and (before["silent_for"] < reserved_for or before["leased_for"] is not None):
                raise _name_in_use_error(registration, before, reserved_for)
            await connection.execute(SQL.mark_proven_ended if proven else SQL.mark_silent_ended, before["id"])
        await connection.execute(
            SQL.register_process,
            registration.id,
            registration.name,
            registration.service,
            registration.host,
            registration.boot,
            registration.pid,
            registration.version,
            registration.queues,
            registration.slots,
            registration.silence_limit,
            None if registration.handlers is None else registration.handlers.jobs_json,
            None if registration.handlers is None else registration.handlers.kinds_json,
        )
        return before["id"] if before is not None and proven else None  # guard: workers.silence_is_no_proof

    try:
        return await database.transaction(insert)
    except DatabaseError as error:
        if error.sqlstate == UNIQUE_VIOLATION:  # a process with this name registered in between
            return await database.transaction(insert)
        raise


def _name_in_use_error(new: ProcessRegistration, other: Row, reserved_for: timedelta) -> Conflict:
    place = f"{other['host'].partition('#')[0]} (pid {other['pid']})"
    if other["silent_for"] < reserved_for:
        problem = f"a {new.service} named {new.name} is running on {place}"
        free = f"{reserved_for.total_seconds():.0f} s after its last heartbeat, unless its leases run longer"
    else:
        left = other["leased_for"].total_seconds()
        problem = f"the {new.service} {new.name} on {place} is silent, but holds leases for another {left:.0f} s"
        free = "when they have expired"
    remedy = f"use another name (--name); if that process is dead, its name becomes free {free}"
    return Conflict(problem, code="process.name.taken", field="name", remedy=remedy)


async def record_declarations(database: Database, worker_id: UUID, declarations: Declarations) -> None:
    """Record what the app of a process declares in code."""
    await database.write_all(
        SQL.record_declarations, worker_id, list(declarations.schedules), list(declarations.manifests)
    )


async def deregister_process(database: Database, worker_id: UUID) -> None:
    """Mark a process as ended."""
    await database.write_all(SQL.mark_ended, worker_id)


async def update_handlers(database: Database, worker_id: UUID, handlers: KnownHandlers) -> None:
    """Store the jobs and step kinds that a worker knows by now."""
    await database.write_all(SQL.update_handlers, worker_id, handlers.jobs_json, handlers.kinds_json)


async def update_slots(database: Database, worker_id: UUID, slots: int) -> None:
    """Store how many attempts a worker can run at the same time by now."""
    await database.write_all(SQL.update_slots, worker_id, slots)


async def mark_draining(database: Database, worker_id: UUID) -> None:
    """Record that a worker claims no more tasks."""
    await database.write_all(SQL.mark_draining, worker_id)


async def record_heartbeat(database: Database, worker_id: UUID) -> datetime | None:
    """Store a heartbeat and return the database's time; None if another process marked this one as ended."""
    now: datetime | None = await database.write_value(SQL.record_heartbeat, worker_id)
    return now


async def drain_worker(connection: Connection, name: str, *, by: str, reason: str | None) -> bool:
    """Ask a live worker to claim no more tasks; return False if it drains already or does not exist."""
    return bool(await connection.fetch(SQL.drain_worker, name, by, reason))


async def resume_worker(connection: Connection, name: str) -> bool:
    """Let a drained worker claim tasks again; return False if no operator has drained it."""
    return bool(await connection.fetch(SQL.resume_worker, name))


async def is_draining(database: Database, worker_id: UUID) -> bool:
    """Return whether a process must claim no more tasks."""
    return bool(await database.fetch_value(SQL.is_draining, worker_id))


async def has_live_worker(connection: Connection, name: str) -> bool:
    """Return whether a live worker has this name."""
    return bool(await connection.fetchval(SQL.has_live_worker, name))


async def find_ended_holders(database: Database, limit: int = 100) -> list[UUID]:
    """Return ended (not only silent) workers that still hold tasks."""
    return [row["id"] for row in await database.fetch_all(SQL.find_ended_holders, limit)]


async def end_silent_processes(database: Database, silence_limit: timedelta, own_ids: Sequence[UUID] = ()) -> int:
    """Mark silent processes that hold nothing as ended, except the caller's own; return their number."""
    return len(await database.write_all(SQL.end_silent_processes, silence_limit, list(own_ids)))


async def delete_ended_processes(database: Database, before: datetime) -> None:
    await database.write_all(SQL.delete_ended_processes, before)


async def list_workers(database: Database, *, ended: bool = False, limit: int = 200) -> list[WorkerRecord]:
    """Return processes, newest first."""
    return _WORKERS.all(await database.fetch_all(SQL.list_workers, ended, limit))


async def count_repair(connection: Connection, repair: str, count: int) -> None:
    """Count repairs; in normal operation there are none."""
    await connection.execute(SQL.count_repair, repair, count)


async def list_repairs(database: Database) -> list[RepairRecord]:
    """Return the number of repairs of each kind."""
    return _REPAIRS.all(await database.fetch_all(SQL.list_repairs))


async def limit_queue(connection: Connection, name: str, max_running: int | None) -> bool:
    """Set the limit of a queue; return False if that changes nothing."""
    return await connection.fetchrow(SQL.limit_queue, name, max_running) is not None


async def limit_queue_rate(connection: Connection, name: str, rate_limit: str | None) -> bool:
    """Set the rate limit of a queue; return False if that changes nothing."""
    return await connection.fetchrow(SQL.limit_queue_rate, name, rate_limit) is not None


async def delete_unused_buckets(database: Database) -> int:
    """Delete the buckets of rate limits that have not been used for hours; return their number."""
    return len(await database.write_all(SQL.delete_unused_buckets))


async def pause_queue(connection: Connection, name: str, *, by: str, reason: str | None) -> bool:
    """Pause a queue; return False if it is paused."""
    return await connection.fetchrow(SQL.pause_queue, name, by, reason) is not None


async def resume_queue(connection: Connection, name: str) -> bool:
    """Resume a queue; return False if it is not paused."""
    return await connection.fetchrow(SQL.resume_queue, name) is not None


async def list_queues(database: Database, limit: int = 200) -> list[QueueRecord]:
    """Return all queues that have settings or open tasks."""
    return _QUEUES.all(await database.fetch_all(SQL.list_queues, limit))
