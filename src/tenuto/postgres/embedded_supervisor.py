"""The keeper, and the locks and processes it lives among.

The keeper is a small process that stops the embedded PostgreSQL once nobody holds it any more. Who lives is told by
``flock`` on files beside the data folder, never by a list of pids: the kernel releases a lock however its owner dies,
so a clean exit and ``kill -9`` of everything are one and the same case.

    postgres.start      taken alone while the server is made, started, or stopped on request
    postgres.holders    shared by every holder; taken alone by the keeper to stop the server
    postgres.keeper     taken alone by the keeper, for its whole life
    postgres.server     taken alone by the server: each of its processes inherits the locked descriptor

``postgres.holders`` also says how many holders have come so far and how long the server shall outlive the last.

This file is imported by ``embedded`` and run by its path (``python -I -S keeper.py …``). It uses the standard library
only, and as a process little of that, to stay small. It must not import Tenuto, connect, or know what is in the data.
"""

# ruff: noqa: PTH108, PTH116, PTH118, PTH123 (pathlib would be a good part of the process)
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
SHARED, ALONE = fcntl.LOCK_SH, fcntl.LOCK_EX
_QUEUE_PATIENCE = 120.0  # for those ahead of us to have started or stopped the server
_FAST_PATIENCE = 30.0
_IMMEDIATE_PATIENCE = 15.0
_TICK = 0.02

# ---- locks


def open_beside(home: str | os.PathLike[str], name: str, flags: int = os.O_RDWR) -> int:
    """Open Tenuto's own file ``postgres.<name>`` in the home, making it if need be."""
    path = os.path.join(home, f"postgres.{name}")
    # O_NOFOLLOW: root may be working in a folder that belongs to somebody else.
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if os.geteuid() == 0:
        owner = os.stat(home)
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


def taken(descriptor: int, mode: int) -> bool:
    """Take the lock if it is free; say whether we have it."""
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for(home: str | os.PathLike[str], name: str, mode: int) -> int:
    """Open the lock of that name and wait until we have it."""
    descriptor = open_beside(home, name)
    for _ in range(int(_QUEUE_PATIENCE / _TICK)):
        if taken(descriptor, mode):
            return descriptor
        time.sleep(_TICK)
    os.close(descriptor)
    raise TimeoutError(f"postgres.{name} has been locked by another process for {_QUEUE_PATIENCE:.0f} s")


@contextmanager
def start_mutex(home: str | os.PathLike[str]) -> Iterator[None]:
    """Be the only one who makes, starts or, on request, stops the server."""
    descriptor = wait_for(home, "start", ALONE)
    try:
        yield
    finally:
        # Closing alone would leave it locked if the process was forked meanwhile.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def read_arrivals(holders: int) -> tuple[int, float]:
    """How many holders have come so far, and how many seconds the server shall outlive the last of them."""
    try:
        count, linger = os.pread(holders, 64, 0).split()
        return int(count), float(linger)
    except ValueError:
        return 0, 0.0


def write_arrival(holders: int, linger: float, *, fresh: bool) -> float:
    """Count one more holder; return the linger that counts: the longest asked for since the server was started."""
    count, longest = read_arrivals(holders)
    if not fresh:
        linger = max(linger, longest)
    # One write of fixed width: a reader never sees half of it.
    os.pwrite(holders, f"{count + 1:020d} {linger:20.3f}\n".encode(), 0)
    return linger


