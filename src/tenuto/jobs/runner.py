"""Runs attempts: `async def` jobs on an event loop, plain functions in threads, isolated jobs in child processes.

The runner does not access the store. It delivers the result of every attempt exactly once, from the thread on which the
attempt ended; the outcome is None if nothing may be reported. Attempts are passed in lists, because switching to
another thread is expensive.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from functools import partial
from typing import Any

from tenuto import tracing
from tenuto.clock import Clock
from tenuto.errors import Invalid, UnknownJob
from tenuto.jobs import outcomes
from tenuto.jobs.attempts import Attempt, StopReason
from tenuto.jobs.context import Stopped, current_context
from tenuto.jobs.process_pool import ProcessPool
from tenuto.jobs.registry import Job, JobRegistry
from tenuto.jobs.workflows.definition import choose_version
from tenuto.logs import Log
from tenuto.model.work.tasks import Outcome

log = Log("tenuto.runner")

AttemptResult = tuple[Attempt, Outcome | None]
DeliverResults = Callable[[Sequence[AttemptResult]], None]

_NO_SPAN: AbstractContextManager[None] = nullcontext()


class Runner:
    """Runs the code of jobs and delivers the results."""

    def __init__(self, jobs: JobRegistry, clock: Clock, deliver: DeliverResults, *, threads: int) -> None:
        self._jobs = jobs
        self._clock = clock
        self._deliver = deliver
        self._loop = _new_loop()
        self._loop_thread = threading.Thread(target=self._run_loop, name="tenuto-jobs", daemon=True)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tenuto-job")
        self._process_pool = ProcessPool()
        self._ended_on_loop: list[AttemptResult] = []
        self._is_traced = False

    def start(self) -> None:
        self._loop_thread.start()

    def close(self) -> None:
        """Stop event loop, threads and child processes. No attempt may be running."""
        self._process_pool.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop_thread.join(timeout=5)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of `async def` jobs."""
        return self._loop

    @property
    def loop_thread_id(self) -> int | None:
        return self._loop_thread.ident

    def launch(self, attempts: Sequence[Attempt]) -> None:
        """Start attempts, each on the event loop, in a thread or in a child process."""
        self._is_traced = tracing.is_enabled()  # once for all attempts
        for_loop: list[tuple[Attempt, Job[..., Any]]] = []
        for attempt in attempts:
            try:
                job = self._jobs.get_handler(attempt.task.kind, attempt.task.name)
            except Exception as error:  # noqa: BLE001 — unknown job, or a handler that cannot be created: start the others
                if isinstance(error, UnknownJob):
                    log.warning(
                        "task returned because its job is unknown", error=error.message, **attempt.task.log_fields
                    )
                self._deliver_end(attempt, outcomes.from_error(attempt, error, self._clock.now()))
                continue
            if job.isolated:
                self._threads.submit(self._run_isolated, attempt, job)
            elif job.is_async:
                for_loop.append((attempt, job))
            else:
                self._threads.submit(self._run_in_thread, attempt, job)
        if for_loop:
            self._loop.call_soon_threadsafe(self._start_on_loop, for_loop)

    # --- async def --------------------------------------------------------------------------------------------------

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _start_on_loop(self, attempts: list[tuple[Attempt, Job[..., Any]]]) -> None:
        create_task, call_soon = self._loop.create_task, self._loop.call_soon_threadsafe
        for attempt, job in attempts:
            attempt.set_halt(partial(call_soon, create_task(self._run_async(attempt, job)).cancel))

    async def _run_async(self, attempt: Attempt, job: Job[..., Any]) -> None:
        outcome: Outcome | None
        try:
            if job.versions is not None:
                job = await choose_version(job, attempt.context)
            arguments = self._prepare(attempt, job)
            code = job.function(**arguments)
            value = await (self._run_in_span(attempt, code) if self._is_traced else code)
            if attempt.stop_reason is StopReason.TIMED_OUT:  # the code blocked the loop and could not be stopped
                attempt.context.warn("the job ended after its time limit, because its code blocks the event loop")
            outcome = outcomes.from_return_value(attempt, job, value, self._clock.now())
        except _InputRejected as rejection:
            outcome = outcomes.input_rejected(attempt, rejection.error, self._clock.now())
        except BaseException as error:  # noqa: BLE001 — also SystemExit raised by a job
            outcome = outcomes.from_error(attempt, error, self._clock.now())
        attempt.mark_ended()
        # Attempts that end in the same loop iteration are delivered together: the steps of a group are written at once.
        if not self._ended_on_loop:
            self._loop.call_soon(self._deliver_ended)
        self._ended_on_loop.append((attempt, outcome))

    async def _run_in_span(self, attempt: Attempt, code: Awaitable[Any]) -> Any:
        with self._span(attempt):
            return await code

    def _deliver_ended(self) -> None:
        ended, self._ended_on_loop = self._ended_on_loop, []
        self._deliver(ended)

    async def _run_step_in_thread(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Run a plain function for an attempt on the event loop and wait until it has ended.

        A cancellation interrupts the thread. A value returned in spite of it is passed on.
        """
        thread = _InterruptibleThread()

        def run() -> Any:
            with thread:
                return function(**arguments)

        running = asyncio.wrap_future(self._threads.submit(copy_context().run, run))
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError:  # once for each stop request
                thread.interrupt()  # guard: chains.wait_for_interrupted_step
        return running.result()

    # --- plain functions --------------------------------------------------------------------------------------------

    def _run_in_thread(self, attempt: Attempt, job: Job[..., Any]) -> None:
        thread = _InterruptibleThread()
        outcome: Outcome | None
        context_token = None
        try:
            try:
                context_token = current_context.set(attempt.context)
                arguments = self._prepare(attempt, job)
                with self._span(attempt), thread:
                    attempt.set_halt(thread.interrupt)
                    value = job.function(**arguments)
                outcome = outcomes.from_return_value(attempt, job, value, self._clock.now())
            except _InputRejected as rejection:
                outcome = outcomes.input_rejected(attempt, rejection.error, self._clock.now())
            except BaseException as error:  # noqa: BLE001 — every error of the code is an outcome
                outcome = outcomes.from_error(attempt, error, self._clock.now())
        except Stopped:  # the interruption came after the end of the code
            outcome = outcomes.from_stop(attempt, self._clock.now())
        if context_token is not None:
            current_context.reset(context_token)
        self._deliver_end(attempt, outcome)

    # --- child processes --------------------------------------------------------------------------------------------

    def _run_isolated(self, attempt: Attempt, job: Job[..., Any]) -> None:
        outcome: Outcome | None
        try:
            attempt.mark_started(self._clock.now())
            if attempt.stop_reason is not None:
                outcome = outcomes.from_stop(attempt, self._clock.now())
            else:
                with self._span(attempt):
                    outcome = self._process_pool.run(attempt, job, self._clock)
        except BaseException as error:  # noqa: BLE001 — a child process that cannot be started fails the attempt
            outcome = outcomes.from_error(attempt, error, self._clock.now())
        self._deliver_end(attempt, outcome)

    # --- common to all ----------------------------------------------------------------------------------------------

    def _span(self, attempt: Attempt) -> AbstractContextManager[None]:
        if not self._is_traced:
            return _NO_SPAN
        task, fields = attempt.task, {**attempt.task.log_fields, "queue": attempt.task.queue}
        return tracing.attempt_span(
            task.name, task.policy_json, fields, attempt.context.redact_text, partial(_name_stop_reason, attempt)
        )

    def _prepare(self, attempt: Attempt, job: Job[..., Any]) -> dict[str, Any]:
        """Mark the start of the attempt and return the arguments of its job."""
        context = attempt.context
        attempt.mark_started(self._clock.now())
        if job.is_async:  # every asyncio task has its own copy of the context variables
            current_context.set(context)
            context.run_in_thread, context.clock = self._run_step_in_thread, self._clock
        if attempt.stop_reason is not None:
            raise Stopped
        try:
            arguments = job.load_input(attempt.task.input)
        except Invalid as error:
            raise _InputRejected(error) from error
        if job.context_parameter is not None:
            arguments[job.context_parameter] = context
        return arguments

    def _deliver_end(self, attempt: Attempt, outcome: Outcome | None) -> None:
        attempt.mark_ended()
        self._deliver([(attempt, outcome)])


def _name_stop_reason(attempt: Attempt) -> str | None:
    return None if attempt.stop_reason is None else attempt.stop_reason.name.lower()


class _InputRejected(Exception):
    """The stored input is invalid, which is final; an `Invalid` raised by the code itself is an ordinary failure."""

    def __init__(self, error: Invalid) -> None:
        self.error = error


class _InterruptibleThread:
    """A block of Python code in which another thread can raise `Stopped`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None

    def __enter__(self) -> None:
        with self._lock:
            self._thread = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._thread is not None:
                _raise_in_thread(self._thread, None)  # revoke a pending exception
            self._thread = None

    def interrupt(self) -> None:
        # Never wait here: an earlier exception may have hit the other thread while it held the lock.
        if self._lock.acquire(blocking=False):
            try:
                if self._thread is not None:
                    _raise_in_thread(self._thread, Stopped)
            finally:
                self._lock.release()


def _raise_in_thread(thread: int, exception: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(exception) if exception is not None else None
    )


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
