"""Processes of the tour: start, kill and stop three workers and the database."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from examples.tour.jobs import PACE, app

from tenuto.postgres import embedded_server

WORKER_NAMES = ("demo-1", "demo-2", "demo-3")
LEASE_SECONDS = 4.0
SLOTS = 20
_STOP_TIMEOUT_SECONDS = 20


class WorkerProcesses:
    """The worker processes of one home directory."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._workers.items()}

    def start(self) -> None:
        for name in WORKER_NAMES:
            self._start(name)

    def _start(self, name: str) -> None:
        environment = {
            **os.environ,
            "TENUTO_DEMO_HOME": str(self._home),
            "TENUTO_DEMO_PACE": str(PACE),
            "TENUTO_LOG_LEVEL": "error",
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        }
        command = [sys.executable, "-P", "-m", "examples.tour", "--as-worker", name]
        with (self._home / f"{name}.log").open("wb") as log:
            self._workers[name] = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def failed(self) -> dict[str, str]:
        """Return the workers that ended unexpectedly, with their last log line."""
        return {
            name: self._last_log_line(name)
            for name, process in self._workers.items()
            if process.poll() not in (None, -9)
        }

    def _last_log_line(self, name: str) -> str:
        lines = (self._home / f"{name}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "no log"

    def kill(self, name: str) -> None:
        """Kill a worker with SIGKILL, so that it cannot clean up."""
        os.kill(self._workers[name].pid, signal.SIGKILL)
        self._workers[name].wait()

    async def stop_database(self) -> None:
        await asyncio.to_thread(embedded_server.stop_server, self._home)

    async def start_database(self) -> None:
        handle = await asyncio.to_thread(embedded_server.acquire_server, self._home)
        handle.release()  # the earlier users still hold the server

    def stop(self) -> None:
        """Stop all workers; a second call has no effect."""
        for process in self._workers.values():
            if process.poll() is None:
                process.terminate()
        for process in self._workers.values():
            try:
                process.wait(timeout=_STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def run_worker(name: str) -> None:
    """Run one worker of the tour in this process."""
    await app.run_worker(name=name, slots=SLOTS, lease_seconds=LEASE_SECONDS, grace_seconds=2)
