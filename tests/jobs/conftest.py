"""A runner without a worker around it: attempts go in, outcomes come out, no database is near."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tenuto import Job, Tenuto
from tenuto.clock import SystemClock, steady
from tenuto.jobs.attempts import Attempt
from tenuto.jobs.context import Context
from tenuto.jobs.output_capture import Capture
from tenuto.jobs.runner import End, Runner
from tenuto.model.tasks import Outcome
from tests.support.model_values import a_held_task


class Bench:
    """Where attempts are run by hand."""

    def __init__(self, home: Path) -> None:
        self.app = Tenuto("postgresql://nobody@nowhere.invalid/none", home=home)
        self._delivered: queue.Queue[End] = queue.Queue()
        self._ended: dict[int, End] = {}
        self._listening = False
        self._closed = False
        self.runner = Runner(self.app.jobs, SystemClock(), self._deliver, threads=8)

    def _deliver(self, ends: Sequence[End]) -> None:
        for end in ends:
            self._delivered.put(end)

    def begin(self, job: Job[..., Any], *args: Any, _fields: dict[str, Any] | None = None, **kwargs: Any) -> Attempt:
        """Start an attempt."""
        if not self._listening:  # not before the test itself runs: between setup and call pytest changes the streams
            Capture.start()
            self._listening = True
        given = {"input": job.dump_input(args, kwargs), "name": job.name, "policy_json": job.policy_json}
        task = a_held_task(**{**given, **(_fields or {})})
        attempt = Attempt(task, Context(task), steady() + 60, steady())
        self.runner.launch([attempt])
        return attempt

    def outcome(self, attempt: Attempt, timeout: float = 30.0) -> Outcome | None:
        """How an attempt ended."""
        while id(attempt) not in self._ended:
            ended, outcome = self._delivered.get(timeout=timeout)
            assert id(ended) not in self._ended, "an attempt ends once"
            self._ended[id(ended)] = ended, outcome
        return self._ended[id(attempt)][1]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.runner.close()
        if self._listening:
            self._listening = False
            Capture.stop()

    def run(self, job: Job[..., Any], *args: Any, _fields: dict[str, Any] | None = None, **kwargs: Any) -> Outcome:
        """An attempt from its beginning to its end."""
        outcome = self.outcome(self.begin(job, *args, _fields=_fields, **kwargs))
        assert outcome is not None
        return outcome


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.runner.start()
    yield bench
    bench.close()
