"""Health files: each service process regularly writes the time and its host name to its own file.

A web service adds its address, so that `tenuto login` prints a link to it although its port was an option.

`tenuto health worker` in a container reads them; a missing or old file means unhealthy. By default it reads only the
files of the same host, because containers may share a home directory, and a killed container leaves its file there.
On the same host, the lock that a process holds on its name shows at once that it was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tenuto.clock import Clock, SystemClock, monotonic_seconds
from tenuto.model.work.worker_states import STALE_AFTER

_WRITE_INTERVAL_SECONDS = 1.0


class HealthFile:
    """The health file of one service process, named after the process. That name may change during registration."""

    def __init__(self, home: Path, service: str, name: Callable[[], str], clock: Clock | None = None) -> None:
        self._home = home
        self._service = service
        self._name = name
        self.path = self._current_path()
        self._clock = clock or SystemClock()
        self._written_at = float("-inf")
        self._address = ""

    def _current_path(self) -> Path:
        return _directory(self._home) / f"{self._service}-{self._name().replace('/', '_')}.health"

    def write(self) -> None:
        """Write the time, at most once per second."""
        if self._current_path() != self.path:
            self.remove()
            self.path = self._current_path()
        elif monotonic_seconds() - self._written_at < _WRITE_INTERVAL_SECONDS:
            return
        self._written_at = monotonic_seconds()
        with contextlib.suppress(OSError):  # a full disk must not stop the service; the file becomes stale
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new_file = self.path.with_suffix(".new")
            lines = (self._clock.now().isoformat(), _host_name(), self._address)
            new_file.write_text("".join(f"{line}\n" for line in lines if line), encoding="utf-8")
            new_file.replace(self.path)

    def announce(self, address: str) -> None:
        """Write the address at which the service is reached, now and from now on."""
        self._address = address
        self._written_at = float("-inf")
        self.write()

    def remove(self) -> None:
        """Remove the file at an orderly shutdown."""
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Health:
    """Health of one service process, from its file."""

    name: str
    written_at: datetime | None
    healthy: bool
    """Whether the file is recent, and the process is not known to have ended."""
    has_ended: bool = False
    """Whether the process is known to have ended without removing its file, as after a crash."""
    address: str | None = None
    """Of a web service: its address."""


def failed_processes(found: Sequence[Health]) -> list[Health]:
    """Return the processes that make a service unhealthy.

    The file that a crashed process left behind does not count while another process of the service is healthy; a
    process that runs and does not update its file does.
    """
    is_served = any(each.healthy for each in found)
    return [each for each in found if not each.healthy and not (is_served and each.has_ended)]


def read_health(home: Path, service: str, now: datetime, name: str | None = None) -> list[Health]:
    """Return the health of a service's processes on this host, or of the named process on any host."""
    pattern = f"{service}-{'*' if name is None else name.replace('/', '_')}.health"
    healths = []
    for file in sorted(_directory(home).glob(pattern)):
        written_at, host, address = _read(file)
        if name is None and host not in (None, _host_name()):
            continue
        is_recent = written_at is not None and now - written_at < STALE_AFTER[service]
        # A recent file of another host proves that its process runs; its locks may not be visible here.
        may_have_ended = not is_recent or host == _host_name()
        has_ended = may_have_ended and not _is_locked(file.with_suffix(".lock"))
        healthy = is_recent and not has_ended
        healths.append(Health(file.stem.removeprefix(f"{service}-"), written_at, healthy, has_ended, address))
    return healths


def _is_locked(file: Path) -> bool:
    """Return whether a process holds the lock on its name, see `process_identity`; True if it is not known."""
    try:
        with file.open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # held, or there is no such file
        return True
    return False


def _directory(home: Path) -> Path:
    return home / "run"


def _host_name() -> str:
    return os.uname().nodename  # same as socket.gethostname, whose import takes longer than the whole health check


def _read(file: Path) -> tuple[datetime | None, str | None, str | None]:
    """Return the time, the host name and the address of a health file; None for missing parts."""
    try:
        written_at, host, address, *_ = [*file.read_text(encoding="utf-8").splitlines(), "", "", ""]
        return datetime.fromisoformat(written_at.strip()), host or None, address or None
    except (OSError, ValueError):
        return None, None, None
