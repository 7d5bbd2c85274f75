"""The health file: each service writes the time, and on which host it is, into a file of its own while its loop goes
round.

A container asks `tenuto health worker`; a file that is too old, or missing, means unhealthy. It asks for its own
service: a home may be shared with other containers, or have come down from one that was killed, and what these left
there says nothing about this one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from tenuto.clock import Clock, SystemClock, steady

STALE_AFTER = {"worker": timedelta(seconds=60), "scheduler": timedelta(seconds=120), "web": timedelta(seconds=60)}
_EVERY = 1.0


class HealthFile:
    """The file of one service; it goes by the service's name, which may change until it has found one of its own."""

    def __init__(self, home: Path, service: str, name: Callable[[], str], clock: Clock | None = None) -> None:
        self._home = home
        self._service = service
        self._name = name
        self.path = self._path()
        self._clock = clock or SystemClock()
        self._written = float("-inf")

    def _path(self) -> Path:
        return _folder(self._home) / f"{self._service}-{self._name().replace('/', '_')}.health"

    def beat(self) -> None:
        """Write the time, at most once a second."""
        if self._path() != self.path:
            self.remove()
            self.path = self._path()
        elif steady() - self._written < _EVERY:
            return
        self._written = steady()
        with contextlib.suppress(OSError):  # a full disk must not stop the work; the file grows stale and says so
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.path.with_suffix(".new")
            fresh.write_text(f"{self._clock.now().isoformat()}\n{_host()}\n", encoding="utf-8")
            fresh.replace(self.path)

    def remove(self) -> None:
        """The service has left in good order."""
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Health:
    """What the file of one service says."""

    name: str
    seen_at: datetime | None
    healthy: bool


def look(home: Path, service: str, now: datetime, name: str | None = None) -> list[Health]:
    """The health of a service's processes on this host, by their files; of one that is named, wherever it is."""
    pattern = f"{service}-{'*' if name is None else name.replace('/', '_')}.health"
    found = []
    for file in sorted(_folder(home).glob(pattern)):
        seen_at, host = _read(file)
        if name is None and host not in (None, _host()):
            continue
        healthy = seen_at is not None and now - seen_at < STALE_AFTER[service]
        found.append(Health(file.stem.removeprefix(f"{service}-"), seen_at, healthy))
    return found


def condition(worker: Mapping[str, Any]) -> Literal["alive", "draining", "stale", "ended"]:
    """What the register says of a service: stale is one that should have been heard of and was not."""
    if worker["ended_at"] is not None:
        return "ended"
    if worker["silent_for"] > STALE_AFTER[worker["service"]]:
        return "stale"
    return "alive" if worker["draining_at"] is None else "draining"


def _folder(home: Path) -> Path:
    return home / "run"


def _host() -> str:
    return os.uname().nodename  # socket.gethostname says the same, and takes longer to import than all of a check


def _read(file: Path) -> tuple[datetime | None, str | None]:
    """When it was written, and on which host; None for what it does not say."""
    try:
        instant, host, *_ = [*file.read_text(encoding="utf-8").splitlines(), "", ""]
        return datetime.fromisoformat(instant.strip()), host or None
    except (OSError, ValueError):
        return None, None
