"""The file the first key is written to: whole or not at all, for its owner's eyes only, never over another one."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from tenuto.errors import Conflict

NAME = "admin.key"


def keep(home: Path, make: Callable[[], str]) -> tuple[Path, str]:
    """The file, and the text that stands in it now: the one that was there already, or a new one."""
    path = home / NAME
    home.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink() and not path.exists():
        _write(path, make())
    return path, _read(path)


def _write(path: Path, text: str) -> None:
    """By way of a file of its own and a link, which never replaces what another has written meanwhile."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.fchmod(handle, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
    finally:
        draft.unlink()


def _read(path: Path) -> str:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise Conflict(f"{path} cannot be read: {error.strerror}", remedy="move it away, and start again") from error
    with os.fdopen(handle, encoding="ascii", errors="replace") as file:
        about = os.fstat(file.fileno())
        if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077 or not stat.S_ISREG(about.st_mode):
            raise Conflict(
                f"{path} may be read by others, or is somebody else's",
                remedy=f"move it away and start again, or chmod 600 {path}",
            )
        return file.read(1000).strip()
