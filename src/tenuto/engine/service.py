"""Services: which loops run in this process, from start to stop.

A worker service takes and runs tasks; a scheduler service watches over them. Both carry the nets (sweep) and keep the
house, so that either alone is enough and any number of each may run. The first signal asks for an orderly leave, the
second for an immediate one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta

from tenuto.engine.health import HealthFile
from tenuto.engine.housekeeping import Housekeeping
from tenuto.engine.identity import Identity, enter_register
from tenuto.engine.loop import Loop
from tenuto.engine.scheduler import Scheduler
from tenuto.engine.sweeper import sweep
from tenuto.engine.watchdog import EXIT_LOST_CONTROL
from tenuto.engine.worker import Worker
from tenuto.errors import SchemaMismatch, StoreError, Unavailable
from tenuto.handlers.jobs import Jobs
from tenuto.logs import Log
from tenuto.settings import Settings, WorkerSettings, load_worker
from tenuto.store import workers
from tenuto.store.database import Database

_READY_RETRY_SECONDS = 2.0
_LEAVING_SECONDS = 6.0
"""How long leaving may take after the grace; a little longer than code that must be stopped."""

log = Log("tenuto.service")

Connect = Callable[[], Awaitable[Database]]


async def run_worker(connect: Connect, jobs: Jobs, settings: Settings, given: WorkerSettings) -> None:
    """A worker process: until a signal, or until somebody declares it dead."""
    identity = Identity.take("worker", settings.home, given.name)
    health = HealthFile(settings.home, "worker", identity.name)
    database = await when_ready(connect, health)
    try:
        worker = Worker(database, jobs, identity, given, beat=health.beat)
        with _signals(worker.stop, worker.stop_now, given.grace_seconds):
            async with nets(database, settings):
                await worker.run()
    finally:
        health.remove()
        await database.close()


async def run_scheduler(connect: Connect, settings: Settings, *, name: str | None = None) -> None:
    """A scheduler process: until a signal."""
    identity = Identity.take("scheduler", settings.home, name)
    health = HealthFile(settings.home, "scheduler", identity.name)
    database = await when_ready(connect, health)
    stopped = asyncio.Event()
    try:
        with _signals(stopped.set, stopped.set):
            async with scheduling(database, settings, identity, health.beat):
                await stopped.wait()
    finally:
        health.remove()
        await database.close()


async def run_all(
    connect: Connect, jobs: Jobs, settings: Settings, given: WorkerSettings, ready: Callable[[Worker], None]
) -> None:
    """Scheduler and worker in one process: until a signal."""
    identity = Identity.take("worker", settings.home, given.name)
    scheduler = Identity.take("scheduler", settings.home)
    health = HealthFile(settings.home, "worker", identity.name)
    scheduler_health = HealthFile(settings.home, "scheduler", scheduler.name)
    database = await when_ready(connect, health)
    try:
        worker = Worker(database, jobs, identity, given, beat=health.beat)
        with _signals(worker.stop, worker.stop_now, given.grace_seconds):
            async with scheduling(database, settings, scheduler, scheduler_health.beat):
                ready(worker)
                await worker.run()
    finally:
        health.remove()
        scheduler_health.remove()
        await database.close()


@asynccontextmanager
async def worker_beside(
    connect: Connect, jobs: Jobs, settings: Settings, given: WorkerSettings
) -> AsyncIterator[Worker]:
    """A worker that runs beside the caller's own code for as long as the block lasts."""
    database = await connect()
    try:
        worker = Worker(database, jobs, Identity.take("worker", settings.home, given.name), given)
        async with nets(database, settings):
            running = asyncio.create_task(worker.run())
            try:
                await worker.is_ready(running)
                yield worker
            finally:
                worker.stop()
                await running
    finally:
        await database.close()


@asynccontextmanager
async def scheduler_beside(connect: Connect, settings: Settings, name: str | None) -> AsyncIterator[None]:
    """A scheduler that runs beside the caller's own code for as long as the block lasts."""
    database = await connect()
    try:
        async with scheduling(database, settings, Identity.take("scheduler", settings.home, name), lambda: None):
            yield
    finally:
        await database.close()


@asynccontextmanager
async def scheduling(
    database: Database, settings: Settings, identity: Identity, beat: Callable[[], None]
) -> AsyncIterator[None]:
    """The loops of a scheduler."""
    lease = timedelta(seconds=load_worker().lease_seconds)
    await enter_register(database, identity, [], 0, silence=lease * 4)

    async def watch() -> float:
        beat()
        if await workers.seen(database, identity.id) is None:
            log.error("declared dead by somebody else")
        return min(settings.scheduler_poll_seconds, 10.0)

    loop = Loop("tenuto-register", watch, log)
    scheduler = Scheduler(database, identity.name, settings.scheduler_poll_seconds, beat)
    async with nets(database, settings):
        scheduler.start()
        loop.start()
        log.info("scheduler ready", name=identity.name)
        try:
            yield
        finally:
            await loop.stop()
            await scheduler.stop()
            with contextlib.suppress(StoreError):
                await workers.leave(database, identity.id)
            identity.release()
            log.info("scheduler left")


@asynccontextmanager
async def nets(database: Database, settings: Settings) -> AsyncIterator[None]:
    """Sweep and housekeeping, beside whatever the service does."""

    async def sweeping() -> float:
        await sweep(database, database.clock.now())
        # Apart from each other, so that many processes do not all look at the same moment.
        return settings.sweep_seconds * random.uniform(0.7, 1.3)

    housekeeping = Housekeeping(database, database.clock, settings)
    loops = [Loop("tenuto-sweeper", sweeping, log), Loop("tenuto-housekeeping", housekeeping.round, log)]
    loops[0].start(after=min(1.0, settings.sweep_seconds))
    loops[1].start(after=min(10.0, settings.housekeeping_seconds) * random.uniform(0.5, 1.0))
    try:
        yield
    finally:
        for loop in loops:
            await loop.stop()


async def when_ready(connect: Connect, health: HealthFile) -> Database:
    """Wait for the database as long as it takes; a service that starts first is not an error."""
    try:
        while True:
            health.beat()
            try:
                return await connect()
            except StoreError as error:
                if not _may_pass(error):
                    raise
                log.warning("database not ready", error=str(error), next_try_in=_READY_RETRY_SECONDS)
            await asyncio.sleep(_READY_RETRY_SECONDS)
    except BaseException:
        health.remove()  # it has not come to be a service; a file left behind would call it a sick one
        raise


def _may_pass(error: StoreError) -> bool:
    # A schema that is missing or old will be there once somebody has migrated; a newer one never fits.
    return isinstance(error, Unavailable) or (isinstance(error, SchemaMismatch) and "newer" not in error.message)


@contextlib.contextmanager
def _signals(first: Callable[[], None], second: Callable[[], None], grace: float = 0.0) -> Iterator[None]:
    """The first SIGTERM or SIGINT asks to leave, the next one to leave now.

    Who has not left some seconds after that, because the database does not answer, goes as if killed: that is safe at
    any moment, and better than to stay.
    """
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []

    def received() -> None:
        drain = not timers
        timers.append(loop.call_later((grace if drain else 0.0) + _LEAVING_SECONDS, _leave_as_if_killed))
        log.info("told to stop", how="drain" if drain else "now")
        (first if drain else second)()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        for timer in timers:
            timer.cancel()


def _leave_as_if_killed() -> None:
    log.critical("leaving without having cleared up: it took too long")
    os._exit(EXIT_LOST_CONTROL)
