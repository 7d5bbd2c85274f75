"""A Redis server for the peers that need one, with default or durable settings, on a socket in a temporary directory.

It is stopped and removed after the last case. If the program is missing, root installs it with apt-get, system-wide
and
permanently; for other users, the peers on Redis are left out.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import progress
from benchmarks.processes import ContenderFailed

PROGRAM = "redis-server"


@contextlib.contextmanager
def redis_server(*, durable: bool = False) -> Iterator[str | None]:
    """Yield the socket path of a fresh server, or None if Redis is not available.

    By default Redis answers before anything is on disk; ``durable`` makes it write and sync first, as PostgreSQL
    does.
    """
    if not _ensure_installed():
        progress(f"{PROGRAM} is not installed: the peers on Redis are left out (Debian: apt-get install {PROGRAM})")
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="tenuto-bench-redis-", dir="/var/tmp") as folder:
        socket = Path(folder) / "socket"
        arguments = [PROGRAM, "--port", "0", "--unixsocket", str(socket), "--dir", folder, "--loglevel", "warning"]
        if durable:
            arguments += ["--appendonly", "yes", "--appendfsync", "always"]
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            limit = time.monotonic() + 10
            while not socket.exists():
                if process.poll() is not None or time.monotonic() > limit:
                    raise ContenderFailed(f"{PROGRAM} did not start")
                time.sleep(0.05)
            yield str(socket)
        finally:
            process.kill()
            process.wait()


def _ensure_installed() -> bool:
    if shutil.which(PROGRAM) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        progress(f"installing {PROGRAM} with apt-get …")
        for verb in (["update"], ["install", "--yes", "--no-install-recommends", PROGRAM]):
            subprocess.run(["apt-get", "--quiet", *verb], check=False, stdout=subprocess.DEVNULL, timeout=600)
    return shutil.which(PROGRAM) is not None
