"""Worker processes of a test, controlled by their pid and awaited with a deadline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.races.jobs import LEDGER
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie process does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class ProcessPool:
    """Process that forks the others; see `tests.races.process_launcher`."""

    def __init__(self, module: str = "tests.races.process_launcher") -> None:
        paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), str(ROOT)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the launcher and every process it started."""
        self._process.communicate(timeout=30)


@dataclass
class WorkerProcess:
    pid: int
    name: str
    log: Path
    process_pool: ProcessPool
    exit_code: int | None = None

    def signal(self, number: signal.Signals) -> None:
        assert self.exit_code is None
        os.kill(self.pid, number)

    def has_ended(self) -> bool:
        if self.exit_code is None:
            self.exit_code = self.process_pool.send({"ended": self.pid})
        return self.exit_code is not None

    async def wait_for_exit(self, within: float) -> int:
        """Wait for the end of the process and return the exit code, or minus the signal."""
        await eventually(self.has_ended, timeout=within, what=f"worker {self.name} (pid {self.pid}) ends")
        assert self.exit_code is not None
        return self.exit_code

    def has_logged(self, text: str) -> bool:
        return self.log.exists() and text in self.log.read_text(encoding="utf-8", errors="replace")

    async def wait_until_ready(self, within: float = 20) -> WorkerProcess:
        """Wait until the worker claims tasks."""

        def ready() -> bool:
            assert not self.has_ended(), f"worker {self.name} ended with {self.exit_code}"
            return self.has_logged("worker started")

        await eventually(ready, timeout=within, what=f"worker {self.name} is ready")
        return self

    def descendants(self) -> list[int]:
        """Return the pids of all descendants."""
        found: list[int] = []
        waiting = [self.pid]
        while waiting:
            pid = waiting.pop()
            with suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    waiting += map(int, (task / "children").read_text(encoding="ascii").split())
            found.append(pid)
        return found[1:]


@dataclass
class Workers:
    """Worker processes of one test."""

    process_pool: ProcessPool
    url: str
    folder: Path
    ledger: Path
    started: list[WorkerProcess] = field(default_factory=list)
    died_ns: dict[int, int] = field(default_factory=dict)
    """Last instant at which each killed process was known to live, on the monotonic clock."""

    def start(
        self,
        name: str,
        *,
        url: str | None = None,
        sweep: float = 0.5,
        environment: dict[str, str] | None = None,
        crash_at: str | None = None,
        do: str = "work",
        **worker: Any,
    ) -> WorkerProcess:
        """Start a worker (or another role, ``do``) with these settings."""
        log = self.folder / f"{name}-{len(self.started)}.log"
        given = {"slots": 10, "lease_seconds": 30.0, "poll_seconds": 0.2, "grace_seconds": 5.0, **worker}
        order = {
            "do": do,
            "log": str(log),
            "environment": {LEDGER: str(self.ledger), **(environment or {})},
            "settings": {"database": url or self.url, "home": str(self.folder), "sweep_seconds": sweep},
            "worker": {"name": name, **given},
            "crash_at": crash_at,
        }
        process = WorkerProcess(self.process_pool.send({"start": order}), name, log, self.process_pool)
        self.started.append(process)
        return process

    async def kill(self, process: WorkerProcess) -> None:
        """Kill a process with SIGKILL and wait for its end."""
        self.died_ns[process.pid] = time.monotonic_ns()
        process.signal(signal.SIGKILL)
        await process.wait_for_exit(within=10)

    async def stop(self, *processes: WorkerProcess, within: float = 20) -> None:
        """Send SIGTERM and wait for clean exits."""
        for process in processes:
            process.signal(signal.SIGTERM)
        for process in processes:
            code = await process.wait_for_exit(within=within)
            assert code == 0, f"worker {process.name} ended with {code}"

    async def kill_all(self) -> None:
        """Kill every process that still runs and print the end of its log."""
        for process in self.started:
            if not process.has_ended():
                process.signal(signal.SIGKILL)
        for process in self.started:
            await process.wait_for_exit(within=10)
            text = process.log.read_text(encoding="utf-8", errors="replace") if process.log.exists() else ""
            print(f"--- {process.name}, pid {process.pid}, ended with {process.exit_code}\n{text[-3000:]}")
