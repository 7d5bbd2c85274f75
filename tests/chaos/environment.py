"""The stage: one database of the run's own, a proxy before it, and the services, each kept alive by a supervisor.

It knows when every process was born, was frozen and died, on the ledger's timer. Nothing here decides what goes wrong:
see `faults`. Whatever was started is stopped at the end, by its pid.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import random
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tenuto.settings import load_settings
from tests.chaos.jobs import CANARY, PORT, SECRET, SKEW, app
from tests.races.effect_ledger import Ledger
from tests.races.processes import ProcessPool, WorkerProcess, Workers
from tests.races.proxy import Proxy
from tests.races.disposable_server import DisposableServer
from tests.support.temp_dirs import new_temp_dir

LEASE = 4.0
SWEEP = 0.5
GAVE_UP = 75
"""How a worker ends that can no longer be sure of its leases."""
_ENVIRONMENT = {"TENUTO_SCHEDULER_POLL_SECONDS": "0.5", "TENUTO_HOUSEKEEPING_SECONDS": "20"}
_SKEWS = (0.0, 0.0, -600.0, 600.0, 3600.0)


@dataclass
class Life:
    """One process, from its birth to its death, on the steady timer."""

    pid: int
    name: str
    born: int
    died: int | None = None
    frozen: list[tuple[int, int]] = field(default_factory=list)


@dataclass(eq=False)
class Service:
    """A place on the stage: whoever dies there is followed by another."""

    role: str
    name: str
    proxied: bool
    port: int = 0
    process: WorkerProcess | None = None
    life: Life | None = None
    held_back: bool = False
    """A fault is busy with it: no other takes it."""


class Stage:
    """All of it."""

    def __init__(
        self, server: DisposableServer, proxy: Proxy, folder: Path, chance: random.Random, say: Callable[[str], None]
    ):
        self.server, self.proxy, self.folder, self.chance, self.say = server, proxy, folder, chance, say
        self.ledger = Ledger(folder / "ledger")
        self.url = server.url
        self._process_pool = ProcessPool("tests.chaos.process_launcher")
        self._workers = Workers(self._process_pool, self.url, folder, self.ledger.path)
        self.lives: list[Life] = []
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        """What happened that no fault accounts for."""
        self.closing = False
        self.kept_words = 2000
        """So much of the end of each log; `--keep` wants more."""
        self.services = [
            *(Service("work", f"worker-{number}", proxied=number == 0) for number in range(3)),
            *(Service("schedule", f"scheduler-{number}", proxied=number == 0) for number in range(2)),
            *(Service("web", f"web-{number}", proxied=number == 0, port=_free_port()) for number in range(2)),
        ]
        key = base64.b64encode(chance.randbytes(32)).decode()
        self._environment = {**_ENVIRONMENT, "TENUTO_MASTER_KEY": key}
        self.settings = load_settings(database=self.url, home=folder, master_key=key, sweep_seconds=SWEEP)
        app.settings = self.settings

    # --- lives ------------------------------------------------------------------------------------------------------

    def start(self, service: Service) -> None:
        """Somebody new in this place."""
        environment = {**self._environment, PORT: str(service.port)}
        if skew := self.chance.choice(_SKEWS):
            environment[SKEW] = str(skew)
            self.counts["skewed"] += 1
        service.process = self._workers.start(
            service.name,
            url=self.proxy.url if service.proxied else self.url,
            sweep=SWEEP,
            environment=environment,
            do=service.role,
            lease_seconds=LEASE,
            grace_seconds=2.0,
        )
        service.life = Life(service.process.pid, service.name, time.monotonic_ns())
        self.lives.append(service.life)
        self._watch(service, service.process, service.life)

    def _watch(self, service: Service, process: WorkerProcess, life: Life) -> None:
        """Hear of its death as soon as the kernel tells."""
        descriptor = os.pidfd_open(process.pid)
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            life.died = life.died or time.monotonic_ns()
            if service.process is process:
                service.process = None
                process.has_ended()
                if not self.closing:
                    self.start(service)
                self._account_for(process)

        loop.add_reader(descriptor, ended)

    def note_lives(self) -> None:
        """Beside the ledger, for whoever has to find out what a rule has been broken by."""
        lines = [json.dumps(asdict(life)) for life in self.lives]
        (self.folder / "lives").write_text("\n".join(lines), encoding="utf-8")

    def hear_of_our_own_mistakes(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A stage that does not do what it should proves nothing."""
        if "callback" in context["message"]:
            self.wrong.append(f"the stage itself failed: {context['message']}: {context.get('exception')!r}")
        loop.default_exception_handler(context)

    def _account_for(self, process: WorkerProcess) -> None:
        """What it ended with, and its last words: of ten thousand deaths nobody reads more, but all must be clean."""
        code, log = process.exit_code, process.log
        words = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""  # killed before its first one
        if code == GAVE_UP:
            self.counts["gave_up"] += 1
        elif code not in (0, -signal.SIGKILL, -signal.SIGTERM):  # the last: told to leave before it could listen
            self.wrong.append(f"{process.name} (pid {process.pid}) ended by itself with {code}: {words[-1000:]}")
            return
        if CANARY not in words:
            log.write_text(words[-self.kept_words :], encoding="utf-8")

    def kill(self, service: Service) -> None:
        """kill -9; the supervisor sees to a successor, mostly under the same name."""
        process, life = service.process, service.life
        if process is None or life is None or life.died is not None:
            return
        life.died = time.monotonic_ns()
        os.kill(process.pid, signal.SIGKILL)
        self.counts["kills"] += 1
        if service.role == "work" and self.chance.random() < 0.15:  # never comes back: others must wait for its leases
            service.name = f"newcomer-{self.counts['kills']}"

    def tell_to_leave(self, service: Service) -> None:
        if service.process is not None:
            os.kill(service.process.pid, signal.SIGTERM)
            self.counts["restarted"] += 1

    async def freeze(self, service: Service, seconds: float) -> None:
        """Stop it, and let it go on after a while."""
        process, life = service.process, service.life
        if process is None or life is None:
            return
        service.held_back = True
        began = time.monotonic_ns()
        os.kill(process.pid, signal.SIGSTOP)
        self.counts["stops"] += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
            life.frozen.append((began, time.monotonic_ns()))
            service.held_back = False

    def of(self, *roles: str) -> list[Service]:
        """Those a fault may take."""
        return [each for each in self.services if each.role in roles and each.process and not each.held_back]

    # --- beginning and end ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self.server.migrate()
        await app.schedules.deploy()
        await app.manifests.deploy()
        await app.secrets.set(SECRET, CANARY)
        for service in self.services:
            self.start(service)

    async def leave_in_good_order(self, within: float) -> None:
        """SIGTERM to everybody; who does not go within this time, or not well, is noted."""
        self.closing = True
        for service in self.services:
            if service.process is not None:
                os.kill(service.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + within
        told = deadline - within + 10
        while late := [each.name for each in self.services if each.process is not None]:
            if time.monotonic() > told:
                self.say(f"still leaving: {', '.join(late)}")
                told += 10
            if time.monotonic() > deadline:
                self.wrong.append(f"did not leave within {within:.0f} s: {', '.join(late)}")
                return
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Nothing stays, however it came to this."""
        self.closing = True
        for service in self.services:
            if (process := service.process) is not None:
                service.process = None
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        await asyncio.to_thread(self._process_pool.close)
        await asyncio.sleep(0)
        await app.close()
        self.ledger.close()


def _free_port() -> int:
    """One that is free, below those the system gives to whoever connects: it must be free again after every kill."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as taken, suppress(OSError):
            taken.bind(("127.0.0.1", port))
            return port


@asynccontextmanager
async def raised(chance: random.Random, say: Callable[[str], None], *, keep: bool = False) -> AsyncIterator[Stage]:
    """A stage, ready to be played on; nothing of it is left afterwards, unless it is to be kept: then all of it."""
    driver = logging.getLogger("asyncpg")
    level = driver.level
    driver.setLevel(logging.CRITICAL)  # it tells of every line that is cut here
    server = await asyncio.to_thread(DisposableServer)
    folder = new_temp_dir("tenuto-chaos-")
    try:
        async with Proxy(server.url) as proxy:
            stage = Stage(server, proxy, folder, chance, say)
            asyncio.get_running_loop().set_exception_handler(stage.hear_of_our_own_mistakes)
            try:
                await stage.open()
                yield stage
            finally:
                await stage.close()
    finally:
        await asyncio.to_thread(server.close, keep=keep)
        driver.setLevel(level)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
