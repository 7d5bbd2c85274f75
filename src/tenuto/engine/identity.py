"""Who a service is: a name that lasts over restarts, an id that is new at each start.

The name is locked on this host for as long as the process lives. A successor that gets the lock knows its predecessor
is dead, and may take back its work at once instead of waiting for leases.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from typing import IO
from uuid import UUID

from tenuto.errors import Conflict
from tenuto.ids import new_id
from tenuto.model import payloads
from tenuto.store.workers import Incarnation
from tenuto.version import __version__

_MOST = 1000


class Identity:
    """A locked name."""

    def __init__(self, service: str, name: str, lock: IO[str]) -> None:
        self.service = service
        self.name = name
        self.id: UUID = new_id()
        self._lock: IO[str] | None = lock

    @classmethod
    def take(cls, service: str, home: Path, name: str | None = None) -> Identity:
        """The given name, or the first free one of this host: ``host-1``, ``host-2`` …"""
        folder = home / "run"
        folder.mkdir(parents=True, exist_ok=True)
        if name is not None:
            payloads.name(name, field="name", limit=100)
            lock = _try_lock(folder / f"{service}-{name.replace('/', '_')}.lock")
            if lock is None:
                raise Conflict(
                    f"a {service} named {name} is running on this machine already",
                    field="name",
                    remedy="stop it, or give this one another name with --name",
                )
            return cls(service, name, lock)
        for number in range(1, _MOST):
            candidate = f"{_host()}-{number}"
            lock = _try_lock(folder / f"{service}-{candidate}.lock")
            if lock is not None:
                return cls(service, candidate, lock)
        raise Conflict(f"{_MOST} services run on this machine already", field="name")

    @property
    def name_is_locked(self) -> bool:
        return self._lock is not None

    def release(self) -> None:
        """Let the name go."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def incarnation(self, queues: list[str], slots: int) -> Incarnation:
        """This start, as the register knows it."""
        return Incarnation(
            self.id, self.name, self.service, socket.gethostname(), _boot(), os.getpid(), __version__, queues, slots
        )


def _try_lock(file: Path) -> IO[str] | None:
    handle = file.open("a", encoding="ascii")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        return None
    return handle


def _host() -> str:
    clean = "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in socket.gethostname())
    return clean.strip("-.")[:60] or "host"


def _boot() -> str:
    """Which boot of the machine this is: after another one, every process of before is dead."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        import psutil

        return str(int(psutil.boot_time()))
