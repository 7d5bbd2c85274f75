"""Code of the child process of an isolated job: receive requests from the worker, run them one by one, respond.

`process_pool` starts and kills child processes. The child imports the job from the module in which it is defined. It
has no database connection; the worker records the results.
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

from tenuto import tracing
from tenuto.errors import Invalid
from tenuto.jobs.attempt_log import AttemptLog
from tenuto.jobs.context import Context, PermanentFailure, current_context
from tenuto.jobs.outcomes import error_to_json, reject_unfinished_result, retry_delay, unprintable_error_json
from tenuto.jobs.output_capture import OutputCapture
from tenuto.jobs.registry import Job
from tenuto.model.definitions.step_expressions import explain_rejected_value
from tenuto.model.work.tasks import OutcomeReason, Task

_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class RunRequest:
    """Run this job for this task."""

    module: str
    qualname: str
    job: str
    task: Task
    traceparent: str | None = None
    """The span of the attempt in the worker."""


@dataclass(slots=True)
class RunResponse:
    """The result of a request."""

    output: str | None = None
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    error: str | None = None
    reason: str = OutcomeReason.ERROR.value
    may_retry: bool = True
    retry_after: timedelta | None = None


class _Pipe:
    """The pipe to the worker, safe for several threads of a job."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: Any) -> None:
        with self._lock:
            self._connection.send(message)


class _ReportingLog(AttemptLog):
    """Sends every line to the worker, which stores the log."""

    __slots__ = ("_pipe",)

    def __init__(self, task: Task, pipe: _Pipe) -> None:
        super().__init__(task)
        self._pipe = pipe

    def add_line(self, level: str, text: str) -> None:
        self._pipe.send(("log", (level, self._redact(text))))


class _ReportingContext(Context):
    """Sends progress to the worker."""

    __slots__ = ("_pipe",)

    def __init__(self, task: Task, pipe: _Pipe) -> None:
        super().__init__(task)
        self._log = _ReportingLog(task, pipe)
        self._pipe = pipe

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        super().progress(done, total, message)
        self._pipe.send(("progress", self.progress_json))


def run_child(connection: Connection, worker_pid: int) -> None:
    """Serve requests until the worker closes the pipe."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C may reach the child too; the worker decides when to stop it
    _exit_with_worker(worker_pid)
    pipe = _Pipe(connection)
    OutputCapture.start()
    while True:
        try:
            request = connection.recv()
        except (EOFError, OSError):
            return
        with tracing.remote_parent(request.traceparent):
            response = _run_request(request, pipe)
        pipe.send(response)


def _exit_with_worker(worker_pid: int) -> None:
    """Have the kernel kill this process when the worker ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # guard: worker.children_die_with_it
    if os.getppid() != worker_pid:  # it ended before the call of prctl
        os._exit(1)


def _run_request(request: RunRequest, pipe: _Pipe) -> RunResponse:
    context = _ReportingContext(request.task, pipe)
    token = current_context.set(context)
    try:
        module = importlib.import_module(request.module)
        try:
            job = _find_job(request, module)
            arguments = job.load_input(request.task.input)
        except Invalid as rejection:
            error = explain_rejected_value(request.task.policy_json, request.task.input, rejection)
            return RunResponse(
                error=error_to_json(error, request.job), reason=OutcomeReason.REFUSED.value, may_retry=False
            )
        if job.context_parameter is not None:
            arguments[job.context_parameter] = context
        value = job.function(**arguments)
        if job.is_async:
            value = asyncio.run(value)
        reject_unfinished_result(value)
        try:
            output = job.dump_output(value)
            output = None if output is None else context.redact_json(output)
        except Exception as error:  # noqa: BLE001 — the work is done: an unstorable result must not undo it
            output = None
            context.warn(f"the result could not be stored: {error}")
        return RunResponse(output, context.warnings, context.errors)
    except BaseException as error:  # noqa: BLE001 — every error of the code is an outcome
        return _error_response(error, request.job, context)
    finally:
        context.log.text()  # sends an incomplete last line
        current_context.reset(token)


def _error_response(error: BaseException, job: str, context: Context) -> RunResponse:
    """Return the response to an error. Never raises, even if the methods of the error do."""
    try:
        return RunResponse(
            error=error_to_json(error, job, context.redact_text),
            may_retry=not isinstance(error, PermanentFailure),
            retry_after=retry_delay(error),
        )
    except BaseException:  # noqa: BLE001 — formatting an error runs user code
        return RunResponse(error=unprintable_error_json(job))


def _find_job(request: RunRequest, module: ModuleType) -> Job[..., Any]:
    """Find the job in its module and in the classes around its function.

    A decorated job has the name of its function; a job registered by a call may have any name.
    """
    *class_names, function_name = request.qualname.split(".")
    owners: list[Any] = [module]
    for name in class_names:
        owners.append(getattr(owners[-1], name, None))
    members = [each for owner in owners for each in list(getattr(owner, "__dict__", {}).values())]
    for found in (getattr(owners[-1], function_name, None), *members):
        if isinstance(found, Job) and found.name == request.job and found.function.__qualname__ == request.qualname:
            return found
    raise Invalid(
        f"a child process that imports {request.module} finds no job {request.job} in it",
        code="job.isolated.not_found",
        field="isolated",
        remedy=f"register the job at the top level of {request.module}, where its function is, and assign it to a name",
    )
