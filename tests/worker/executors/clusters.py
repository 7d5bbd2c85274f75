"""Clusters for the tests of executors: real processes on loopback, stopped at the end of the module."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from tenuto.worker.executors.cluster import Engine

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
    """Processes of a cluster, each in a separate group, with their output in files."""

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

    @staticmethod
    def freeze(process: subprocess.Popen[bytes]) -> None:
        """Let a process and those that it has started answer nothing, like a machine behind a network that is gone."""
        os.killpg(process.pid, signal.SIGSTOP)

    @staticmethod
    def thaw(process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGCONT)

    def stop(self) -> None:
        for process in reversed(self._running):
            self.kill(process)


def kill_parent(pid: int) -> None:
    """Kill the parent of a process: the main process of Celery, the nanny of Dask, the raylet of Ray."""
    parent = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    assert parent > 1
    os.kill(parent, signal.SIGKILL)


class Cluster(Protocol):
    """A cluster of an engine, whose parts tests start and kill."""

    name: str
    address: str

    def make_engine(self) -> Engine: ...

    def start_head(self) -> None:
        """Start the scheduler or broker."""
        ...

    def kill_head(self) -> None: ...

    def freeze_head(self) -> None: ...

    def thaw_head(self) -> None: ...

    def start_worker(self, slots: int) -> None:
        """Start a worker with this number of slots, each in a separate process if the engine has processes."""
        ...

    @property
    def has_workers(self) -> bool: ...

    def kill_workers(self) -> None: ...

    def kill_newest_worker(self) -> None: ...

    def stop(self) -> None: ...


class DaskCluster:
    """A scheduler and workers of Dask, whose processes have several slots or one."""

    name = "dask"

    def __init__(self, folder: Path, slots_per_process: int = 1) -> None:
        self._processes = Processes(folder)
        self._folder = folder
        self._slots_per_process = slots_per_process
        self._port = free_port()
        self.address = f"tcp://127.0.0.1:{self._port}"
        self._workers: list[subprocess.Popen[bytes]] = []
        self.start_head()

    def make_engine(self) -> Engine:
        from tenuto.worker.executors.dask_engine import DaskEngine

        return DaskEngine(self.address)

    def start_head(self) -> None:
        arguments = ("--port", str(self._port), "--no-dashboard", "--no-show")
        self._scheduler = self._start("scheduler", *arguments)
        wait_for_port(self._port, self._scheduler)

    def kill_head(self) -> None:
        self._processes.kill(self._scheduler)

    def freeze_head(self) -> None:
        self._processes.freeze(self._scheduler)

    def thaw_head(self) -> None:
        self._processes.thaw(self._scheduler)

    def start_worker(self, slots: int) -> None:
        count, threads = slots // self._slots_per_process, self._slots_per_process
        self._workers.append(
            self._start(
                "worker", self.address, "--nthreads", str(threads), "--nworkers", str(count), "--no-dashboard",
                "--local-directory", str(self._folder),
            )
        )  # fmt: skip

    def _start(self, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        module = f"distributed.cli.dask_{command}"
        return self._processes.start(command, [sys.executable, "-m", module, "--host", "127.0.0.1", *arguments])

    @property
    def has_workers(self) -> bool:
        return bool(self._workers)

    def kill_workers(self) -> None:
        while self._workers:
            self.kill_newest_worker()

    def kill_newest_worker(self) -> None:
        self._processes.kill(self._workers.pop())

    def stop(self) -> None:
        self._processes.stop()


class CeleryCluster:
    """A Redis server and prefork workers of Celery."""

    name = "celery"

    def __init__(self, folder: Path, module: str = "tenuto.worker.executors.celery_tasks") -> None:
        self._processes = Processes(folder)
        self._folder = folder
        self._module = module
        self._port = free_port()
        self.address = f"redis://127.0.0.1:{self._port}/0"
        self._workers: list[subprocess.Popen[bytes]] = []
        self.start_head()

    def make_engine(self) -> Engine:
        from tenuto.worker.executors.celery_engine import CeleryEngine

        return CeleryEngine(self.address)

    def start_head(self) -> None:
        options = ("--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder))
        self._broker = self._processes.start("redis", ["redis-server", *options])
        wait_for_port(self._port, self._broker)

    def kill_head(self) -> None:
        self._processes.kill(self._broker)

    def freeze_head(self) -> None:
        self._processes.freeze(self._broker)

    def thaw_head(self) -> None:
        self._processes.thaw(self._broker)

    def start_worker(self, slots: int, pool: str = "prefork") -> None:
        name = f"worker-{len(self._workers)}@localhost"
        command = [sys.executable, "-m", "celery", "-A", self._module, "-b", self.address]
        command += ["--result-backend", self.address, "worker", "-Q", "tenuto", "-c", str(slots), "-n", name]
        self._workers.append(
            self._processes.start(f"celery-{len(self._workers)}", [*command, "-P", pool, "-l", "info"])
        )

    @property
    def has_workers(self) -> bool:
        return bool(self._workers)

    def kill_workers(self) -> None:
        while self._workers:
            self.kill_newest_worker()

    def kill_newest_worker(self) -> None:
        self._processes.kill(self._workers.pop())

    def stop(self) -> None:
        self._processes.stop()


class RayCluster:
    """A head node of Ray, and further nodes on the same machine."""

    name = "ray"

    def __init__(self, folder: Path) -> None:
        self._processes = Processes(folder)
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._workers: list[subprocess.Popen[bytes]] = []
        self.start_head()

    def make_engine(self) -> Engine:
        from tenuto.worker.executors.ray_engine import RayEngine

        return RayEngine(self.address)

    def start_head(self) -> None:
        ports = ("--port", str(self._port), "--include-dashboard", "false", "--num-cpus", "0")
        self._head = self._start("head", "--head", *ports)
        wait_for_port(self._port, self._head)

    def kill_head(self) -> None:
        self._processes.kill(self._head)

    def freeze_head(self) -> None:
        self._processes.freeze(self._head)

    def thaw_head(self) -> None:
        self._processes.thaw(self._head)

    def start_worker(self, slots: int) -> None:
        self._workers.append(self._start("node", "--address", self.address, "--num-cpus", str(slots)))

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        common = ("--node-ip-address", "127.0.0.1", "--disable-usage-stats", "--block")
        memory = ("--object-store-memory", "80000000")
        command = [str(Path(sys.executable).with_name("ray")), "start", *arguments, *memory, *common]
        return self._processes.start(f"ray-{name}", command)

    @property
    def has_workers(self) -> bool:
        return bool(self._workers)

    def kill_workers(self) -> None:
        while self._workers:
            self.kill_newest_worker()

    def kill_newest_worker(self) -> None:
        self._processes.kill(self._workers.pop())

    def stop(self) -> None:
        self._processes.stop()