def sync(path: str | os.PathLike[str]) -> None:
    """See to it that a file, or the names in a folder, outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- the server's processes


def server_lives(home: str | os.PathLike[str]) -> bool:
    """Whether any process of the server is alive: the postmaster, or what a killed one left behind."""
    descriptor = open_beside(home, "server")
    try:
        # Shared, so that two who ask at once do not take each other for the server.
        return not taken(descriptor, SHARED)
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def launch_server(
    home: str | os.PathLike[str], argv: Sequence[str], sockets: str | os.PathLike[str], **options: Any
) -> bool:
    """Start the server, unless one of its processes lives; say whether it was started, not whether it comes up."""
    with _locked_for_a_child(home, "server") as descriptor:
        if descriptor is None:
            return False
        _drop_if_misleading(os.path.join(home, "postgres", "postmaster.pid"))
        _drop_if_misleading(os.path.join(sockets, ".s.PGSQL.5432.lock"))
        log = open_beside(home, "log", os.O_WRONLY | os.O_APPEND)
        try:
            _detach(argv, pass_fds=[descriptor], stdout=log, stderr=log, **options)
        finally:
            os.close(log)
        return True


def launch_keeper(home: str | os.PathLike[str]) -> None:
    """Start a keeper, unless there is one."""
    with _locked_for_a_child(home, "keeper") as descriptor:
        if descriptor is not None:
            argv = [sys.executable, "-I", "-S", __file__, str(descriptor), os.fspath(home)]
            _detach(argv, pass_fds=[descriptor], cwd="/")


# A fork of ours that got a copy of a lock meant for the server would pass for the server as long as it lives.
_no_forking = threading.Lock()
os.register_at_fork(before=_no_forking.acquire, after_in_parent=_no_forking.release, after_in_child=_no_forking.release)


@contextmanager
def _locked_for_a_child(home: str | os.PathLike[str], name: str) -> Iterator[int | None]:
    """The lock of that name, taken, to be inherited by the program that is started; None if somebody has it."""
    with _no_forking:
        descriptor = open_beside(home, name)
        try:
            yield descriptor if taken(descriptor, ALONE) else None
        finally:
            os.close(descriptor)


def _detach(argv: Sequence[str], **options: Any) -> None:
    """Run a program in a session of its own and as nobody's child, so that its end leaves no zombie with us."""
    import subprocess  # here, because the keeper itself has no use for it

    silence = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    subprocess.run(["/bin/sh", "-c", '"$@" &', "sh", *argv], start_new_session=True, **silence | options)


def _pid_in(path: str) -> int | None:
    try:
        with open(path, "rb") as file:
            return int(file.readline())
    except (OSError, ValueError):
        return None


def _drop_if_misleading(path: str) -> None:
    """Remove a pid file of PostgreSQL's whose number now belongs to a zombie or, as in a new container, to a stranger.

    PostgreSQL would take either for a running server and never start. Other stale files it sees through by itself.
    """
    if _is_misleading(_pid_in(path)):
        os.unlink(path)


def _is_misleading(pid: int | None) -> bool:
    """Whether a number belongs to a zombie or to a stranger; what there is no telling of does not count as such."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            name, _, rest = file.read().partition("(")[2].rpartition(")")
    except OSError:
        return False
    return name != "postgres" or rest.split()[0] == "Z"


def stop_server(home: str | os.PathLike[str]) -> bool:
    """Stop the server as ``pg_ctl stop -m fast`` does; say whether it is gone.

    The signal is sent here, not by pg_ctl, so that it also works after the binaries have been uninstalled and never
    reaches a stranger who now bears the pid of a stale file: a killed postmaster may leave a busy process behind.
    """
    # SIGQUIT, the immediate way, loses nothing that was committed either: the next start replays the log.
    for number, patience in ((signal.SIGINT, _FAST_PATIENCE), (signal.SIGQUIT, _IMMEDIATE_PATIENCE)):
        for _ in range(int(patience / _TICK)):
            if not server_lives(home):
                return True
            _signal_postmaster(home, number)
            time.sleep(_TICK)
    return False


def _signal_postmaster(home: str | os.PathLike[str], number: signal.Signals) -> None:
    pid = _pid_in(os.path.join(home, "postgres", "postmaster.pid"))
    try:
        if pid is not None and not _is_misleading(pid):
            os.kill(pid, number)
    except ProcessLookupError:
        return


# ---- the keeper's life


def keep(home: str) -> None:
    """Wait until nobody holds the server, linger, and stop it unless somebody has come meanwhile."""
    holders = open_beside(home, "holders")
    while True:
        fcntl.flock(holders, ALONE)
        arrivals, linger = read_arrivals(holders)
        if linger == FOREVER:
            return
        fcntl.flock(holders, fcntl.LOCK_UN)
        time.sleep(linger)
        # A holder who came and went while we slept has earned a linger of his own.
        if taken(holders, ALONE) and read_arrivals(holders)[0] == arrivals:
            if _is_still_there(holders, home):
                stop_server(home)
            return


def _is_still_there(holders: int, home: str) -> bool:
    """Whether the home is the one we were started for, not deleted, nor made anew with a keeper of its own."""
    try:
        return os.path.samestat(os.fstat(holders), os.stat(os.path.join(home, "postgres.holders")))
    except FileNotFoundError:
        return False


def main() -> None:
    """``keeper.py <descriptor of the locked postgres.keeper> <home>``"""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    own, home = int(sys.argv[1]), sys.argv[2]
    try:
        keep(home)
    finally:
        # Before the holders' lock, which ends with the process: whoever gets that one must not still find a keeper.
        os.close(own)


if __name__ == "__main__":
    main()
