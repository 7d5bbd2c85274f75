"""Services: which loops run in this process, from start to stop.

A worker service takes and runs tasks; a scheduler service watches over them. Both carry the nets (sweep) and keep the
house, so that either alone is enough and any number of each may run. The first signal asks for an orderly leave, the
second for an immediate one (see `service.signals`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta

from tenuto.audit.sealer import Sealing
from tenuto.clock import steady
from tenuto.errors import Conflict, SchemaBehind, StoreError, TenutoError, Unavailable
from tenuto.jobs.registry import Jobs
from tenuto.logs import Log
from tenuto.maintenance.housekeeping import Housekeeping
from tenuto.maintenance.recovery import sweep
from tenuto.observability.probe_server import lookout
from tenuto.observability.status import Observing
from tenuto.postgres.database import Database
from tenuto.scheduling.manifest_manager import Managing
from tenuto.scheduling.scheduler import Scheduler
from tenuto.service.health_file import HealthFile
from tenuto.service.polling_loop import Loop, once_the_database_answers
from tenuto.service.process_identity import Identity, enter_register
from tenuto.service.signals import Signals
from tenuto.settings import Settings, WorkerSettings, load_worker
from tenuto.store import workers
from tenuto.worker.executors import MakeServer
from tenuto.worker.executors.native import Native
from tenuto.worker.worker import Worker

_READY_RETRY_SECONDS = 2.0

log = Log("tenuto.service")

Connect = Callable[[], Awaitable[Database]]


async def run_worker(
    connect: Connect, jobs: Jobs, settings: Settings, given: WorkerSettings, server: MakeServer = Native
) -> None:
    """A worker process: until a signal; with an error if somebody declares it dead."""
    identity = Identity.take("worker", settings.home, given.name)
    async with _process(connect, settings, identity, grace=given.grace_seconds) as process:
        if process.database is None:
            return
        worker = Worker(process.database, jobs, identity, given, beat=process.health["worker"].beat, server=server)
        process.signals.lead_to(worker.stop, worker.stop_now)
        async with nets(process.database, settings, identity):
            await worker.run()


async def run_scheduler(connect: Connect, settings: Settings, *, name: str | None = None) -> None:
    """A scheduler process: until a signal; with an error if somebody else has its name."""
    identity = Identity.take("scheduler", settings.home, name)
    async with _process(connect, settings, identity) as process:
        if process.database is None:
            return
        stopped = asyncio.Event()
        process.signals.lead_to(stopped.set, stopped.set)
        beat = process.health["scheduler"].beat
        async with scheduling(
            process.database, settings, identity, beat, give_up=process.give_up, stopped=stopped.is_set
        ):
            await stopped.wait()


async def run_beside(
    connect: Connect,
    settings: Settings,
    identity: Identity,
    serve: Callable[[asyncio.Event, Callable[[], None]], Awaitable[None]],
) -> None:
    """A process that neither takes tasks nor fires schedules: until a signal. It carries the nets all the same."""
    async with _process(connect, settings, identity) as process:
        if process.database is None:
            return
        stopped = asyncio.Event()
        process.signals.lead_to(stopped.set, stopped.set)
        async with nets(process.database, settings, identity):
            await serve(stopped, process.health[identity.service].beat)


async def run_all(
    connect: Connect,
    jobs: Jobs,
    settings: Settings,
    given: WorkerSettings,
    ready: Callable[[Worker], None],
    beside: Callable[[], AbstractAsyncContextManager[object]] = contextlib.nullcontext,
) -> None:
    """Scheduler and worker in one process, with something beside them: until a signal; with an error if one of them
    cannot go on."""
    identity = Identity.take("worker", settings.home, given.name)
    try:
        scheduler = Identity.take("scheduler", settings.home)
    except BaseException:
        identity.release()
        raise
    async with _process(connect, settings, identity, scheduler, grace=given.grace_seconds) as process:
        if process.database is None:
            return
        worker = Worker(process.database, jobs, identity, given, beat=process.health["worker"].beat)
        process.signals.lead_to(worker.stop, worker.stop_now)
        beat = process.health["scheduler"].beat
        async with (
            scheduling(
                process.database,
                settings,
                scheduler,
                beat,
                identity,
                give_up=process.give_up,
                stopped=lambda: worker.stopping,
            ),
            beside(),
        ):
            ready(worker)
            await worker.run()


@asynccontextmanager
async def worker_beside(
    connect: Connect, jobs: Jobs, settings: Settings, given: WorkerSettings, server: MakeServer = Native
) -> AsyncIterator[Worker]:
    """A worker that runs beside the caller's own code for as long as the block lasts."""
    database = await connect()
    try:
        identity = Identity.take("worker", settings.home, given.name)
        try:
            worker = Worker(database, jobs, identity, given, server=server)
            async with nets(database, settings, identity):
                running = asyncio.create_task(worker.run())
                try:
                    await worker.is_ready(running)
                    yield worker
                finally:
                    worker.stop()
                    await running
        finally:
            identity.release()
    finally:
        await database.close()


