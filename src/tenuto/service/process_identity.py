"""Identity of a service process: a name that stays the same after a restart, and an id that is new at each start.

The process holds a file lock on its name in the home directory. A restarted process that gets the lock knows that its
predecessor is dead, and recovers its tasks at once instead of waiting for leases. Two containers may have the same host
name and the same path, so the ``run`` directory of each home has a random id that shows whether both use the same lock.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import subprocess
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import IO
from uuid import UUID

from tenuto.errors import Conflict
from tenuto.ids import new_id
from tenuto.model import validation
from tenuto.model.work.known_handlers import KnownHandlers
from tenuto.model.work.worker_states import silence_limit
from tenuto.postgres.database import Database
from tenuto.store.work import workers
from tenuto.store.work.workers import Declarations, ProcessRegistration
from tenuto.version import __version__

_MAX_PROCESSES_PER_HOST = 1000
_PROBE_SECONDS = 0.01
"""Longer than a health check holds the lock of a name, see `health_file`."""


class ProcessIdentity:
    """Name and id of a service process, with the lock on the name."""

    def __init__(self, service: str, home: Path, name: str, lock: IO[str], number: int | None) -> None:
        self.service = service
        self.name = name
        self.id: UUID = new_id()
        self.declarations: Declarations | None = None
        """What the app of this process declares in code; None if it has no app."""
        self._home = home
        self._lock: IO[str] | None = lock
        self._number = number

    @classmethod
    def acquire(cls, service: str, home: Path, name: str | None = None) -> ProcessIdentity:
        """Lock the given name, or the first free one of this host: ``host-1``, ``host-2`` …"""
        if name is None:
            return cls._acquire_free_name(service, home, 1)
        validation.check_name(name, field="name", limit=100)
        lock = _try_lock(home, service, name)
        if lock is None:
            raise Conflict(
                f"a {service} named {name!r} is already running on this machine",
                code="process.name.taken",
                field="name",
                remedy="stop it, or choose another name with --name",
            )
        return cls(service, home, name, lock, None)

    @classmethod
    def _acquire_free_name(cls, service: str, home: Path, number: int) -> ProcessIdentity:
        for candidate in range(number, number + _MAX_PROCESSES_PER_HOST):
            name = f"{_host_name()}-{candidate}"
            lock = _try_lock(home, service, name)
            if lock is not None:
                return cls(service, home, name, lock, candidate)
        raise Conflict(
            f"{_MAX_PROCESSES_PER_HOST} {service} processes already run on this machine",
            code="process.name.none_free",
            field="name",
        )

    def try_another_name(self) -> bool:
        """Switch to the next free name, because a process on another host has this one.

        Return False if the name was chosen by the operator.
        """
        if self._number is None:
            return False
        other = self._acquire_free_name(self.service, self._home, self._number + 1)
        self.release()
        self.name, self._lock, self._number = other.name, other._lock, other._number
        return True

    def renew_id(self) -> None:
        """Take a new id under the same name, as after a restart."""
        self.id = new_id()

    @property
    def name_is_locked(self) -> bool:
        return self._lock is not None

    def release(self) -> None:
        """Release the lock on the name."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def to_registration(
        self, queues: list[str], slots: int, heartbeat_seconds: float = 10.0, handlers: KnownHandlers | None = None
    ) -> ProcessRegistration:
        """Return the row that registers this process. Its host includes the home, the scope of the file locks: host
        name and path, then ``#`` and what identifies the folder of the locks also after a change of the host name."""
        host = f"{socket.gethostname()}:{self._home}#{_home_id(self._home)}"  # guard: workers.home_id
        return ProcessRegistration(
            self.id, self.name, self.service, host, _boot_id(), os.getpid(), __version__, queues, slots,
            silence_limit(heartbeat_seconds), handlers,
        )  # fmt: skip


async def register_process(
    database: Database,
    identity: ProcessIdentity,
    queues: list[str],
    slots: int,
    *,
    reserved_for: timedelta,
    heartbeat_seconds: float,
    handlers: KnownHandlers | None = None,
) -> UUID | None:
    """Register the process in the database. ``reserved_for`` is how long a silent process keeps its name.

    Return the id of the previous start under the same name, if this registration proves that it is dead.
    """
    while True:
        try:
            previous = await workers.register_process(
                database,
                identity.to_registration(queues, slots, heartbeat_seconds, handlers),
                holds_name_lock=identity.name_is_locked,
                reserved_for=reserved_for,
            )
            break
        except Conflict:
            if not identity.try_another_name():
                raise
    if identity.declarations is not None:
        await workers.record_declarations(database, identity.id, identity.declarations)
    return previous


def _try_lock(home: Path, service: str, name: str) -> IO[str] | None:
    directory = home / "run"
    directory.mkdir(parents=True, exist_ok=True)
    handle = (directory / f"{service}-{name.replace('/', '_')}.lock").open("a", encoding="ascii")
    for delay_seconds in (_PROBE_SECONDS, None):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # guard: workers.exclusive_name_lock
        except OSError:
            if delay_seconds is not None:  # a health check holds a shared lock for an instant
                time.sleep(delay_seconds)
        else:
            return handle
    handle.close()
    return None


def _home_id(home: Path) -> str:
    """Return the random id of this home directory with the number of its file, which differs in a copied home."""
    file = home / "run" / "home.id"
    home_id = _read_or_create_home_id(file)
    status = file.stat()
    return f"{home_id}@{status.st_dev:x}.{status.st_ino:x}"


def _read_or_create_home_id(file: Path) -> str:
    with suppress(FileNotFoundError):
        if home_id := file.read_text(encoding="ascii").strip():
            return home_id
    with file.open("a+", encoding="ascii") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        handle.seek(0)
        home_id = handle.read().strip()
        if not home_id:
            home_id = secrets.token_hex(6)
            handle.write(home_id)
        return home_id


def _host_name() -> str:
    clean = "".join(char if char.isalnum() or char in "-." else "-" for char in socket.gethostname())
    return clean.strip("-.")[:60] or "host"


def _boot_id() -> str:
    """Return the id of the current boot of the machine; processes of earlier boots are dead."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # macOS
        command = ["sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
