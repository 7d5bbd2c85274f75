"""Service processes: the services that run in a worker, scheduler or web process, from start to shutdown.

Each role has a list of services, of the core and of extensions. Every process runs the recovery sweep and housekeeping,
so any mix and number of processes is sufficient.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from functools import partial
from math import inf
from typing import Protocol

from tenuto.audit.sealer import AuditSealer
from tenuto.clock import monotonic_seconds
from tenuto.errors import Conflict, SchemaBehind, StoreError, TenutoError, Unavailable
from tenuto.extension.registry import ExtensionRegistry
from tenuto.jobs.registry import JobRegistry
from tenuto.logs import Log
from tenuto.maintenance.activity_rollups import ActivityRollups
from tenuto.maintenance.housekeeping import RETENTION, Housekeeping
from tenuto.maintenance.recovery import recover_lost_tasks
from tenuto.observability.probe_server import ProbeServer
from tenuto.observability.process_metrics import process_metrics
from tenuto.observability.status import InstallationStatus
from tenuto.postgres.database import Database
from tenuto.postgres.servers.server_addresses import describe_address
from tenuto.postgres.servers.server_selection import ConnectionCheck
from tenuto.scheduling import firing
from tenuto.scheduling.manifest_manager import ManifestManager
from tenuto.scheduling.scheduler import Scheduler
from tenuto.service.health_file import HealthFile
from tenuto.service.lost_commit_watch import HistoryWatch
from tenuto.service.polling_loop import PollingLoop, retry_until_database_answers
from tenuto.service.process_identity import ProcessIdentity, register_process
from tenuto.service.service_protocol import ProcessRole, Service, run_services
from tenuto.service.signals import ShutdownSignals
from tenuto.settings import Settings, WorkerSettings, load_worker_settings
from tenuto.store.partitions import configured_period
from tenuto.store.work import workers
from tenuto.store.work.workers import Declarations
from tenuto.worker.attempt_log_writer import AttemptLogWriter
from tenuto.worker.executors import ExecutorFactory
from tenuto.worker.executors.native import NativeExecutor
from tenuto.worker.watchdog import DEFAULT_TIMING, WorkerTiming
from tenuto.worker.worker import Worker

_DATABASE_RETRY_SECONDS = 2.0
_DATABASE_REPORT_SECONDS = 30.0
"""Interval of the log lines while a service waits for its database."""
_SILENT_CONNECT_SECONDS = 2.0
"""After this time without an answer, a service says which server it waits for."""

log = Log("tenuto.service")

Connect = Callable[[], Awaitable[Database]]


class ConnectForServices(Protocol):
    """Opens the database of the services of a process."""

    def __call__(self, *, check_connection: ConnectionCheck | None = None) -> Awaitable[Database]:
        """``check_connection`` checks every new connection of the process, from the first one on."""
        ...


async def run_worker(
    connect: ConnectForServices,
    jobs: JobRegistry,
    settings: Settings,
    worker_settings: WorkerSettings,
    extensions: ExtensionRegistry,
    executor: ExecutorFactory = NativeExecutor,
    declarations: Declarations | None = None,
) -> None:
    """Run a worker process until a signal; raise an error if another process ends its registration."""
    identity = ProcessIdentity.acquire("worker", settings.home, worker_settings.name)
    identity.declarations = declarations
    async with _service_process(
        connect, settings, extensions, identity, grace_seconds=worker_settings.grace_seconds
    ) as process:
        if process.database is None:
            return
        worker = Worker(
            process.database,
            jobs,
            identity,
            worker_settings,
            write_health_file=process.health_files["worker"].write,
            executor=executor,
            partition_period=configured_period(settings),
        )
        process.signals.set_handlers(worker.stop, worker.stop_now)
        async with run_services(worker_services(process.database, settings, extensions, identity)):
            await worker.run()


async def run_scheduler(
    connect: ConnectForServices,
    settings: Settings,
    extensions: ExtensionRegistry,
    *,
    name: str | None = None,
    declarations: Declarations | None = None,
) -> None:
    """Run a scheduler process until a signal; raise an error if another process takes its name."""
    identity = ProcessIdentity.acquire("scheduler", settings.home, name)
    identity.declarations = declarations
    async with _service_process(connect, settings, extensions, identity) as process:
        if process.database is None:
            return
        stopped = asyncio.Event()
        process.signals.set_handlers(stopped.set, stopped.set)
        services = scheduler_services(
            process.database,
            settings,
            extensions,
            identity,
            process.health_files["scheduler"].write,
            stop_with_error=process.stop_with_error,
            is_stopped=stopped.is_set,
        )
        async with run_services(services, stopped.is_set):
            await stopped.wait()


async def run_web(
    connect: ConnectForServices,
    settings: Settings,
    extensions: ExtensionRegistry,
    identity: ProcessIdentity,
    serve: Callable[[asyncio.Event, HealthFile], Awaitable[None]],
) -> None:
    """Run a web process until a signal; ``serve`` receives the stop event and the health file."""
    async with _service_process(connect, settings, extensions, identity) as process:
        if process.database is None:
            return
        stopped = asyncio.Event()
        process.signals.set_handlers(stopped.set, stopped.set)
        async with run_services(maintenance_services(process.database, settings, extensions, identity)):
            await serve(stopped, process.health_files[identity.service])


async def run_all(
    connect: ConnectForServices,
    jobs: JobRegistry,
    settings: Settings,
    worker_settings: WorkerSettings,
    extensions: ExtensionRegistry,
    ready: Callable[[Worker], None],
    executor: ExecutorFactory = NativeExecutor,
    extra_service: Callable[[], AbstractAsyncContextManager[object]] = contextlib.nullcontext,
    declarations: Declarations | None = None,
) -> None:
    """Run a scheduler, a worker and ``extra_service`` in one process until a signal or until one of them fails."""
    identity = ProcessIdentity.acquire("worker", settings.home, worker_settings.name)
    identity.declarations = declarations
    try:
        scheduler = ProcessIdentity.acquire("scheduler", settings.home)
        scheduler.declarations = declarations
    except BaseException:
        identity.release()
        raise
    async with _service_process(
        connect, settings, extensions, identity, scheduler, grace_seconds=worker_settings.grace_seconds
    ) as process:
        if process.database is None:
            return
        worker = Worker(
            process.database,
            jobs,
            identity,
            worker_settings,
            write_health_file=process.health_files["worker"].write,
            executor=executor,
            partition_period=configured_period(settings),
        )
        process.signals.set_handlers(worker.stop, worker.stop_now)
        services = scheduler_services(
            process.database,
            settings,
            extensions,
            scheduler,
            process.health_files["scheduler"].write,
            identity,
            stop_with_error=process.stop_with_error,
            is_stopped=lambda: worker.stopping,
        )
        services += [AttemptLogWriter(settings), *extensions.background_services(ProcessRole.WORKER)]
        async with run_services(services, lambda: worker.stopping), extra_service():
            ready(worker)
            await worker.run()


@asynccontextmanager
async def background_worker(
    connect: ConnectForServices,
    jobs: JobRegistry,
    settings: Settings,
    worker_settings: WorkerSettings,
    extensions: ExtensionRegistry,
    executor: ExecutorFactory = NativeExecutor,
    timing: WorkerTiming = DEFAULT_TIMING,
    declarations: Declarations | None = None,
) -> AsyncIterator[Worker]:
    """Run a worker within the caller's event loop for the duration of the block."""
    process_metrics.set_max_names(settings.metrics_max_names)
    database = await connect()
    try:
        identity = ProcessIdentity.acquire("worker", settings.home, worker_settings.name)
        identity.declarations = declarations
        try:
            worker = Worker(
                database,
                jobs,
                identity,
                worker_settings,
                executor=executor,
                timing=timing,
                partition_period=configured_period(settings),
            )
            async with run_services(worker_services(database, settings, extensions, identity)):
                running = asyncio.create_task(worker.run())
                try:
                    await worker.wait_until_ready(running)
                    yield worker
                finally:
                    worker.stop()
                    await running
        finally:
            identity.release()
    finally:
        await database.close()


