"""The inside of a child process: takes orders from its worker, runs them one after the other, answers.

Imports the job by the module it was defined in. Has no database connection and reports nothing by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from tenuto.errors import Invalid
from tenuto.jobs.attempt_log import AttemptLog
from tenuto.jobs.context import Context, PermanentFailure, current
from tenuto.jobs.output_capture import Capture
from tenuto.jobs.registry import Job
from tenuto.model.tasks import Reason, Task

_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Order:
    """Run this job for this task."""

    module: str
    qualname: str
    job: str
    task: Task


@dataclass(slots=True)
class Answer:
    """How it went."""

    output: str | None = None
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    error: str | None = None
    reason: str = Reason.ERROR.value
    may_retry: bool = True
    retry_after: timedelta | None = None


class _ReportingLog(AttemptLog):
    """Sends every line to the worker, which keeps the log."""

    __slots__ = ("_pipe",)

    def __init__(self, task: Task, pipe: _Pipe) -> None:
        super().__init__(task)
        self._pipe = pipe

    def line(self, level: str, text: str) -> None:
        self._pipe.send(("log", (level, self._hidden(text))))


class _ReportingContext(Context):
    """Sends progress to the worker."""

    __slots__ = ("_pipe",)

    def __init__(self, task: Task, pipe: _Pipe) -> None:
        super().__init__(task)
        self._log = _ReportingLog(task, pipe)
        self._pipe = pipe

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        super().progress(done, total, message)
        self._pipe.send(("progress", self.latest_progress))


class _Pipe:
    """The pipe to the worker; several threads of a job may speak at once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: Any) -> None:
        with self._lock:
            self._connection.send(message)


def serve(connection: Connection, worker: int) -> None:
    """The life of a child."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which decides what happens to us
    _die_with(worker)
    pipe = _Pipe(connection)
    Capture.start()
    while True:
        try:
            order = connection.recv()
        except (EOFError, OSError):
            return
        pipe.send(_carry_out(order, pipe))


def _die_with(worker: int) -> None:
    """End when the worker ends, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker:  # it died before the kernel was asked
        os._exit(1)


def _carry_out(order: Order, pipe: _Pipe) -> Answer:
    from tenuto.jobs.outcomes import describe, refuse_unfinished

    context = _ReportingContext(order.task, pipe)
    token = current.set(context)
    try:
        module = importlib.import_module(order.module)
        try:
            job = _find(order, module)
            arguments = job.load_input(order.task.input)
        except Invalid as error:
            return Answer(error=describe(error, order.job), reason=Reason.REFUSED.value, may_retry=False)
        if job.context_parameter is not None:
            arguments[job.context_parameter] = context
        value = job.function(**arguments)
        if job.is_async:
            value = asyncio.run(value)
        refuse_unfinished(value)
        try:
            output = job.dump_output(value)
            output = None if output is None else context.hidden_json(output)
        except Exception as error:  # noqa: BLE001 — the work is done: a result that cannot be kept must not undo it
            output = None
            context.warn(f"the result could not be stored: {error}")
        return Answer(output, context.warnings, context.errors)
    except BaseException as error:  # noqa: BLE001 — whatever the code raised is its outcome
        return _of_error(error, order.job, context)
    finally:
        context.log.text()  # a last line without an end is said too
        current.reset(token)


def _of_error(error: BaseException, job: str, context: Context) -> Answer:
    """There is an answer whatever the classes of the error do, as there is an outcome elsewhere."""
    from tenuto.jobs.outcomes import beyond_words, describe, wait_of

    try:
        return Answer(
            error=describe(error, job, context.hidden),
            may_retry=not isinstance(error, PermanentFailure),
            retry_after=wait_of(error),
        )
    except BaseException:  # noqa: BLE001 — they are others' code, called for by ours
        return Answer(error=beyond_words(job))


def _find(order: Order, module: ModuleType) -> Job[..., Any]:
    """The job, among what its module and the classes around its function hold: by the function's own name where it was
    decorated, by another where it was registered with a call."""
    *around, last = order.qualname.split(".")
    holders: list[Any] = [module]
    for part in around:
        holders.append(getattr(holders[-1], part, None))
    held = [each for holder in holders for each in list(getattr(holder, "__dict__", {}).values())]
    for found in (getattr(holders[-1], last, None), *held):
        if isinstance(found, Job) and found.name == order.job and found.function.__qualname__ == order.qualname:
            return found
    raise Invalid(
        f"a child process that imports {order.module} finds no job {order.job} in it",
        field="isolated",
        remedy=f"register it at the top of {order.module}, where its function is, and keep it under a name there",
    )
