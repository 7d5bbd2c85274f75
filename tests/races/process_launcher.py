"""A process that starts worker processes for tests: forked from a warm interpreter, so that a start takes milliseconds.

Reads one JSON order a line on stdin and answers with one line on stdout. Children are only reaped when somebody asks
how they ended, so a pid a test knows is never a stranger's. When stdin closes, everything it started is killed.
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
    """Start what is ordered; ``roles`` says what a child can be."""
    children: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if "start" in order:
            answer: Any = _start(order["start"], roles)
            children.add(answer)
        else:
            answer = _how_it_ended(order["ended"], children)
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
    raise SystemExit(0)  # through `main`, to an ordinary end of the interpreter


def _redirect(log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (descriptor, 1), (descriptor, 2)):
        os.dup2(source, target)


def _how_it_ended(pid: int, children: set[int]) -> int | None:
    """The exit code, or minus the signal; None while it lives."""
    found, status = os.waitpid(pid, os.WNOHANG)
    if found == 0:
        return None
    children.discard(pid)
    return os.waitstatus_to_exitcode(status)


def _work(order: dict[str, Any]) -> None:
    """Be a worker, as `tenuto worker` is one."""
    os.environ.update(order["environment"])
    logs.configure()
    settings = Settings(**order["settings"])
    crash_at = order["crash_at"]
    app = Tenuto(settings=settings) if crash_at is None else CrashingTenuto(settings, crash_at)
    app.jobs = jobs.app.jobs
    asyncio.run(app.run_worker(**order["worker"]))


def _schedule(order: dict[str, Any]) -> None:
    """Be a scheduler, as `tenuto scheduler` is one."""
    os.environ.update(order["environment"])
    logs.configure()
    settings = Settings(**order["settings"], scheduler_poll_seconds=0.5)
    asyncio.run(Tenuto(settings=settings).run_scheduler(name=order["worker"]["name"]))


def _manage(order: dict[str, Any]) -> None:
    """Be a manager that polls at once with others: as soon as a file is there."""

    async def go() -> None:
        database = await Database.open(order["settings"]["database"], generic_plans=True)
        sys.stderr.write("worker ready\n")
        sys.stderr.flush()
        while not Path(order["environment"]["GO"]).exists():  # noqa: ASYNC110 — told by another process
            await asyncio.sleep(0.001)
        result = await manifest_manager.poll_manifests(database, database.clock.now(), order["worker"]["name"])
        sys.stderr.write(f"enqueued {result.enqueued}\n")
        await database.close()

    asyncio.run(go())


def _migrate(order: dict[str, Any]) -> None:
    """Bring the schema up to date, as `tenuto migrate` does."""

    async def go() -> None:
        database = await Database.open(order["settings"]["database"])
        for migration in await migrator.migrate(database):
            sys.stderr.write(f"applied {migration.name}\n")
        await database.close()

    asyncio.run(go())


if __name__ == "__main__":
    main({"work": _work, "schedule": _schedule, "migrate": _migrate, "manage": _manage})
