"""A minimal second executor: every attempt runs in its own forked process.

It shares only the contract with the native executor: the function and the task go to the process; progress, log lines
and the outcome come back.
"""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from tenuto.errors import Invalid
from tenuto.jobs import outcomes
from tenuto.jobs.attempt_log import AttemptLog
from tenuto.jobs.attempts import Attempt
from tenuto.jobs.context import Context, PermanentFailure, RetryLater
from tenuto.jobs.registry import Job
from tenuto.model.work.tasks import Outcome, OutcomeReason, Task, error_json
from tenuto.worker.executors import ExecutorContext

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.worker.executors.conformance_jobs"])


class ForkExecutor:
    """Waits for each process in a thread; stops an attempt by killing its process."""

    def __init__(self, context: ExecutorContext) -> None:
        self._context = context
        self._waiting: set[threading.Thread] = set()

    def start(self) -> None:
        """Processes start with their attempts."""

    def launch(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            thread = threading.Thread(target=self._wait_for, args=(attempt,))
            self._waiting.add(thread)
            thread.start()

    def check_for_stalls(self) -> None:
        """No shared event loop exists that one attempt could block for others."""

    def close(self) -> None:
        for thread in list(self._waiting):
            thread.join()

    def _wait_for(self, attempt: Attempt) -> None:
        try:
            outcome = self._outcome(attempt)
        except BaseException as error:
            outcome = outcomes.from_error(attempt, error, self._context.clock.now())
        self._waiting.discard(threading.current_thread())
        attempt.mark_ended()
        self._context.deliver([(attempt, outcome)])

    def _outcome(self, attempt: Attempt) -> Outcome | None:
        job = self._context.jobs.get_handler(attempt.task.kind, attempt.task.name)
        now = self._context.clock.now
        try:
            job.load_input(attempt.task.input)
        except Invalid as error:
            return outcomes.input_rejected(attempt, error, now())
        if attempt.stop_reason is not None:
            return outcomes.from_stop(attempt, now())
        own_end, process_end = _processes.Pipe()
        process = _processes.Process(
            target=_run_in_process, args=(process_end, job.name, job.function.__module__, attempt.task)
        )
        attempt.mark_started(now())
        process.start()
        process_end.close()
        attempt.set_halt(lambda: _kill(process.pid))
        result = _receive_result(own_end, attempt)
        process.join()
        own_end.close()
        if result is None:
            return self._outcome_of_dead_process(attempt, process.exitcode)
        output, warnings, errors, failure, may_retry, after = result
        if failure is None:
            return outcomes.completed(attempt, output, warnings, errors, now())
        retry_at = None if after is None else now() + after
        return outcomes.failed(attempt, now(), OutcomeReason.ERROR, failure, may_retry=may_retry, retry_at=retry_at)

    def _outcome_of_dead_process(self, attempt: Attempt, code: int | None) -> Outcome | None:
        now = self._context.clock.now()
        if attempt.stop_reason is not None:
            return outcomes.from_stop(attempt, now)
        death = error_json("ProcessDied", f"its process ended with {code}", step=attempt.task.name)
        return outcomes.failed(attempt, now, OutcomeReason.ERROR, death)


def _kill(pid: int | None) -> None:
    with suppress(ProcessLookupError):
        if pid is not None:
            os.kill(pid, signal.SIGKILL)


def _receive_result(pipe: Connection, attempt: Attempt) -> Any:
    """Apply messages of the process until its result arrives; return None if the process dies before."""
    try:
        while True:
            kind, content = pipe.recv()
            if kind == "ended":
                return content
            if kind == "progress":
                attempt.context.set_progress_json(content)
            else:
                attempt.context.log.add_line(*content)
    except (EOFError, OSError):
        return None


# --- in the process -------------------------------------------------------------------------------------------------


class _ReportingLog(AttemptLog):
    __slots__ = ("_pipe",)

    def __init__(self, task: Task, pipe: Connection) -> None:
        super().__init__(task)
        self._pipe = pipe

    def add_line(self, level: str, text: str) -> None:
        self._pipe.send(("log", (level, text)))


class _ReportingContext(Context):
    __slots__ = ("_pipe",)

    def __init__(self, task: Task, pipe: Connection) -> None:
        super().__init__(task)
        self._log = _ReportingLog(task, pipe)
        self._pipe = pipe

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        super().progress(done, total, message)
        self._pipe.send(("progress", self.progress_json))


def _run_in_process(pipe: Connection, name: str, module: str, task: Task) -> None:
    context = _ReportingContext(task, pipe)
    output = failure = None
    may_retry, after = True, None
    try:
        job: Job[..., Any] = importlib.import_module(module).app.jobs.get_job(name)
        arguments = job.load_input(task.input)
        if job.context_parameter is not None:
            arguments[job.context_parameter] = context
        value = job.function(**arguments)
        value = asyncio.run(value) if job.is_async else value
        try:
            output = job.dump_output(value)
        except Exception as error:
            context.warn(f"the result could not be stored: {error}")
    except BaseException as error:
        failure = outcomes.error_to_json(error, task.name)
        may_retry = not isinstance(error, PermanentFailure)
        after = error.after if isinstance(error, RetryLater) else None
    result: tuple[str | None, list[str], list[str], str | None, bool, timedelta | None]
    result = (output, context.warnings, context.errors, failure, may_retry, after)
    pipe.send(("ended", result))
