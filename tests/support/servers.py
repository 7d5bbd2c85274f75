"""Embedded server seen from outside: its processes, its locks, and its answers.

For tests that start their own server and end every process of it by pid.
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

_LEFTOVER_SEGMENTS: set[Path] = set()

HOLD_UNTIL_EOF = """
import sys
from pathlib import Path
from tenuto.postgres.embedded_server import acquire_server
handle = acquire_server(Path(sys.argv[1]), linger_seconds=float(sys.argv[2]))
print(handle.url, flush=True)
sys.stdin.read()
"""


def wait_for_url(process: subprocess.Popen[str]) -> str:
    """Return the URL that a holder prints once it holds the server."""
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert url, process.communicate()[1]
    return url


def end_processes_of(home: Path) -> None:
    def ended() -> bool:
        for process in processes_of(home):
            kill(process)
        return is_stopped(home)

    wait_until(ended)
    remove_leftover_shared_memory()


def remove_leftover_shared_memory() -> None:
    """Remove the shared memory of killed servers. Only a server on the same data directory would remove it; with the
    directory gone it would stay forever.
    """
    if _LEFTOVER_SEGMENTS:
        for path in _LEFTOVER_SEGMENTS - {
            path for process in psutil.process_iter() for path in shared_memory_of(process)
        }:
            path.unlink(missing_ok=True)
        _LEFTOVER_SEGMENTS.clear()


# ---- queries


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until the condition holds; a server takes time to start and to stop."""
    eventually_blocking(condition, timeout=seconds)


def find_processes(home: Path, program: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        arguments = process.info["cmdline"] or []
        if any(program in argument for argument in arguments[:4]) and any(
            argument.startswith(str(home)) for argument in arguments
        ):
            found.append(process)
    return found


def find_postmaster(home: Path) -> psutil.Process:
    """Return the postmaster. A process that it has just forked has the same name until it sets its own."""
    found = {process.pid: process for process in find_processes(home, "bin/postgres")}
    (first,) = [process for process in found.values() if _parent_of(process) not in found]
    return first


def _parent_of(process: psutil.Process) -> int | None:
    with suppress(psutil.NoSuchProcess):
        return process.ppid()
    return None


def find_supervisor(home: Path) -> psutil.Process:
    """Return the supervisor process, once it runs its program."""

    def only_one() -> psutil.Process | None:
        found = find_processes(home, "embedded_supervisor.py")
        return found[0] if len(found) == 1 else None

    found: psutil.Process = eventually_blocking(only_one, timeout=20)
    return found


def assert_one_server_with_supervisor(home: Path) -> bool:
    return find_postmaster(home).is_running() and find_supervisor(home).is_running()


def processes_of(home: Path) -> list[psutil.Process]:
    found = [*find_processes(home, "embedded_supervisor.py"), *find_processes(home, "bin/postgres")]
    for process in list(found):
        with suppress(psutil.NoSuchProcess):
            found += process.children(recursive=True)
    return found


def kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        for one in (process, *process.children(recursive=True)):
            _LEFTOVER_SEGMENTS.update(shared_memory_of(one))
        process.kill()


def shared_memory_of(process: psutil.Process) -> set[Path]:
    """Return the PostgreSQL shared memory segments that a process has mapped, as files."""
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


def commit_row(url: str) -> None:
    query(
        url,
        "DROP TABLE IF EXISTS kept",
        "CREATE TABLE kept (word text)",
        "INSERT INTO kept VALUES ('yes') RETURNING word",
    )


def has_row(url: str) -> bool:
    return bool(query(url, "SELECT count(*) FROM kept") == 1)