@asynccontextmanager
async def background_scheduler(
    connect: ConnectForServices,
    settings: Settings,
    extensions: ExtensionRegistry,
    name: str | None,
    declarations: Declarations | None = None,
) -> AsyncIterator[None]:
    """Run a scheduler within the caller's event loop for the duration of the block."""
    process_metrics.set_max_names(settings.metrics_max_names)
    errors: list[TenutoError] = []
    database = await connect()
    try:
        identity = ProcessIdentity.acquire("scheduler", settings.home, name)
        identity.declarations = declarations
        try:
            services = scheduler_services(
                database, settings, extensions, identity, lambda: None, stop_with_error=errors.append
            )
            async with run_services(services):
                yield
        finally:
            identity.release()
    finally:
        await database.close()
    if errors:
        raise errors[0]


def maintenance_services(
    database: Database, settings: Settings, extensions: ExtensionRegistry, *identities: ProcessIdentity
) -> list[Service]:
    """Return the services of every process: recovery sweep and housekeeping. ``identities`` are its own."""

    async def sweep() -> float:
        await recover_lost_tasks(database, database.clock.now())
        # Random, so that many processes do not sweep at the same time.
        return settings.sweep_seconds * random.uniform(0.7, 1.3)

    housekeeping = Housekeeping(
        database,
        database.clock,
        settings,
        identities,
        retention=[*RETENTION, *extensions.retention()],
        tables=extensions.partitioned_tables(),
    )
    housekeeping_delay = min(10.0, settings.housekeeping_seconds) * random.uniform(0.5, 1.0)
    return [
        PollingLoop("tenuto-sweeper", sweep, log, delay_seconds=min(1.0, settings.sweep_seconds)),
        PollingLoop("tenuto-housekeeping", housekeeping.run_cycle, log, delay_seconds=housekeeping_delay),
    ]


