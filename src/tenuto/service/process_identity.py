"""Who a service is: a name that lasts over restarts, an id that is new at each start.

The name is locked in this home for as long as the process lives. A successor that gets the lock knows its predecessor
is dead, and may take back its work at once instead of waiting for leases. That is proof only where both speak of the
same lock: two containers may have the same hostname and the same path, so each home's folder ``run`` has an id of its
own, drawn once.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import IO
from uuid import UUID

from tenuto.errors import Conflict
from tenuto.ids import new_id
from tenuto.model import stored_values
from tenuto.postgres.database import Database
from tenuto.store import workers
from tenuto.store.workers import Incarnation
from tenuto.version import __version__

_MOST = 1000


class Identity:
    """A locked name."""

    def __init__(self, service: str, home: Path, name: str, lock: IO[str], number: int | None) -> None:
        self.service = service
        self.name = name
        self.id: UUID = new_id()
        self._home = home
        self._lock: IO[str] | None = lock
        self._number = number

    @classmethod
    def take(cls, service: str, home: Path, name: str | None = None) -> Identity:
        """The given name, or the first free one of this host: ``host-1``, ``host-2`` …"""
        if name is None:
            return cls._first_free(service, home, 1)
        stored_values.name(name, field="name", limit=100)
        lock = _try_lock(home, service, name)
        if lock is None:
            raise Conflict(
                f"a {service} named {name} is running on this machine already",
                field="name",
                remedy="stop it, or give this one another name with --name",
            )
        return cls(service, home, name, lock, None)

    @classmethod
    def _first_free(cls, service: str, home: Path, number: int) -> Identity:
        for candidate in range(number, number + _MOST):
            name = f"{_host()}-{candidate}"
            lock = _try_lock(home, service, name)
            if lock is not None:
                return cls(service, home, name, lock, candidate)
        raise Conflict(f"{_MOST} services run on this machine already", field="name")

    def try_another_name(self) -> bool:
        """Somebody out of reach of our locks has this name: take the next one, if the name was not given to us."""
        if self._number is None:
            return False
        other = self._first_free(self.service, self._home, self._number + 1)
        self.release()
        self.name, self._lock, self._number = other.name, other._lock, other._number
        return True

    def begin_anew(self) -> None:
        """The same name, as if started again: whatever was known of us by the old id is over."""
        self.id = new_id()

    @property
    def name_is_locked(self) -> bool:
        return self._lock is not None

    def release(self) -> None:
        """Let the name go."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def incarnation(self, queues: list[str], slots: int) -> Incarnation:
        """This start, as the register knows it. The host is where our locks reach: this machine, and this very home."""
        reach = f"{socket.gethostname()}:{self._home}#{_home_id(self._home)}"
        return Incarnation(self.id, self.name, self.service, reach, _boot(), os.getpid(), __version__, queues, slots)


async def enter_register(
    database: Database, identity: Identity, queues: list[str], slots: int, *, silence: timedelta
) -> UUID | None:
    """Enter the register under this identity; the previous start of the same name, if that is proven dead only now."""
    while True:
        try:
            return await workers.register(
                database, identity.incarnation(queues, slots), name_is_mine=identity.name_is_locked, silence=silence
            )
        except Conflict:
            if not identity.try_another_name():
                raise


def _try_lock(home: Path, service: str, name: str) -> IO[str] | None:
    folder = home / "run"
    folder.mkdir(parents=True, exist_ok=True)
    handle = (folder / f"{service}-{name.replace('/', '_')}.lock").open("a", encoding="ascii")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        return None
    return handle


def _home_id(home: Path) -> str:
    """The id of this home, drawn by whoever needs it first."""
    file = home / "run" / "home.id"
    with suppress(FileNotFoundError):
        if known := file.read_text(encoding="ascii").strip():
            return known
    with file.open("a+", encoding="ascii") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        handle.seek(0)
        known = handle.read().strip()
        if not known:
            known = secrets.token_hex(6)
            handle.write(known)
        return known


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
