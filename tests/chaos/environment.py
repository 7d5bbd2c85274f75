"""Environment of a chaos run: its own database server, a proxy in front of it, and the services, each restarted when
it dies.

It records when every process started, was frozen and died, on the monotonic clock. `faults` decides which faults
occur. Every started process is stopped at the end by its pid.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import random
import select
import shutil
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tenuto.postgres import migrator
from tenuto.postgres.database import Database
from tenuto.postgres.migrator import Component
from tenuto.settings import load_settings
from tenuto_notifications.extension import Notifications
from tests.chaos.feature_jobs import step_ledger_path
from tests.chaos.jobs import CANARY, PORT, SECRET, SKEW, app
from tests.chaos.notification_receiver import NotificationReceiver
from tests.races.disposable_server import DisposableServer
from tests.races.effect_ledger import Ledger
from tests.races.processes import ProcessPool, WorkerProcess, Workers
from tests.races.proxy import Proxy
from tests.support.temp_dirs import new_temp_dir

LEASE_SECONDS = 4.0
SWEEP_SECONDS = 0.5
EXIT_LOST_CONTROL = 75
"""Exit code of a worker that can no longer be sure of its leases."""
_ENVIRONMENT = {
    "TENUTO_SCHEDULER_POLL_SECONDS": "0.5",
    "TENUTO_HOUSEKEEPING_SECONDS": "20",
    "TENUTO_DISABLED_EXTENSIONS": "identity",
    "TENUTO_HTTP_ALLOWED_HOSTS": "127.0.0.1",
    "TENUTO_NOTIFICATIONS_POLL_SECONDS": "0.5",
}
_CLOCK_SKEWS = (0.0, 0.0, -600.0, 600.0, 3600.0)


@dataclass
class ProcessLifetime:
    """Lifetime of one process on the monotonic clock, in nanoseconds."""

    pid: int
    name: str
    started_ns: int
    died_ns: int | None = None
    frozen_ns: list[tuple[int, int]] = field(default_factory=list)


@dataclass(eq=False)
class Service:
    """A service that is restarted whenever it dies."""

    role: str
    name: str
    proxied: bool
    port: int = 0
    process: WorkerProcess | None = None
    lifetime: ProcessLifetime | None = None
    is_reserved: bool = False
    """A fault uses it, so no other fault may."""


class DeathWatch:
    """Notes when processes end, in a thread: the event loop may be busy while a worker ends itself, and a death noted
    late looks like two workers that hold one lease."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ends = select.epoll()
        self._watched: dict[int, Callable[[int], None]] = {}
        threading.Thread(target=self._run, name="death-watch", daemon=True).start()

    def watch(self, pid: int, ended: Callable[[int], None]) -> None:
        """Call ``ended`` on the event loop with the instant at which the process ended."""
        descriptor = os.pidfd_open(pid)
        self._watched[descriptor] = ended
        self._ends.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._ends.poll():
                died_ns = time.monotonic_ns()
                ended = self._watched.pop(descriptor)
                self._ends.unregister(descriptor)
                os.close(descriptor)
                with suppress(RuntimeError):  # the run is over
                    self._loop.call_soon_threadsafe(ended, died_ns)


