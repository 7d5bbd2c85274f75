"""Isolated jobs: child processes that can be killed, each running one attempt at a time.

A child dies with its worker (the kernel sees to it on Linux; elsewhere it notices the closed pipe), leads a process
group of its own so that what it started dies with it, and is used again until it has run many attempts or had to be
killed. What crosses the pipe is pickled: an order goes in (which job, and its task with the input as JSON text), log
lines, progress and an answer come out. Objects of the job's own never cross it.
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

from tenuto.clock import Clock, steady
from tenuto.errors import Conflict
from tenuto.jobs import outcomes
from tenuto.jobs.attempts import Attempt
from tenuto.jobs.child_process import Answer, Order, serve
from tenuto.jobs.registry import Job
from tenuto.model.stored_values import kept_text
from tenuto.model.tasks import Outcome, Reason, error_json

ATTEMPTS_PER_CHILD = 200
_LOOK_EVERY = 1000
"""In milliseconds, as below: where the end of a process cannot be waited for, it is looked for so often."""
_TO_DIE = 10_000
_LAST_WORDS = 2.0
"""In seconds: how long a dead child is listened to, as somebody out of reach may hold its pipe and go on speaking."""
_spawn = multiprocessing.get_context("spawn")


class Child:
    """One child process and the pipe to it."""

    def __init__(self) -> None:
        self.pipe, theirs = _spawn.Pipe()
        self.process = _spawn.Process(target=serve, args=(theirs, os.getpid()), name="tenuto-child", daemon=False)
        self.process.start()
        theirs.close()
        self._end = _end_of(self.process.pid)
        self._died_at: float | None = None
        self.attempts = 0
        self._serving: Attempt | None = None
        self._serving_lock = threading.Lock()
        self._buried = False

    def serve(self, attempt: Attempt | None) -> None:
        """From now on it works for this attempt."""
        with self._serving_lock:
            self._serving = attempt

    def kill_for(self, attempt: Attempt) -> None:
        """Kill it unless it has turned to another attempt: a late stop must not hit that one."""
        with self._serving_lock:
            if self._serving is attempt:
                self.kill()

    def kill(self) -> None:
        """End it and everything it started, at once; what it started also if it has died by itself."""
        pid = self.process.pid
        if pid is None or self._buried:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        if self.process.is_alive():  # it may not have become the leader of its group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def speaks(self) -> bool:
        """Wait until it says something. False if it has died and all it said is heard, also while a fork of it lives:
        that holds the pipe as well, and would keep it open."""
        end = self._end
        news = select.poll()
        news.register(self.pipe.fileno(), select.POLLIN)
        if end is not None:
            news.register(end, select.POLLIN)
        while self._died_at is None:
            ready = [descriptor for descriptor, _ in news.poll(_LOOK_EVERY if end is None else None)]
            if end in ready or (end is None and not self.process.is_alive()):
                self._died_at = steady()
                self.kill()  # what it has left behind, which nobody else would end
            elif ready:
                return True
        return steady() - self._died_at < _LAST_WORDS and self.pipe.poll()

    def bury(self) -> int | None:
        """Wait for its end; how it ended."""
        end = self._end
        if end is not None:  # not by `join`: what that waits for is held by forks as well
            news = select.poll()
            news.register(end, select.POLLIN)
            news.poll(_TO_DIE)
        if self.process.is_alive() and end is None:
            self.process.join(timeout=_TO_DIE / 1000)
        self._buried = True
        self.pipe.close()
        with self._serving_lock:  # whoever closes all of them may be at it too
            end, self._end = self._end, None
        if end is not None:
            os.close(end)
        return self.process.exitcode


class Children:
    """The children of this worker: idle ones are kept for the next attempt."""

    def __init__(self) -> None:
        self._idle: list[Child] = []
        self._all: set[Child] = set()
        self._lock = threading.Lock()
        self._closed = False

    def run(self, attempt: Attempt, job: Job[..., Any], clock: Clock) -> Outcome | None:
        """Run one attempt in a child, from a thread that may block meanwhile."""
        child = self._take()
        child.serve(attempt)
        attempt.can_be_halted_by(partial(child.kill_for, attempt))
        try:
            answer = self._converse(child, attempt, job)
        except BaseException:  # it may still be at work, for an attempt that is over
            self._forget(child)
            child.kill()
            child.bury()
            raise
        now = clock.now()
        if answer is None:
            self._forget(child)
            child.kill()
            code = child.bury()
            if attempt.stop_reason is not None:
                return outcomes.of_stop(attempt, now)
            return outcomes.failed(attempt, now, Reason.ERROR, _death(code, attempt.task.name))
        child.serve(None)
        self._put_back(child)
        if answer.error is None:
            return outcomes.completed(attempt, answer.output, answer.warnings, answer.errors, now)
        return outcomes.failed(
            attempt,
            now,
            Reason(answer.reason),
            answer.error,
            may_retry=answer.may_retry,
            retry_at=None if answer.retry_after is None else now + answer.retry_after,
        )

    def close(self) -> None:
        with self._lock:
            self._closed = True
            children = list(self._all)
        for child in children:
            child.kill()
        for child in children:
            child.bury()

    def _converse(self, child: Child, attempt: Attempt, job: Job[..., Any]) -> Answer | None:
        """Hand over the order and listen until the answer comes; None if the child died."""
        function = job.function
        order = Order(module=function.__module__, qualname=function.__qualname__, job=job.name, task=attempt.task)
        try:
            child.pipe.send(order)
            while child.speaks():
                message = child.pipe.recv()
                if isinstance(message, Answer):
                    return message
                _hear(attempt, message)
        except (EOFError, OSError):
            pass
        return None

    def _take(self) -> Child:
        while True:
            with self._lock:
                if not self._idle:
                    break
                child = self._idle.pop()
            if child.process.is_alive():
                return child
            self._forget(child)
            child.kill()
            child.bury()
        child = Child()
        with self._lock:
            self._all.add(child)
            closed = self._closed
        if closed:
            child.kill()
        return child

    def _put_back(self, child: Child) -> None:
        child.attempts += 1
        with self._lock:
            if not self._closed and child.attempts < ATTEMPTS_PER_CHILD and child.process.is_alive():
                self._idle.append(child)
                return
        self._forget(child)
        child.kill()
        child.bury()

    def _forget(self, child: Child) -> None:
        with self._lock:
            self._all.discard(child)


def _end_of(pid: int | None) -> int | None:
    """A descriptor that can be waited for until a process has ended, where the system has such."""
    try:
        return None if pid is None else os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def refuse_while_a_child_starts() -> None:
    """A child imports the module its job is in; a script that does its work when imported would start all over."""
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise Conflict(
            "this script was imported by a child process and began to work again",
            remedy="put what it does under: if __name__ == '__main__':",
        )


def _hear(attempt: Attempt, message: tuple[str, Any]) -> None:
    """What a child says while it works: a log line, or how far it has come."""
    kind, value = message
    if kind == "progress":
        attempt.context.take_progress(value)
    elif kind == "log":
        attempt.context.log.line(*value)


def _death(code: int | None, step: str) -> str:
    if code is not None and code < 0:
        named = f" ({signal.Signals(-code).name})" if -code in set(signal.Signals) else ""
        how = f"was killed by signal {-code}{named}"
    else:
        how = f"ended with exit code {code}; what it said last is in the worker's own output"
    return error_json("tenuto.ChildDied", kept_text(f"the child process of this job {how}", 500), step=step)
