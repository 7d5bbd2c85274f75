"""What was checked is what runs: a copy of a program that nobody can change between the look and the start.

On Linux the copy is in memory, sealed against writing, and started through an open descriptor; no name in a file system
leads to it. Elsewhere, or where the kernel forbids that, it is a file in a folder only this user can look into. Either
way the program finds itself in another place than the original's: what lies beside that it must be told of. Decides
nothing about digests.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Copy:
    """What is started in place of the original."""

    path: str
    descriptor: int | None = None
    """Which must be open, under the same number, where it is started."""


@contextlib.contextmanager
def copy_of(content: bytes, name: str, folder: Callable[[], AbstractContextManager[str]]) -> Iterator[Copy]:
    """A copy, for as long as it is needed; ``folder`` makes a private one, if it takes a folder."""
    descriptor = _in_memory(content, name)
    if descriptor is None:
        with folder() as private:
            yield Copy(_written(content, Path(private, name)))
        return
    try:
        yield Copy(f"/proc/self/fd/{descriptor}", descriptor)
    finally:
        os.close(descriptor)


def _in_memory(content: bytes, name: str) -> int | None:
    if sys.platform != "linux" or not Path("/proc/self/fd").exists():
        return None
    try:
        descriptor = os.memfd_create(name[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        return None
    try:
        _write(descriptor, content)
        os.fchmod(descriptor, 0o500)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _written(content: bytes, file: Path) -> str:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o500)
    try:
        _write(descriptor, content)
    finally:
        os.close(descriptor)
    return str(file)


def _write(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
