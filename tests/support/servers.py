"""The embedded server from outside: its processes, its locks, and what it answers.

For tests that start one of their own, and end every process of it, by pid.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import psutil

from tenuto.postgres import embedded_supervisor
from tests.support.waiting import eventually_blocking

AS_ROOT = os.geteuid() == 0
IMPORTS = os.pathsep.join(sys.path)

_LEFT: set[Path] = set()

HOLD_UNTIL_EOF = """
import sys
from pathlib import Path
from tenuto.postgres.embedded_server import acquire_server
handle = acquire_server(Path(sys.argv[1]), linger_seconds=float(sys.argv[2]))
print(handle.url, flush=True)
sys.stdin.read()
"""


def url_of(process: subprocess.Popen[str]) -> str:
    """What a holder says once it holds."""
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert url, process.communicate()[1]
    return url


def end_processes_of(home: Path) -> None:
    def ended() -> bool:
        for process in processes_of(home):
            kill(process)
        return is_stopped(home)

    until(ended)
    remove_what_the_killed_left()


def remove_what_the_killed_left() -> None:
    """The shared memory of servers that were killed here. A server started on the same data folder would remove it, and
    only such a one; of a folder that is removed it would stay for ever."""
    if _LEFT:
        for path in _LEFT - {path for process in psutil.process_iter() for path in shared_memory_of(process)}:
            path.unlink(missing_ok=True)
        _LEFT.clear()


# ---- looking on


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """A server takes its time to start, and to stop."""
    eventually_blocking(condition, timeout=seconds)


def living(home: Path, program: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(program in word for word in words[:4]) and any(word.startswith(str(home)) for word in words):
            found.append(process)
    return found


def postmaster(home: Path) -> psutil.Process:
    """The server's first process. One that it has only just forked looks like it until it has a name of its own."""
    found = {process.pid: process for process in living(home, "bin/postgres")}
    (first,) = [process for process in found.values() if _parent_of(process) not in found]
    return first


def _parent_of(process: psutil.Process) -> int | None:
    with suppress(psutil.NoSuchProcess):
        return process.ppid()
    return None


def find_supervisor(home: Path) -> psutil.Process:
    """Return the supervisor process, once it runs its program."""

    def only_one() -> psutil.Process | None:
        found = living(home, "embedded_supervisor.py")
        return found[0] if len(found) == 1 else None

    found: psutil.Process = eventually_blocking(only_one, timeout=20)
    return found


def one_server_runs_and_is_kept(home: Path) -> bool:
    return postmaster(home).is_running() and find_supervisor(home).is_running()


def processes_of(home: Path) -> list[psutil.Process]:
    found = [*living(home, "embedded_supervisor.py"), *living(home, "bin/postgres")]
    for process in list(found):
        with suppress(psutil.NoSuchProcess):
            found += process.children(recursive=True)
    return found


def kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        for one in (process, *process.children(recursive=True)):
            _LEFT.update(shared_memory_of(one))
        process.kill()


def shared_memory_of(process: psutil.Process) -> set[Path]:
    """The segments of PostgreSQL's that a process has mapped, as the files they are on Linux."""
    with suppress(psutil.Error, OSError):
        return {Path(one.path) for one in process.memory_maps() if one.path.startswith("/dev/shm/PostgreSQL.")}
    return set()


def is_locked(home: Path, name: str) -> bool:
    descriptor = embedded_supervisor.open_home_file(home, name)
    try:
        return not embedded_supervisor.try_lock(descriptor, embedded_supervisor.SHARED)
    finally:
        os.close(descriptor)


def is_stopped(home: Path) -> bool:
    return not is_locked(home, "server") and not is_locked(home, "supervisor")


def query(url: str, *statements: str) -> Any:
    async def run() -> Any:
        connection = await asyncpg.connect(url)
        try:
            for statement in statements[:-1]:
                await connection.execute(statement)
            return await connection.fetchval(statements[-1])
        finally:
            await connection.close()

    return asyncio.run(run())


def commit_a_row(url: str) -> None:
    query(
        url,
        "DROP TABLE IF EXISTS kept",
        "CREATE TABLE kept (word text)",
        "INSERT INTO kept VALUES ('yes') RETURNING word",
    )


def row_is_there(url: str) -> bool:
    return bool(query(url, "SELECT count(*) FROM kept") == 1)
