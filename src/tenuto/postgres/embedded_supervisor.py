"""Supervisor process of the embedded PostgreSQL, and the locks and processes around it.

The supervisor is a small process that stops the embedded server when no process holds it any more. Liveness is
determined by ``flock`` on files in the home directory, never by pids: the kernel releases a lock however its owner
dies, so a clean exit and ``kill -9`` are the same case.

    postgres.start       exclusive while the server is created, started, or stopped on request
    postgres.holders     shared by every holder of the server; exclusive by the supervisor to stop the server
    postgres.supervisor  exclusive by the supervisor, as long as it runs
    postgres.server      exclusive by the server: each of its processes inherits the locked descriptor

``postgres.holders`` also contains how many holders there have been and how long the server outlives the last one.

`embedded_server` imports this file, and runs it by path (``python -I -S embedded_supervisor.py …``). It uses little
of the standard library, to keep the process small. It must not import Tenuto, connect, or read the data.
"""

# ruff: noqa: PTH108, PTH116, PTH118, PTH123 (pathlib would be a large part of the process)
from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

FOREVER = float("inf")
SHARED, EXCLUSIVE = fcntl.LOCK_SH, fcntl.LOCK_EX
_LOCK_TIMEOUT_SECONDS = 120.0  # other processes may be starting or stopping the server
_FAST_SHUTDOWN_SECONDS = 30.0
_IMMEDIATE_SHUTDOWN_SECONDS = 15.0
_POLL_SECONDS = 0.02

# ---- locks


def open_home_file(home: str | os.PathLike[str], name: str, flags: int = os.O_RDWR) -> int:
    """Open the file ``postgres.<name>`` in the home directory, creating it if necessary."""
    path = os.path.join(home, f"postgres.{name}")
    # O_NOFOLLOW: root may be working in a directory of another user.
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if os.geteuid() == 0:
        owner = os.stat(home)
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


def try_lock(descriptor: int, mode: int) -> bool:
    """Take the lock if it is free; return whether this process has it."""
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def acquire_lock(home: str | os.PathLike[str], name: str, mode: int) -> int:
    """Open the lock file and wait until this process has the lock."""
    descriptor = open_home_file(home, name)
    for _ in range(int(_LOCK_TIMEOUT_SECONDS / _POLL_SECONDS)):
        if try_lock(descriptor, mode):
            return descriptor
        time.sleep(_POLL_SECONDS)
    os.close(descriptor)
    raise TimeoutError(f"another process has held the lock postgres.{name} for {_LOCK_TIMEOUT_SECONDS:.0f} s")


