"""Temporary directories of tests, in memory if there is enough space."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from tenuto.postgres import embedded_server, embedded_supervisor

_MIN_FREE_BYTES = 4 << 30


def _temp_root() -> Path:
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > _MIN_FREE_BYTES else Path("/tmp")


TEMP_ROOT = _temp_root()


def new_temp_dir(prefix: str) -> Path:
    """Create a directory with a short path that the server, which as root runs under another account, can access."""
    directory = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=TEMP_ROOT))
    directory.chmod(0o755)
    return directory


def stop_server_and_remove(home: Path) -> None:
    """Stop the server of a home directory and remove the directory.

    Its supervisor reads the home directory once more after the last holder has released the server.
    """
    embedded_server.stop_server(home)
    os.close(embedded_supervisor.acquire_lock(home, "supervisor", embedded_supervisor.EXCLUSIVE))
    shutil.rmtree(home)


def remove_stale_temp_dirs(prefix: str) -> None:
    """Remove the directories of killed sessions."""
    for directory in TEMP_ROOT.glob(f"{prefix}*-*"):
        pid = directory.name.removeprefix(prefix).partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            with suppress(OSError):
                shutil.rmtree(directory)