def worker_services(
    database: Database, settings: Settings, extensions: ExtensionRegistry, *identities: ProcessIdentity
) -> list[Service]:
    """Return the services of a worker process besides the worker itself."""
    quarantine = firing.new_quarantine()

    async def start_queued_runs() -> float:
        # A scheduler starts them at once. Without one, a run that a caller asked for must not wait for ever.
        await firing.start_queued_runs(database, database.clock.now(), identities[0].name, quarantine)
        return settings.sweep_seconds * random.uniform(0.7, 1.3)

    return [
        AttemptLogWriter(settings),
        *maintenance_services(database, settings, extensions, *identities),
        PollingLoop("tenuto-queued-runs", start_queued_runs, log, delay_seconds=min(1.0, settings.sweep_seconds)),
        *extensions.background_services(ProcessRole.WORKER),
    ]


def scheduler_services(
    database: Database,
    settings: Settings,
    extensions: ExtensionRegistry,
    identity: ProcessIdentity,
    write_health_file: Callable[[], None],
    *others: ProcessIdentity,
    stop_with_error: Callable[[TenutoError], None],
    is_stopped: Callable[[], bool] = lambda: False,
) -> list[Service]:
    """Return the services of a scheduler process; ``others`` are further services of this process."""
    poll_seconds = settings.scheduler_poll_seconds
    return [
        SchedulerRegistration(database, identity, poll_seconds, write_health_file, stop_with_error, is_stopped),
        *maintenance_services(database, settings, extensions, identity, *others),
        Scheduler(database, identity.name, poll_seconds, write_health_file).loop,
        ManifestManager(database, identity.name, poll_seconds).loop,
        AuditSealer(database, settings).loop,
        ActivityRollups(database).loop,
        *extensions.background_services(ProcessRole.SCHEDULER),
    ]


class SchedulerRegistration:
    """A service that registers a scheduler while it runs, and sends its heartbeats."""

    name = "tenuto-register"

    def __init__(
        self,
        database: Database,
        identity: ProcessIdentity,
        poll_seconds: float,
        write_health_file: Callable[[], None],
        stop_with_error: Callable[[TenutoError], None],
        is_stopped: Callable[[], bool],
    ) -> None:
        """The registration waits for the database until ``is_stopped``."""
        self._database = database
        self._identity = identity
        self._interval_seconds = min(poll_seconds, 10.0)
        self._write_health_file = write_health_file
        self._stop_with_error = stop_with_error
        self._is_stopped = is_stopped
        self._reserved_for = timedelta(seconds=load_worker_settings().lease_seconds) * 4
        self._heartbeats = PollingLoop(self.name, self._send_heartbeat, log)
        self._is_registered = False

    @property
    def is_ready(self) -> bool:
        return self._is_registered and self._heartbeats.is_ready

    async def start(self) -> None:
        if await retry_until_database_answers(self._register, self._is_stopped, log):
            self._is_registered = True
            await self._heartbeats.start()
            log.info("scheduler started", name=self._identity.name)

    async def stop(self) -> None:
        if self._is_registered:
            await self._heartbeats.stop()
            with contextlib.suppress(StoreError):
                await workers.deregister_process(self._database, self._identity.id)
            log.info("scheduler stopped", name=self._identity.name)

    async def _register(self) -> None:
        await register_process(
            self._database,
            self._identity,
            [],
            0,
            reserved_for=self._reserved_for,
            heartbeat_seconds=self._interval_seconds,
        )

    async def _send_heartbeat(self) -> float:
        self._write_health_file()
        requested_at = monotonic_seconds()
        now = await workers.record_heartbeat(self._database, self._identity.id)
        if now is not None:
            self._database.clock.synchronize(now, requested_at)
        else:  # a scheduler holds no tasks, so nothing is lost; it registers again, unless its name is taken by now
            log.warning("registration expired by another process; registering again", name=self._identity.name)
            self._identity.renew_id()
            try:
                await self._register()
            except Conflict as error:
                self._stop_with_error(error)
        return self._interval_seconds


