"""A process that forks worker processes for tests from a warm interpreter, so that a start takes milliseconds.

It reads one JSON order per line from stdin and answers with one line on stdout. It reaps a child only when asked for
its exit code, so a pid that a test knows is never reused. When stdin closes, it kills every child.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tenuto import Tenuto, logs
from tenuto.postgres import migrator
from tenuto.postgres.database import Database
from tenuto.scheduling import manifest_manager
from tenuto.settings import Settings
from tests.races import jobs
from tests.races.crash_points import CrashingTenuto

_PR_SET_PDEATHSIG = 1


Role = Callable[[dict[str, Any]], None]


def main(roles: Mapping[str, Role]) -> None:
    """Start the ordered processes; ``roles`` maps the name of a role to its function."""
    children: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if "start" in order:
            answer: Any = _start(order["start"], roles)
            children.add(answer)
        else:
            answer = _exit_code(order["ended"], children)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _start(order: dict[str, Any], roles: Mapping[str, Role]) -> int:
    launcher_pid = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher_pid:
        os._exit(1)
    _redirect(order["log"])
    roles[order["do"]](order)
    raise SystemExit(0)  # through `main`, so that the interpreter exits normally


def _redirect(log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (descriptor, 1), (descriptor, 2)):
        os.dup2(source, target)


def _exit_code(pid: int, children: set[int]) -> int | None:
    """Return the exit code, or minus the signal; None while the process runs."""
    found, status = os.waitpid(pid, os.WNOHANG)
    if found == 0:
        return None
    children.discard(pid)
    return os.waitstatus_to_exitcode(status)


def _run_worker(order: dict[str, Any]) -> None:
    """Run a worker like `tenuto worker`."""
    os.environ.update(order["environment"])
    logs.configure()
    settings = Settings(**order["settings"])
    crash_at = order["crash_at"]
    app = Tenuto(settings=settings) if crash_at is None else CrashingTenuto(settings, crash_at)
    app.jobs = jobs.app.jobs
    asyncio.run(app.run_worker(**order["worker"]))


def _run_scheduler(order: dict[str, Any]) -> None:
    """Run a scheduler like `tenuto scheduler`."""
    os.environ.update(order["environment"])
    logs.configure()
    settings = Settings(**order["settings"], scheduler_poll_seconds=0.5)
    asyncio.run(Tenuto(settings=settings).run_scheduler(name=order["worker"]["name"]))


def _poll_manifests_once(order: dict[str, Any]) -> None:
    """Poll the manifests once, as soon as a file exists, so that several managers poll at the same time."""

    async def go() -> None:
        database = await Database.open(order["settings"]["database"], generic_plans=True)
        sys.stderr.write("worker started\n")
        sys.stderr.flush()
        while not Path(order["environment"]["GO"]).exists():  # noqa: ASYNC110 — signalled by another process
            await asyncio.sleep(0.001)
        result = await manifest_manager.poll_manifests(database, database.clock.now(), order["worker"]["name"])
        sys.stderr.write(f"enqueued {result.enqueued}\n")
        await database.close()

    asyncio.run(go())


def _migrate(order: dict[str, Any]) -> None:
    """Migrate the schema like `tenuto migrate`."""

    async def go() -> None:
        database = await Database.open(order["settings"]["database"])
        for migration in await migrator.migrate(database):
            sys.stderr.write(f"applied {migration.name}\n")
        await database.close()

    asyncio.run(go())


if __name__ == "__main__":
    main({"work": _run_worker, "schedule": _run_scheduler, "migrate": _migrate, "manage": _poll_manifests_once})
