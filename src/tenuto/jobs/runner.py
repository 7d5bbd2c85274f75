"""Runs attempts: `async def` on a loop of its own, plain functions in threads, isolated ones in child processes.

Never touches the store. Every attempt, however it ends, is delivered exactly once, from whichever thread it ended
on; the outcome is None when nothing may be reported. Lists are handed over, not single attempts: crossing
into another thread is dear.
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
from tenuto.jobs.attempts import Attempt, Stop
from tenuto.jobs.context import Stopped, current
from tenuto.jobs.process_pool import Children
from tenuto.jobs.registry import Job, Jobs
from tenuto.model.tasks import Outcome

End = tuple[Attempt, Outcome | None]
Deliver = Callable[[Sequence[End]], None]

_NOTHING: AbstractContextManager[None] = nullcontext()


class Runner:
    """Where the code of jobs runs."""

    def __init__(
        self,
        jobs: Jobs,
        clock: Clock,
        deliver: Deliver,
        *,
        threads: int,
    ) -> None:
        self._jobs = jobs
        self._clock = clock
        self._deliver = deliver
        self._loop = _new_loop()
        self._loop_thread = threading.Thread(target=self._run_loop, name="tenuto-jobs", daemon=True)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tenuto-job")
        self._children = Children()
        self._ended_on_the_loop: list[End] = []
        self._is_traced = False

    def start(self) -> None:
        self._loop_thread.start()

    def close(self) -> None:
        """Nothing runs any more: let loop, threads and children go."""
        self._children.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop_thread.join(timeout=5)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop on which `async def` jobs run."""
        return self._loop

    @property
    def loop_thread_id(self) -> int | None:
        return self._loop_thread.ident

    def launch(self, attempts: Sequence[Attempt]) -> None:
        """Start attempts, each where its job belongs."""
        self._is_traced = tracing.is_on()  # asked here, once for all of them
        for_loop: list[tuple[Attempt, Job[..., Any]]] = []
        for attempt in attempts:
            try:
                job = self._jobs.of(attempt.task.kind, attempt.task.name)
            except Exception as error:  # noqa: BLE001 — unknown, or a kind that cannot be made ready: the others begin
                if isinstance(error, UnknownJob):
                    error.remedy = "restart the worker if the job is new; start workers with the app that has it"
                self._end(attempt, outcomes.of_error(attempt, error, self._clock.now()))
                continue
            if job.isolated:
                self._threads.submit(self._run_isolated, attempt, job)
            elif job.is_async:
                for_loop.append((attempt, job))
            else:
                self._threads.submit(self._run_in_thread, attempt, job)
        if for_loop:
            self._loop.call_soon_threadsafe(self._begin, for_loop)

    # --- async def --------------------------------------------------------------------------------------------------

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _begin(self, attempts: list[tuple[Attempt, Job[..., Any]]]) -> None:
        create_task, call_soon = self._loop.create_task, self._loop.call_soon_threadsafe
        for attempt, job in attempts:
            attempt.can_be_halted_by(partial(call_soon, create_task(self._run_async(attempt, job)).cancel))

    async def _run_async(self, attempt: Attempt, job: Job[..., Any]) -> None:
        outcome: Outcome | None
        try:
            arguments = self._prepare(attempt, job)
            code = job.function(**arguments)
            value = await (self._within_span(attempt, code) if self._is_traced else code)
            if (
                attempt.stop_reason is Stop.TIMED_OUT
            ):  # it blocked the loop, so nobody could stop it: done, but too late
                attempt.context.warn("ended after its time limit, which could not be kept: the code blocks its loop")
            outcome = outcomes.of_value(attempt, job, value, self._clock.now())
        except _InputRefused as refusal:
            outcome = outcomes.refused(attempt, refusal.why, self._clock.now())
        except BaseException as error:  # noqa: BLE001 — code that raises SystemExit ends here like any other
            outcome = outcomes.of_error(attempt, error, self._clock.now())
        attempt.ended()
        # What ends in the same turn of the loop is delivered together: the steps of a group are then written at once.
        if not self._ended_on_the_loop:
            self._loop.call_soon(self._deliver_what_ended)
        self._ended_on_the_loop.append((attempt, outcome))

    async def _within_span(self, attempt: Attempt, code: Awaitable[Any]) -> Any:
        with self._span(attempt):
            return await code

    def _deliver_what_ended(self) -> None:
        ended, self._ended_on_the_loop = self._ended_on_the_loop, []
        self._deliver(ended)

    async def _beside(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """A plain function that belongs to an attempt on the loop: in a thread, stopped as one, and waited for until it
        has really ended. What it returned although it was told to stop is handed over."""
        thread = _Interruptible()

        def run() -> Any:
            with thread:
                return function(**arguments)

        running = asyncio.wrap_future(self._threads.submit(copy_context().run, run))
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError:  # each time somebody presses
                thread.interrupt()
        return running.result()

    # --- plain functions --------------------------------------------------------------------------------------------

    def _run_in_thread(self, attempt: Attempt, job: Job[..., Any]) -> None:
        thread = _Interruptible()
        outcome: Outcome | None
        context_token = None
        try:
            try:
                context_token = current.set(attempt.context)
                arguments = self._prepare(attempt, job)
                with self._span(attempt), thread:
                    attempt.can_be_halted_by(thread.interrupt)
                    value = job.function(**arguments)
                outcome = outcomes.of_value(attempt, job, value, self._clock.now())
            except _InputRefused as refusal:
                outcome = outcomes.refused(attempt, refusal.why, self._clock.now())
            except BaseException as error:  # noqa: BLE001 — whatever the code raised is its outcome
                outcome = outcomes.of_error(attempt, error, self._clock.now())
        except Stopped:  # the interruption came late, between the end of the code and here
            outcome = outcomes.of_stop(attempt, self._clock.now())
        if context_token is not None:
            current.reset(context_token)
        self._end(attempt, outcome)

    # --- child processes --------------------------------------------------------------------------------------------

    def _run_isolated(self, attempt: Attempt, job: Job[..., Any]) -> None:
        outcome: Outcome | None
        try:
            attempt.begins(self._clock.now())
            if attempt.stop_reason is not None:
                outcome = outcomes.of_stop(attempt, self._clock.now())
            else:
                with self._span(attempt):
                    outcome = self._children.run(attempt, job, self._clock)
        except BaseException as error:  # noqa: BLE001 — a child that cannot be started is a failed attempt too
            outcome = outcomes.of_error(attempt, error, self._clock.now())
        self._end(attempt, outcome)

    # --- common to all ----------------------------------------------------------------------------------------------

    def _span(self, attempt: Attempt) -> AbstractContextManager[None]:
        """Around its code, if anything is traced at all."""
        if not self._is_traced:
            return _NOTHING
        task = attempt.task
        return tracing.running(task.name, task.policy_json, task.about)

    def _prepare(self, attempt: Attempt, job: Job[..., Any]) -> dict[str, Any]:
        """Mark the start and make the arguments ready."""
        context = attempt.context
        attempt.begins(self._clock.now())
        if job.is_async:  # on the loop every attempt has a copy of the context to itself
            current.set(context)
            context.beside = self._beside
        if attempt.stop_reason is not None:
            raise Stopped
        try:
            arguments = job.load_input(attempt.task.input)
        except Invalid as error:
            raise _InputRefused(error) from error
        if job.context_parameter is not None:
            arguments[job.context_parameter] = context
        return arguments

    def _end(self, attempt: Attempt, outcome: Outcome | None) -> None:
        attempt.ended()
        self._deliver([(attempt, outcome)])


class _InputRefused(Exception):
    """The input does not fit, which is final; the same error raised by the code itself would be an ordinary failure."""

    def __init__(self, why: Invalid) -> None:
        self.why = why


class _Interruptible:
    """A stretch of Python code in a thread into which an exception can be thrown from outside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None

    def __enter__(self) -> None:
        with self._lock:
            self._thread = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._thread is not None:
                _throw(self._thread, None)  # one that is still on its way is called back
            self._thread = None

    def interrupt(self) -> None:
        # Never wait here: an exception thrown earlier may have hit the other side while it held the lock.
        if self._lock.acquire(blocking=False):
            try:
                if self._thread is not None:
                    _throw(self._thread, Stopped)
            finally:
                self._lock.release()


def _throw(thread: int, exception: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(exception) if exception is not None else None
    )


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