async def wait_for_database(connect: Connect, settings: Settings, write_health_file: Callable[[], None]) -> Database:
    """Connect; wait for a database that is not reachable or not migrated yet.

    The first failure is logged at once, further ones at an interval that the log line states.
    """
    server = "the embedded server" if settings.database is None else describe_address(settings.database)
    fields = {"server": server, "retry_seconds": _DATABASE_RETRY_SECONDS, "report_seconds": _DATABASE_REPORT_SECONDS}
    started_at, reported_at = monotonic_seconds(), -inf
    while True:
        write_health_file()
        connecting = asyncio.ensure_future(connect())
        try:
            answered, _ = await asyncio.wait([connecting], timeout=_SILENT_CONNECT_SECONDS)
            # An embedded server may have to be created first, which takes some seconds.
            if not answered and reported_at == -inf and settings.database is not None:
                log.warning("connection postponed", error="no answer yet", **fields)
                reported_at = monotonic_seconds()
            database = await connecting
            if reported_at != -inf:
                log.info("database connected", server=server, waited_seconds=round(monotonic_seconds() - started_at, 1))
            return database
        except StoreError as error:
            if not isinstance(error, Unavailable | SchemaBehind):  # another schema mismatch does not go away
                raise
            if monotonic_seconds() - reported_at >= _DATABASE_REPORT_SECONDS:
                log.warning("connection postponed", error=str(error), **fields)
                reported_at = monotonic_seconds()
        finally:
            connecting.cancel()
        await asyncio.sleep(_DATABASE_RETRY_SECONDS)


async def _connect_and_watch(connect: ConnectForServices, history: HistoryWatch) -> Database:
    """Connect, and refuse a server that lacks what an earlier process of this name has seen, unless it was promoted."""
    await history.recall()
    database = await connect(check_connection=history.check_connection)
    try:
        await history.begin(database)
    except BaseException:
        await database.close()
        raise
    return database


class ServiceProcess:
    """Signals, health files and database of a service process; no database if a signal came before the connection."""

    def __init__(self, settings: Settings, identities: Sequence[ProcessIdentity], grace_seconds: float) -> None:
        self.database: Database | None = None
        self.signals = ShutdownSignals(grace_seconds)
        self.error: TenutoError | None = None
        self.health_files = {
            one.service: HealthFile(settings.home, one.service, _name_getter(one)) for one in identities
        }

    async def require_database(self) -> Database:
        """Return the database, or raise `Unavailable` before it is connected."""
        if self.database is None:
            raise Unavailable("the database is not connected", code="database.not_connected")
        return self.database

    def write_health_files(self) -> None:
        for file in self.health_files.values():
            file.write()

    def stop_with_error(self, error: TenutoError) -> None:
        """Shut down in order; the process then raises the error."""
        self.error = self.error or error
        self.signals.stop()


def _name_getter(identity: ProcessIdentity) -> Callable[[], str]:
    return lambda: identity.name


@asynccontextmanager
async def _service_process(
    connect: ConnectForServices,
    settings: Settings,
    extensions: ExtensionRegistry,
    *identities: ProcessIdentity,
    grace_seconds: float = 0.0,
) -> AsyncIterator[ServiceProcess]:
    """Handle signals and wait for the database, then run the block."""
    process = ServiceProcess(settings, identities, grace_seconds)
    process_metrics.set_max_names(settings.metrics_max_names)
    try:
        with process.signals:
            status = InstallationStatus(process.require_database, lambda: settings, extensions)
            async with run_services([ProbeServer(settings, status)]):
                history = HistoryWatch(settings.home, identities[0])
                process.database = await process.signals.run_unless_stopped(
                    wait_for_database(
                        partial(_connect_and_watch, connect, history), settings, process.write_health_files
                    )
                )
                try:
                    async with run_services([] if process.database is None else [history.loop]):
                        yield process
                finally:
                    database, process.database = process.database, None
                    if database is not None:
                        database.gate.check = None  # the app may go on after its services
                        await database.close()
        if process.error is not None:
            raise process.error
    finally:
        for file in process.health_files.values():
            file.remove()
        for one in identities:
            one.release()
