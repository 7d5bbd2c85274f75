"""The built-in task server: the code runs in the worker's own process, on a loop, in threads and in child processes."""

from __future__ import annotations

from collections.abc import Sequence

from tenuto.jobs.attempts import Attempt
from tenuto.jobs.runner import Runner
from tenuto.worker.executors import Terms
from tenuto.worker.stall_detector import StallDetector


class Native:
    """A runner, and an eye on its loop."""

    def __init__(self, terms: Terms) -> None:
        self._runner = Runner(terms.jobs, terms.clock, terms.deliver, threads=terms.slots)
        self._stalls = StallDetector(self._runner.loop)

    def start(self) -> None:
        self._runner.start()

    def launch(self, attempts: Sequence[Attempt]) -> None:
        self._runner.launch(attempts)

    def look(self) -> None:
        self._stalls.look(self._runner.loop_thread_id)

    def close(self) -> None:
        self._runner.close()
