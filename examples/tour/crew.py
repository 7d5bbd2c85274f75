"""The processes of a tour: three workers and the database, started, hurt and stopped, each by its own pid."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from examples.tour.jobs import PACE, app

from tenuto.postgres import embedded_server

NAMES = ("demo-1", "demo-2", "demo-3")
LEASE_SECONDS = 4.0
SLOTS = 20
_PATIENCE = 20


class Crew:
    """Who works in a home."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._workers.items()}

    def start(self) -> None:
        for name in NAMES:
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

    def fallen(self) -> dict[str, str]:
        """Workers that have ended although nobody told them to, with the last they said."""
        return {
            name: self._last_words(name) for name, process in self._workers.items() if process.poll() not in (None, -9)
        }

    def _last_words(self, name: str) -> str:
        said = (self._home / f"{name}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return said[-1] if said else "without a word"

    def kill(self, name: str) -> None:
        """In the hardest way: it can neither say nor save anything."""
        os.kill(self._workers[name].pid, signal.SIGKILL)
        self._workers[name].wait()

    async def stop_the_database(self) -> None:
        await asyncio.to_thread(embedded_server.stop_server, self._home)

    async def start_the_database(self) -> None:
        again = await asyncio.to_thread(embedded_server.acquire_server, self._home)
        again.release()  # those who held it before hold it still

    def stop(self) -> None:
        """Stop what was started. Doing it twice is doing it once."""
        for process in self._workers.values():
            if process.poll() is None:
                process.terminate()
        for process in self._workers.values():
            try:
                process.wait(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def be_a_worker(name: str) -> None:
    """One of the crew, in a process of its own."""
    await app.run_worker(name=name, slots=SLOTS, lease_seconds=LEASE_SECONDS, grace_seconds=2)