@contextmanager
def start_lock(home: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the exclusive right to create, start or, on request, stop the server."""
    descriptor = acquire_lock(home, "start", EXCLUSIVE)  # guard: embedded.exclusive_start
    try:
        yield
    finally:
        # Closing alone would leave it locked if the process was forked meanwhile.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def read_holder_record(holders: int) -> tuple[int, float]:
    """Return the number of holders so far, and how many seconds the server outlives the last one."""
    try:
        count, linger = os.pread(holders, 64, 0).split()
        return int(count), float(linger)
    except ValueError:
        return 0, 0.0


def register_holder(holders: int, linger: float, *, is_first: bool) -> float:
    """Count one more holder; return the effective linger: the longest requested since the server was started."""
    count, longest = read_holder_record(holders)
    if not is_first:
        linger = max(linger, longest)
    # One write of fixed width, so that a reader never sees half of it.
    os.pwrite(holders, f"{count + 1:020d} {linger:20.3f}\n".encode(), 0)
    return linger


def fsync_path(path: str | os.PathLike[str]) -> None:
    """Flush a file or directory to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- the server's processes


def is_server_running(home: str | os.PathLike[str]) -> bool:
    """Return whether any process of the server is running: the postmaster, or a child that a killed one left."""
    descriptor = open_home_file(home, "server")
    try:
        # Shared, so that two simultaneous checks do not mistake each other for the server.
        return not try_lock(descriptor, SHARED)
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def start_server(
    home: str | os.PathLike[str], argv: Sequence[str], sockets: str | os.PathLike[str], **options: Any
) -> bool:
    """Start the server unless one of its processes is running; return whether it was started, not whether it is
    ready."""
    with _inheritable_lock(home, "server") as descriptor:
        if descriptor is None:
            return False
        _remove_misleading_pid_file(os.path.join(home, "postgres", "postmaster.pid"))
        _remove_misleading_pid_file(os.path.join(sockets, ".s.PGSQL.5432.lock"))
        log = open_home_file(home, "log", os.O_WRONLY | os.O_APPEND)
        try:
            _spawn_detached(argv, pass_fds=[descriptor], stdout=log, stderr=log, **options)
        finally:
            os.close(log)
        return True


def start_supervisor(home: str | os.PathLike[str]) -> None:
    """Start a supervisor unless one is running."""
    with _inheritable_lock(home, "supervisor") as descriptor:
        if descriptor is not None:
            argv = [sys.executable, "-I", "-S", __file__, str(descriptor), os.fspath(home)]
            _spawn_detached(argv, pass_fds=[descriptor], cwd="/")


# A fork of this process that inherits a lock meant for the server would count as the server while it runs.
_fork_lock = threading.Lock()
os.register_at_fork(before=_fork_lock.acquire, after_in_parent=_fork_lock.release, after_in_child=_fork_lock.release)


@contextmanager
def _inheritable_lock(home: str | os.PathLike[str], name: str) -> Iterator[int | None]:
    """Take a lock that the started program inherits; yield None if another process has it."""
    with _fork_lock:
        descriptor = open_home_file(home, name)
        try:
            yield descriptor if try_lock(descriptor, EXCLUSIVE) else None
        finally:
            os.close(descriptor)


def _spawn_detached(argv: Sequence[str], **options: Any) -> None:
    """Run a program in a new session and not as a child process, so that it leaves no zombie here."""
    import subprocess  # imported here, because the supervisor does not need it

    silence = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    subprocess.run(["/bin/sh", "-c", '"$@" &', "sh", *argv], start_new_session=True, **silence | options)


def _read_pid(path: str) -> int | None:
    try:
        with open(path, "rb") as file:
            return int(file.readline())
    except (OSError, ValueError):
        return None


def _remove_misleading_pid_file(path: str) -> None:
    """Remove a pid file whose pid belongs to a zombie or, as in a new container, to another program.

    PostgreSQL would take either for a running server and not start. It recognises other stale files itself.
    """
    if _is_foreign_pid(_read_pid(path)):
        os.unlink(path)


def _is_foreign_pid(pid: int | None) -> bool:
    """Return whether a pid certainly belongs to a zombie or to another program than postgres."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            name, _, rest = file.read().partition("(")[2].rpartition(")")
    except OSError:
        return False
    return name != "postgres" or rest.split()[0] == "Z"


def stop_server(home: str | os.PathLike[str]) -> bool:
    """Stop the server as ``pg_ctl stop -m fast`` does; return whether it has stopped.

    The signal is sent here, not by pg_ctl, so that it works after the binaries were uninstalled and never reaches
    another program that has the pid of a stale file: a killed postmaster may leave a busy child process.
    """
    # SIGQUIT (immediate shutdown) loses no committed data either: the next start replays the log.
    for number, seconds in ((signal.SIGINT, _FAST_SHUTDOWN_SECONDS), (signal.SIGQUIT, _IMMEDIATE_SHUTDOWN_SECONDS)):
        for _ in range(int(seconds / _POLL_SECONDS)):
            if not is_server_running(home):
                return True
            _signal_postmaster(home, number)
            time.sleep(_POLL_SECONDS)
    return False


def _signal_postmaster(home: str | os.PathLike[str], number: signal.Signals) -> None:
    pid = _read_pid(os.path.join(home, "postgres", "postmaster.pid"))
    try:
        if pid is not None and not _is_foreign_pid(pid):
            os.kill(pid, number)
    except ProcessLookupError:
        return


# ---- the supervisor


def supervise(home: str) -> None:
    """Wait until no process holds the server, linger, and stop it unless a new holder has registered meanwhile."""
    holders = open_home_file(home, "holders")
    while True:
        fcntl.flock(holders, EXCLUSIVE)
        holder_count, linger = read_holder_record(holders)
        if linger == FOREVER:
            return
        fcntl.flock(holders, fcntl.LOCK_UN)
        time.sleep(linger)
        # A holder that came and went during the sleep starts a new linger period.
        if try_lock(holders, EXCLUSIVE) and read_holder_record(holders)[0] == holder_count:
            if _is_same_home(holders, home):
                stop_server(home)
            return


def _is_same_home(holders: int, home: str) -> bool:
    """Return whether the home directory was not deleted or created again since the supervisor started."""
    try:
        return os.path.samestat(os.fstat(holders), os.stat(os.path.join(home, "postgres.holders")))
    except FileNotFoundError:
        return False


def main() -> None:
    """``embedded_supervisor.py <descriptor of the locked postgres.supervisor> <home>``"""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    own, home = int(sys.argv[1]), sys.argv[2]
    try:
        supervise(home)
    finally:
        # Released before the lock on the holders, which this process keeps until it exits: the next holder must see
        # that no supervisor is running.
        os.close(own)


if __name__ == "__main__":
    main()
