"""The health file: each service writes the time into a file of its own while its loop goes round.

A container asks `tenuto health worker`; a file that is too old, or missing, means unhealthy.
"""

from __future__ import annotations

import contextlib
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
            fresh.write_text(f"{self._clock.now().isoformat()}\n", encoding="ascii")
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
    """The health of a service's processes on this machine, by their files."""
    pattern = f"{service}-{'*' if name is None else name.replace('/', '_')}.health"
    found = []
    for file in sorted(_folder(home).glob(pattern)):
        seen_at = _read(file)
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


def _read(file: Path) -> datetime | None:
    try:
        return datetime.fromisoformat(file.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return None
