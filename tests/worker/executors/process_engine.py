"""The smallest engine: every launch request runs in a forked process of this machine."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from tenuto.worker.executors import remote_runner
from tenuto.worker.executors.attempt_messages import LaunchRequest

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.worker.executors.conformance_jobs", "tenuto.worker.executors.remote_runner"])


NOT_STARTED = 3
"""Exit code of a process that was not permitted to start its launch."""


class ProcessEngine:
    """Delivers a launch as often as a test asks: engines may do that, too."""

    name = "processes"
    host = "127.0.0.1"

    def __init__(self, slots: int = 8, deliveries: int = 1) -> None:
        self.slots = slots
        self.deliveries = deliveries
        self.processes: dict[str, list[BaseProcess]] = {}

    def connect(self) -> None:
        """Processes start with their launches."""

    def count_slots(self) -> int:
        return self.slots

    def submit(self, requests: Sequence[LaunchRequest]) -> None:
        for request in requests:
            started = [_processes.Process(target=_run, args=(request.to_json(),)) for _ in range(self.deliveries)]
            self.processes[request.id] = list(started)
            for process in started:
                process.start()

    def withdraw(self, id: str) -> None:
        """A launch that was not permitted ends by itself."""

    def has_ended(self, id: str, place: dict[str, Any]) -> bool:
        return not any(process.is_alive() for process in self.processes[id])

    def force_stop(self, id: str, place: dict[str, Any]) -> bool:
        for process in self.processes[id]:
            process.kill()
        return True

    def forget(self, id: str) -> None:
        """The processes are kept for the tests."""

    def abandon(self) -> None:
        """Nothing keeps the process of the worker from ending."""

    def disconnect(self) -> None:
        for processes in self.processes.values():
            for process in processes:
                process.kill()
                process.join()


def _run(payload: str) -> None:
    if remote_runner.run_attempt(payload, {}).startswith("not started"):
        raise SystemExit(NOT_STARTED)
