"""A runner without worker and database: tests start attempts and get their outcomes."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tenuto import Job, Tenuto
from tenuto.clock import SystemClock, monotonic_seconds
from tenuto.jobs.attempts import Attempt
from tenuto.jobs.context import Context
from tenuto.jobs.output_capture import OutputCapture
from tenuto.jobs.runner import AttemptResult, Runner
from tenuto.model.work.tasks import Outcome
from tests.support.model_values import make_held_task


class RunnerHarness:
    """Starts attempts in a runner and collects their outcomes."""

    def __init__(self, home: Path) -> None:
        self.app = Tenuto("postgresql://nobody@nowhere.invalid/none", home=home)
        self._delivered: queue.Queue[AttemptResult] = queue.Queue()
        self._ended: dict[int, AttemptResult] = {}
        self._is_capturing = False
        self._closed = False
        self.runner = Runner(self.app.jobs, SystemClock(), self._deliver, threads=8)

    def _deliver(self, ends: Sequence[AttemptResult]) -> None:
        for end in ends:
            self._delivered.put(end)

    def start(self, job: Job[..., Any], *args: Any, _fields: dict[str, Any] | None = None, **kwargs: Any) -> Attempt:
        if not self._is_capturing:  # not in the fixture: pytest replaces the streams between setup and call
            OutputCapture.start()
            self._is_capturing = True
        fields = {"input": job.dump_input(args, kwargs), "name": job.name, "policy_json": job.policy_json}
        task = make_held_task(**{**fields, **(_fields or {})})
        attempt = Attempt(task, Context(task), monotonic_seconds() + 60, monotonic_seconds())
        self.runner.launch([attempt])
        return attempt

    def wait_for_outcome(self, attempt: Attempt, timeout: float = 30.0) -> Outcome | None:
        """Wait until the attempt has ended and return its outcome."""
        while id(attempt) not in self._ended:
            ended, outcome = self._delivered.get(timeout=timeout)
            assert id(ended) not in self._ended, "an attempt must end once"
            self._ended[id(ended)] = ended, outcome
        return self._ended[id(attempt)][1]

    def close(self) -> None:
        try:
            if not self._closed:
                self._closed = True
                self.runner.close()
        finally:
            if self._is_capturing:
                self._is_capturing = False
                OutputCapture.stop()

    def run(self, job: Job[..., Any], *args: Any, _fields: dict[str, Any] | None = None, **kwargs: Any) -> Outcome:
        """Run an attempt to its end and return its outcome."""
        outcome = self.wait_for_outcome(self.start(job, *args, _fields=_fields, **kwargs))
        assert outcome is not None
        return outcome


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RunnerHarness]:
    harness = RunnerHarness(tmp_path)
    harness.runner.start()
    yield harness
    harness.close()
