"""Child processes of isolated jobs: they can be killed, and each runs one attempt at a time.

A child ends with its worker (on Linux by the kernel, elsewhere because the pipe closes). It leads a process group, so
that the processes it starts are killed with it. A child is reused until it has run many attempts or was killed. The
messages on the pipe are pickled: a request goes in (the job, and its task with the input as JSON), log lines, progress
and a response come out. Objects of user code are never pickled.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import threading
from functools import partial
from typing import Any

from tenuto import tracing
from tenuto.clock import Clock, monotonic_seconds
from tenuto.errors import Conflict
from tenuto.jobs import outcomes
from tenuto.jobs.attempts import Attempt
from tenuto.jobs.child_entry_point import RunRequest, RunResponse, run_child
from tenuto.jobs.registry import Job
from tenuto.model.validation import truncate_text
from tenuto.model.work.tasks import Outcome, OutcomeReason, error_json

MAX_ATTEMPTS_PER_CHILD = 200
_LIVENESS_POLL_MILLISECONDS = 1000
"""Poll interval for the end of a process on systems without pidfd."""
_REAP_TIMEOUT_MILLISECONDS = 10_000
_DRAIN_SECONDS = 2.0
"""How long the pipe of a dead child is read: an escaped process may hold it open and keep writing."""
_spawn = multiprocessing.get_context("spawn")


class ChildProcess:
    """One child process and the pipe to it."""

    def __init__(self) -> None:
        self.pipe, child_end = _spawn.Pipe()
        self.process = _spawn.Process(
            target=run_child, args=(child_end, os.getpid()), name="tenuto-child", daemon=False
        )
        self.process.start()
        child_end.close()
        self._pidfd = _open_pidfd(self.process.pid)
        self._died_at: float | None = None
        self.attempt_count = 0
        self._attempt: Attempt | None = None
        self._attempt_lock = threading.Lock()
        self._is_reaped = False

    def assign(self, attempt: Attempt | None) -> None:
        """Set the attempt for which the child works from now on."""
        with self._attempt_lock:
            self._attempt = attempt

    def kill_if_assigned(self, attempt: Attempt) -> None:
        """Kill the child unless it already works for another attempt: a late stop must not hit that one."""
        with self._attempt_lock:
            if self._attempt is attempt:
                self.kill()

    def kill(self) -> None:
        """Kill the child and everything it started, also if the child itself has already ended."""
        pid = self.process.pid
        if pid is None or self._is_reaped:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        if self.process.is_alive():  # it may not be the leader of its group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def wait_for_message(self) -> bool:
        """Wait for a message; return False if the child is dead and its pipe is empty.

        The end of the pipe is no proof of death: a fork of the child holds it open as well.
        """
        pidfd = self._pidfd
        poller = select.poll()
        poller.register(self.pipe.fileno(), select.POLLIN)
        if pidfd is not None:
            poller.register(pidfd, select.POLLIN)
        while self._died_at is None:
            ready = [
                descriptor for descriptor, _ in poller.poll(_LIVENESS_POLL_MILLISECONDS if pidfd is None else None)
            ]
            if pidfd in ready or (pidfd is None and not self.process.is_alive()):  # guard: isolation.dead_child
                self._died_at = monotonic_seconds()
                self.kill()  # kills the processes it left behind
            elif ready:
                return True
        return monotonic_seconds() - self._died_at < _DRAIN_SECONDS and self.pipe.poll()

    def reap(self) -> int | None:
        """Wait for the end of the child and return its exit code."""
        pidfd = self._pidfd
        if pidfd is not None:  # not `join`: it waits for a descriptor that forks hold open as well
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            poller.poll(_REAP_TIMEOUT_MILLISECONDS)
        if self.process.is_alive() and pidfd is None:
            self.process.join(timeout=_REAP_TIMEOUT_MILLISECONDS / 1000)
        self._is_reaped = True
        with self._attempt_lock:  # `ProcessPool.close` may reap the same child: no descriptor may be closed twice
            self.pipe.close()
            pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            os.close(pidfd)
        return self.process.exitcode


class ProcessPool:
    """The child processes of a worker; idle ones are kept for the next attempt."""

    def __init__(self) -> None:
        self._idle: list[ChildProcess] = []
        self._all: set[ChildProcess] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    def run(self, attempt: Attempt, job: Job[..., Any], clock: Clock) -> Outcome | None:
        """Run one attempt in a child process; blocks the calling thread."""
        child = self._acquire()
        child.assign(attempt)
        attempt.set_halt(partial(child.kill_if_assigned, attempt))
        try:
            response = self._exchange(child, attempt, job)
        except BaseException:  # the child may still be running code of an attempt that is over
            self._discard(child)
            raise
        now = clock.now()
        if response is None:
            exit_code = self._discard(child)
            if attempt.stop_reason is not None:
                return outcomes.from_stop(attempt, now)
            return outcomes.failed(attempt, now, OutcomeReason.ERROR, _death_error(exit_code, attempt.task.name))
        child.assign(None)
        self._release(child)
        if response.error is None:
            return outcomes.completed(attempt, response.output, response.warnings, response.errors, now)
        return outcomes.failed(
            attempt,
            now,
            OutcomeReason(response.reason),
            response.error,
            may_retry=response.may_retry,
            retry_at=None if response.retry_after is None else now + response.retry_after,
        )

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            children = list(self._all)
        for child in children:
            child.kill()
        for child in children:
            child.reap()

    def _exchange(self, child: ChildProcess, attempt: Attempt, job: Job[..., Any]) -> RunResponse | None:
        """Send the request and read messages until the response; None if the child died."""
        function = job.function
        request = RunRequest(
            function.__module__, function.__qualname__, job.name, attempt.task, tracing.current_traceparent()
        )
        try:
            child.pipe.send(request)
            while child.wait_for_message():
                message = child.pipe.recv()
                if isinstance(message, RunResponse):
                    return message
                _apply_message(attempt, message)
        except (EOFError, OSError):
            pass
        return None

    def _acquire(self) -> ChildProcess:
        while True:
            with self._lock:
                if not self._idle:
                    break
                child = self._idle.pop()
            if child.process.is_alive():
                return child
            self._discard(child)
        child = ChildProcess()
        with self._lock:
            self._all.add(child)
            is_closed = self._is_closed
        if is_closed:
            child.kill()
        return child

    def _release(self, child: ChildProcess) -> None:
        child.attempt_count += 1
        with self._lock:
            if not self._is_closed and child.attempt_count < MAX_ATTEMPTS_PER_CHILD and child.process.is_alive():
                self._idle.append(child)
                return
        self._discard(child)

    def _discard(self, child: ChildProcess) -> int | None:
        with self._lock:
            self._all.discard(child)
        child.kill()
        return child.reap()


def _open_pidfd(pid: int | None) -> int | None:
    """Return a descriptor that becomes readable when the process ends, where the system offers it."""
    try:
        return None if pid is None else os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def reject_start_during_child_import() -> None:
    """Reject to start a service while a child process imports the main script to find its job."""
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise Conflict(
            "a child process of an isolated job imported this script, and the script started to work again",
            code="job.isolated.script_not_guarded",
            remedy="put the start of the work under: if __name__ == '__main__':",
        )


def _apply_message(attempt: Attempt, message: tuple[str, Any]) -> None:
    kind, value = message
    if kind == "progress":
        attempt.context.set_progress_json(value)
    elif kind == "log":
        attempt.context.log.add_line(*value)


def _death_error(exit_code: int | None, step: str) -> str:
    if exit_code is not None and exit_code < 0:
        name = f" ({signal.Signals(-exit_code).name})" if -exit_code in set(signal.Signals) else ""
        cause = f"was killed by signal {-exit_code}{name}"
    else:
        cause = f"ended with exit code {exit_code}; the output of the worker process may show the cause"
    return error_json("tenuto.ChildDied", truncate_text(f"the child process of this job {cause}", 500), step=step)
