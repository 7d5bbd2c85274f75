"""Where tests keep what does not outlive them: in memory if there is room. It spares the disk a thousand databases."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from tenuto.postgres import embedded_server, embedded_supervisor

_ENOUGH = 4 << 30


def _roomy() -> Path:
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > _ENOUGH else Path("/tmp")


ROOMY = _roomy()


def new_folder(prefix: str) -> Path:
    """A folder with a short path, through which a server can pass that as root runs under another account."""
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=ROOMY))
    folder.chmod(0o755)
    return folder


def end_server(home: Path) -> None:
    """Stop the server of a home that lingers for nobody, and leave nothing of either.

    Its keeper has a last look at the home when the last holder has let go: then it must still be there.
    """
    embedded_server.stop_now(home)
    os.close(embedded_supervisor.wait_for(home, "keeper", embedded_supervisor.ALONE))
    shutil.rmtree(home)


def clear_up(prefix: str) -> None:
    """Remove the folders of sessions that were killed before they could."""
    for folder in ROOMY.glob(f"{prefix}*-*"):
        pid = folder.name.removeprefix(prefix).partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            with suppress(OSError):
                shutil.rmtree(folder)