class Environment:
    def __init__(
        self, server: DisposableServer, proxy: Proxy, folder: Path, chance: random.Random, say: Callable[[str], None]
    ):
        self.server, self.proxy, self.folder, self.chance, self.say = server, proxy, folder, chance, say
        self.ledger = Ledger(folder / "ledger")
        step_ledger_path(self.ledger.path).touch()
        self.receiver = NotificationReceiver(random.Random(chance.random()))
        self.url = server.url
        self._process_pool = ProcessPool("tests.chaos.process_launcher")
        self._workers = Workers(self._process_pool, self.url, folder, self.ledger.path)
        self._death_watch = DeathWatch(asyncio.get_running_loop())
        self.lifetimes: list[ProcessLifetime] = []
        self.counts: Counter[str] = Counter()
        self.unexpected: list[str] = []
        """Events that no fault explains."""
        self.closing = False
        self.kept_log_characters = 2000
        """Length of the kept end of each log; more with `--keep`."""
        self.services = [
            *(Service("work", f"worker-{number}", proxied=number == 0) for number in range(3)),
            *(Service("schedule", f"scheduler-{number}", proxied=number == 0) for number in range(2)),
            *(Service("web", f"web-{number}", proxied=number == 0, port=_free_port()) for number in range(2)),
        ]
        key = base64.b64encode(chance.randbytes(32)).decode()
        self._variables = {**_ENVIRONMENT, "TENUTO_MASTER_KEY": key}
        self.settings = load_settings(
            database=self.url, home=folder, master_key=key, sweep_seconds=SWEEP_SECONDS,
            disabled_extensions=("identity",),
        )  # fmt: skip
        app.settings = self.settings

    # --- processes --------------------------------------------------------------------------------------------------

    def start(self, service: Service) -> None:
        """Start a new process of the service."""
        environment = {**self._variables, PORT: str(service.port)}
        if skew := self.chance.choice(_CLOCK_SKEWS):
            environment[SKEW] = str(skew)
            self.counts["skewed"] += 1
        service.process = self._workers.start(
            service.name,
            url=self.proxy.url if service.proxied else self.url,
            sweep=SWEEP_SECONDS,
            environment=environment,
            do=service.role,
            lease_seconds=LEASE_SECONDS,
            grace_seconds=2.0,
        )
        service.lifetime = ProcessLifetime(service.process.pid, service.name, time.monotonic_ns())
        self.lifetimes.append(service.lifetime)
        self._watch(service, service.process, service.lifetime)

    def _watch(self, service: Service, process: WorkerProcess, life: ProcessLifetime) -> None:
        """Restart the service as soon as the process ends."""

        def ended(died_ns: int) -> None:
            life.died_ns = life.died_ns or died_ns
            if service.process is process:
                service.process = None
                process.has_ended()
                if not self.closing:
                    self.start(service)
                self._check_exit(process)

        self._death_watch.watch(process.pid, ended)

    def write_lifetimes(self) -> None:
        """Write the lifetimes beside the ledger, for the analysis of a failed check."""
        lines = [json.dumps(asdict(life)) for life in self.lifetimes]
        (self.folder / "lives").write_text("\n".join(lines), encoding="utf-8")

    def handle_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Record errors of the environment itself: a run with such errors proves nothing."""
        if "callback" in context["message"]:
            self.unexpected.append(f"the environment itself failed: {context['message']}: {context.get('exception')!r}")
        loop.default_exception_handler(context)

    def _check_exit(self, process: WorkerProcess) -> None:
        """Check the exit code and truncate the log."""
        code, log = process.exit_code, process.log
        text = (
            log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        )  # the process may have been killed before its first line
        if code == EXIT_LOST_CONTROL:
            self.counts["gave_up"] += 1
        elif code not in (0, -signal.SIGKILL, -signal.SIGTERM):  # SIGTERM before the handler was installed
            self.unexpected.append(f"{process.name} (pid {process.pid}) exited with {code}: {text[-1000:]}")
            return
        if CANARY not in text:
            log.write_text(text[-self.kept_log_characters :], encoding="utf-8")

    def kill(self, service: Service) -> None:
        """Kill the process with SIGKILL; a new one starts, usually under the same name."""
        process, life = service.process, service.lifetime
        if process is None or life is None or life.died_ns is not None:
            return
        life.died_ns = time.monotonic_ns()
        os.kill(process.pid, signal.SIGKILL)
        self.counts["kills"] += 1
        if (
            service.role == "work" and self.chance.random() < 0.15
        ):  # the name never returns: others must wait for its leases
            service.name = f"newcomer-{self.counts['kills']}"

    def restart(self, service: Service) -> None:
        if service.process is not None:
            os.kill(service.process.pid, signal.SIGTERM)
            self.counts["restarted"] += 1

    async def freeze(self, service: Service, seconds: float) -> None:
        """Suspend the process for a while."""
        process, life = service.process, service.lifetime
        if process is None or life is None:
            return
        service.is_reserved = True
        began = time.monotonic_ns()
        os.kill(process.pid, signal.SIGSTOP)
        self.counts["stops"] += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
            life.frozen_ns.append((began, time.monotonic_ns()))
            service.is_reserved = False

    def available(self, *roles: str) -> list[Service]:
        """Return the services of these roles that a fault may use."""
        return [each for each in self.services if each.role in roles and each.process and not each.is_reserved]

    # --- start and stop ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self.server.migrate()
        await self._migrate_notifications()
        self.receiver.__enter__()
        await app.schedules.deploy()
        await app.manifests.deploy()
        await app.secrets.set(SECRET, CANARY)
        await self.receiver.create_rules(app)
        for service in self.services:
            self.start(service)

    async def _migrate_notifications(self) -> None:
        database = await Database.open(self.url)
        await migrator.migrate(database, Component("notifications", Notifications().migrations()))
        await database.close()

    async def stop_all(self, within: float) -> None:
        """Send SIGTERM to every service and record those that do not exit cleanly within this time."""
        self.closing = True
        for service in self.services:
            if service.process is not None:
                os.kill(service.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + within
        report_at = deadline - within + 10
        while late := [each.name for each in self.services if each.process is not None]:
            if time.monotonic() > report_at:
                self.say(f"still stopping: {', '.join(late)}")
                report_at += 10
            if time.monotonic() > deadline:
                self.unexpected.append(f"not stopped within {within:.0f} s: {', '.join(late)}")
                return
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Kill every process that is left."""
        self.closing = True
        for service in self.services:
            if (process := service.process) is not None:
                service.process = None
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        await asyncio.to_thread(self._process_pool.close)
        await asyncio.sleep(0)
        await app.close()
        self.receiver.__exit__()
        self.ledger.close()


def _free_port() -> int:
    """Return a free port below the ephemeral range, so that it is free again after every kill."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as taken, suppress(OSError):
            taken.bind(("127.0.0.1", port))
            return port


@asynccontextmanager
async def open_environment(
    chance: random.Random, say: Callable[[str], None], *, keep: bool = False
) -> AsyncIterator[Environment]:
    """Provide a running environment; it is removed afterwards unless it is to be kept."""
    driver = logging.getLogger("asyncpg")
    level = driver.level
    driver.setLevel(logging.CRITICAL)  # it logs every closed connection
    server = await asyncio.to_thread(DisposableServer)
    folder = new_temp_dir("tenuto-chaos-")
    try:
        async with Proxy(server.url) as proxy:
            environment = Environment(server, proxy, folder, chance, say)
            asyncio.get_running_loop().set_exception_handler(environment.handle_loop_error)
            try:
                await environment.open()
                yield environment
            finally:
                await environment.close()
    finally:
        await asyncio.to_thread(server.close, keep=keep)
        driver.setLevel(level)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
