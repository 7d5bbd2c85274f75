"""Clusters for the tests of executors: real processes on loopback, stopped at the end of the module."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[3]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert process.poll() is None, f"{process.args!r} has ended"
            assert time.monotonic() < deadline, f"{process.args!r} does not listen"
            time.sleep(0.02)


class Processes:
    """Processes of a cluster, each in a group of its own, with their output in files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, command: Sequence[str], **environment: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            )
        self._running.append(process)
        return process

    @staticmethod
    def kill(process: subprocess.Popen[bytes]) -> None:
        """Kill a process and those that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in reversed(self._running):
            self.kill(process)


class DaskCluster:
    """A scheduler and workers of Dask."""

    def __init__(self, folder: Path) -> None:
        self._processes = Processes(folder)
        self._folder = folder
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.start_scheduler()

    def start_scheduler(self) -> None:
        self.scheduler = self._start("scheduler", "--port", str(self.port), "--no-dashboard", "--no-show")
        wait_for_port(self.port, self.scheduler)

    def start_worker(self, *, threads: int, processes: int = 1) -> subprocess.Popen[bytes]:
        return self._start(
            "worker", self.address, "--nthreads", str(threads), "--nworkers", str(processes), "--no-dashboard",
            "--local-directory", str(self._folder),
        )  # fmt: skip

    def _start(self, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        return self._processes.start(
            f"dask-{command}",
            [sys.executable, "-m", f"distributed.cli.dask_{command}", "--host", "127.0.0.1", *arguments],
        )

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        self._processes.kill(process)

    def stop(self) -> None:
        self._processes.stop()


@contextmanager
def dask_cluster(folder: Path) -> Iterator[DaskCluster]:
    cluster = DaskCluster(folder)
    try:
        yield cluster
    finally:
        cluster.stop()
