"""Where tests keep what does not outlive them: in memory if there is room. It spares the disk a thousand databases."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

_ENOUGH = 4 << 30


def _roomy() -> Path:
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > _ENOUGH else Path("/tmp")


ROOMY = _roomy()


def new_folder(prefix: str) -> Path:
    """A folder with a short path, through which a server can pass that as root runs under another account."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=ROOMY))
    folder.chmod(0o755)
    return folder