@asynccontextmanager
async def scheduler_beside(connect: Connect, settings: Settings, name: str | None) -> AsyncIterator[None]:
    """A scheduler that runs beside the caller's own code for as long as the block lasts."""
    errors: list[TenutoError] = []
    database = await connect()
    try:
        identity = Identity.take("scheduler", settings.home, name)
        try:
            async with scheduling(database, settings, identity, lambda: None, give_up=errors.append):
                yield
        finally:
            identity.release()
    finally:
        await database.close()
    if errors:
        raise errors[0]


@asynccontextmanager
async def scheduling(
    database: Database,
    settings: Settings,
    identity: Identity,
    beat: Callable[[], None],
    *others: Identity,
    give_up: Callable[[TenutoError], None],
    stopped: Callable[[], bool] = lambda: False,
) -> AsyncIterator[None]:
    """The loops of a scheduler, and the nets of its process, in which ``others`` may live too."""
    silence = timedelta(seconds=load_worker().lease_seconds) * 4

    async def enter() -> None:
        await enter_register(database, identity, [], 0, silence=silence)

    if not await once_the_database_answers(enter, stopped, log):
        yield  # told to stop before it has begun
        return

    async def watch() -> float:
        beat()
        asked_at = steady()
        now = await workers.seen(database, identity.id)
        if now is not None:
            database.clock.heard(now, asked_at)
        else:  # it holds nothing, so nothing is lost: it enters anew, unless somebody else has its name by now
            log.warning("declared dead by somebody else; entering the register anew", name=identity.name)
            identity.begin_anew()
            try:
                await enter()
            except Conflict as error:
                give_up(error)
        return min(settings.scheduler_poll_seconds, 10.0)

    loop = Loop("tenuto-register", watch, log)
    scheduler = Scheduler(database, identity.name, settings.scheduler_poll_seconds, beat)
    managing = Managing(database, identity.name, settings.scheduler_poll_seconds)
    sealing = Sealing(database, settings)
    async with nets(database, settings, identity, *others):
        scheduler.start()
        managing.start()
        sealing.start()
        loop.start()
        log.info("scheduler ready", name=identity.name)
        try:
            yield
        finally:
            await loop.stop()
            await sealing.stop()
            await managing.stop()
            await scheduler.stop()
            with contextlib.suppress(StoreError):
                await workers.leave(database, identity.id)
            log.info("scheduler left")


@asynccontextmanager
async def nets(database: Database, settings: Settings, *who: Identity) -> AsyncIterator[None]:
    """Sweep and housekeeping, beside whatever the services of this process do."""

    async def sweeping() -> float:
        await sweep(database, database.clock.now())
        # Apart from each other, so that many processes do not all look at the same moment.
        return settings.sweep_seconds * random.uniform(0.7, 1.3)

    housekeeping = Housekeeping(database, database.clock, settings, who)
    loops = [Loop("tenuto-sweeper", sweeping, log), Loop("tenuto-housekeeping", housekeeping.round, log)]
    loops[0].start(after=min(1.0, settings.sweep_seconds))
    loops[1].start(after=min(10.0, settings.housekeeping_seconds) * random.uniform(0.5, 1.0))
    try:
        yield
    finally:
        for loop in loops:
            await loop.stop()


async def when_ready(connect: Connect, beat: Callable[[], None]) -> Database:
    """Wait for the database as long as it takes; a service that starts first is not an error."""
    while True:
        beat()
        try:
            return await connect()
        except StoreError as error:
            if not _may_pass(error):
                raise
            log.warning("database not ready", error=str(error), next_try_in=_READY_RETRY_SECONDS)
        await asyncio.sleep(_READY_RETRY_SECONDS)


def _may_pass(error: StoreError) -> bool:
    # A schema that is missing or old will be there once somebody has migrated; any other misfit stays one.
    return isinstance(error, Unavailable | SchemaBehind)


class Process:
    """A service process: its database (none if it was told to stop before there was one), signals and health files."""

    def __init__(self, settings: Settings, who: Sequence[Identity], grace: float) -> None:
        self.database: Database | None = None
        self.signals = Signals(grace)
        self.error: TenutoError | None = None
        self.health = {one.service: HealthFile(settings.home, one.service, _name_of(one)) for one in who}

    async def opened(self) -> Database:
        """The database, once there is one."""
        if self.database is None:
            raise Unavailable("there is no database yet, or no longer")
        return self.database

    def beat(self) -> None:
        """A sign of life of all that runs here."""
        for file in self.health.values():
            file.beat()

    def give_up(self, error: TenutoError) -> None:
        """Leave in good order, and say why at the end."""
        self.error = self.error or error
        self.signals.stop()


def _name_of(one: Identity) -> Callable[[], str]:
    return lambda: one.name


@asynccontextmanager
async def _process(connect: Connect, settings: Settings, *who: Identity, grace: float = 0.0) -> AsyncIterator[Process]:
    """Signals are heard from the first moment on, and the database is waited for as long as it takes."""
    process = Process(settings, who, grace)
    try:
        with process.signals:
            async with lookout(settings, Observing(process.opened, lambda: settings)):
                process.database = await process.signals.unless_told(when_ready(connect, process.beat))
                try:
                    yield process
                finally:
                    database, process.database = process.database, None
                    if database is not None:
                        await database.close()
        if process.error is not None:
            raise process.error
    finally:
        for file in process.health.values():
            file.remove()
        for one in who:
            one.release()
