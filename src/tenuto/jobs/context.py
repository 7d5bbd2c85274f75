"""The context given to a job: identity of the attempt, progress, log, redaction, and the stop flag.

A `Context` never accesses the queue: the worker stores its progress and its log.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, cast, overload
from uuid import UUID

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from tenuto.clock import Clock
from tenuto.errors import EngineError, Invalid, TenutoError
from tenuto.jobs.attempt_log import AttemptLog, to_text
from tenuto.jobs.redaction import MIN_LENGTH, Redactor, redact_in_process
from tenuto.logs import set_attempt_fields
from tenuto.model import validation
from tenuto.model.access.actors import Actor, ActorType
from tenuto.model.events.event_names import check_event_key, check_event_name, describe_event, parse_wait_seconds
from tenuto.model.work.logical_time import occurrence_of_policy
from tenuto.model.work.tasks import Deferral, NewTask, Task, WaitKey, parse_duration_seconds

if TYPE_CHECKING:
    from tenuto.jobs.workflows.durable_calls import ChildCaller, GatherCaller, StepCaller
    from tenuto.jobs.workflows.workflow_run import WorkflowRun

T = TypeVar("T")
SLEEP, WAIT = "ctx.sleep", "ctx.wait_for_event"
"""Names of the calls that give up the slot, where a workflow makes them."""

current_context: ContextVar[Context | None] = ContextVar("tenuto_context", default=None)
"""The context of the attempt whose code is running, if any."""


def _log_fields() -> dict[str, str | int]:
    context = current_context.get()
    return {} if context is None else context.task.log_fields


set_attempt_fields(_log_fields)


MAX_DELAY = timedelta(days=366)


class PermanentFailure(TenutoError):
    """Raised by a job: a retry cannot help."""

    def __init__(
        self, message: str, *, code: str = "job.permanent_failure", field: str | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(message, code=code, field=field, remedy=remedy)


class TimedOut(TenutoError):
    """Raised by a step handler whose time limit has passed, although it held no slot for most of that time."""


class EventTimeout(PermanentFailure):
    """Raised by `Context.wait_for_event`: no event has arrived in time. A retry would not wait again."""


class RetryLater(TenutoError):
    """Raised by a job: the attempt failed; retry it after the given delay."""

    def __init__(self, message: str, *, after: float | timedelta, code: str = "job.retry_later") -> None:
        super().__init__(message, code=code)
        try:
            self.after = after if isinstance(after, timedelta) else timedelta(seconds=after)
        except (ValueError, OverflowError):  # NaN or out of range
            self.after = timedelta.max
        if self.after > MAX_DELAY:
            raise Invalid(
                f"the retry delay {after!r} is longer than {MAX_DELAY.days} days",
                code="job.retry_delay.out_of_range",
                field="after",
                remedy=f"give at most {MAX_DELAY.days} days",
            )
        self.after = max(self.after, timedelta(0))  # computed from an instant in the past: retry now


class TaskDeferred(BaseException):
    """Raised by a step handler to give up its slot until a time or until a child execution ends.

    Not an Exception, so that `except Exception` in user code does not catch it.
    """

    def __init__(self, deferral: Deferral) -> None:
        super().__init__("task deferred")
        self.deferral = deferral


@dataclass(frozen=True, slots=True)
class StepSleep:
    """State of the n-th sleep of a step."""

    number: int
    ends_at: datetime
    has_ended: bool
    log: str | None = None
    """The log of this attempt before it was deferred for this sleep."""


@dataclass(frozen=True, slots=True)
class StepWait:
    """State of the n-th wait of a step for an event."""

    number: int
    name: str
    key: str
    ends_at: datetime
    has_ended: bool
    has_timed_out: bool = False
    payload: Any = None
    log: str | None = None
    """The log of this attempt before it was deferred."""


class StepCheckpoints(Protocol):
    """Durable results of the steps of a task."""

    async def load(self) -> dict[str, str]:
        """Return the stored results as JSON, by step key."""
        ...

    async def save(self, name: str, output: str) -> str:
        """Store the result of a step; return the stored one, which may be that of an earlier attempt."""
        ...

    async def sleep(self, step: str, number: int, duration: timedelta, log: str | None) -> StepSleep:
        """Start the n-th sleep of a step, unless it or a later one has been started before."""
        ...

    async def wait_for_event(
        self, step: str, number: int, name: str, key: str, timeout: timedelta, log: str | None
    ) -> StepWait:
        """Begin the n-th wait of a step, unless it has begun before, and return how it stands."""
        ...

    async def run_child(self, step: str, child: NewTask, log: str | None) -> StepWait:
        """Start a child task and wait for its end, unless the step has started one before."""
        ...


RunInThread = Callable[[Callable[..., Any], dict[str, Any]], Awaitable[Any]]
"""Runs a plain function in a thread, for code on the event loop."""


class Stopped(BaseException):
    """Raised in a plain function whose attempt is stopped. Not an Exception, so that `except Exception` misses it."""


class Context:
    """The attempt as its own code sees it."""

    __slots__ = (
        "_connect", "_log", "_open_checkpoints", "_progress", "_redactor", "_sleep_counts", "_steps", "_stop_event",
        "_stop_requested", "_wait_counts", "clock", "current_step", "current_step_key", "errors", "lease_lost",
        "run_in_thread", "task", "warnings", "workflow",
    )  # fmt: skip

    def __init__(
        self,
        task: Task,
        connect: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        open_checkpoints: Callable[[Task], StepCheckpoints] | None = None,
    ) -> None:
        self.task = task
        self.current_step = self.current_step_key = ""
        """The running step of a chain: its name, and the key of its checkpoint."""
        self.run_in_thread: RunInThread | None = None
        """Set by the runner for attempts on the event loop."""
        self.clock: Clock | None = None
        """Set by the runner for attempts on the event loop."""
        self.workflow: WorkflowRun | None = None
        """The run of a workflow that this attempt is."""
        self._open_checkpoints = open_checkpoints
        self._steps: StepCheckpoints | None = None
        self._sleep_counts: dict[str, int] | None = None
        self._wait_counts: dict[str, int] | None = None
        self.warnings: list[str] = []
        self.errors: list[str] = []
        self._log: AttemptLog | None = None
        self._redactor: Redactor | None = None
        self._progress: str | None = None
        self._stop_requested = False
        self.lease_lost = False
        """Whether the stop was requested because another worker may hold the task: no cleanup work is allowed."""
        self._stop_event: threading.Event | None = None
        self._connect = connect

    @property
    def log(self) -> AttemptLog:
        """The log of this attempt; stored with its activity."""
        if self._log is None:
            self._log = AttemptLog(self.task)
        return self._log

    @property
    def log_text(self) -> str | None:
        return None if self._log is None else self._log.text()

    @property
    def has_log(self) -> bool:
        """Whether the attempt has logged anything."""
        return self._log is not None

    @property
    def task_id(self) -> UUID:
        return self.task.id

    @property
    def activity_id(self) -> UUID:
        """The id of the activity that will record this attempt."""
        return self.task.activity_id

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return self.task.attempt

    @property
    def fence(self) -> int:
        """Grows with every claim: a receiver can reject requests with a smaller number than it has seen."""
        return self.task.fence

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt of this task: a receiver can act on it once."""
        return str(self.task.id)

    @property
    def scheduled_for(self) -> datetime:
        """The instant for which the work was planned.

        For a step of a scheduled or backfilled run: the due instant of the schedule, however late the step runs. For a
        step of a manual run: when the run was started. For any other task: when it was due first. It is the same in all
        attempts, in all steps of a run, and in a retry of the run.
        """
        occurrence = occurrence_of_policy(self.task.policy_json)
        return self.task.run_at if occurrence is None else occurrence.due_at

    @property
    def interval(self) -> tuple[datetime, datetime] | None:
        """For a step of a scheduled or backfilled run: the previous due instant of the schedule, and its own.

        None for a manual run and for a task outside of schedules.
        """
        occurrence = occurrence_of_policy(self.task.policy_json)
        if occurrence is None or occurrence.interval_start is None:
            return None
        return occurrence.interval_start, occurrence.due_at

    @property
    def initiator(self) -> Actor:
        """The actor that requested this task."""
        return Actor(ActorType(self.task.initiator_type), self.task.initiator_id, self.task.initiator_name)

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress; shown live, updated about once a second."""
        state: dict[str, Any] = {"done": done}
        if total is not None:
            state["total"] = total
        if message is not None:
            state["message"] = validation.truncate_text(self.redact_text(message), 500)
        try:
            self._progress = self.redact_json(json.dumps(state, ensure_ascii=False, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise Invalid(
                f"progress cannot be stored as JSON: {error}", code="job.progress.not_json", field="progress"
            ) from error

    def set_progress_json(self, state: str) -> None:
        """Set the progress reported by a child process."""
        self._progress = state

    @property
    def progress_json(self) -> str | None:
        return self._progress

    def redact(self, value: str) -> None:
        """Replace this value by ``***`` in everything this attempt leaves behind from now on.

        Secrets of Tenuto are redacted by themselves; this is for other values, such as a session token.
        """
        if len(value.strip()) < MIN_LENGTH:
            raise Invalid(
                f"the value to redact is shorter than {MIN_LENGTH} characters",
                code="job.redaction.value_too_short",
                field="value",
                remedy="redact longer values only; short ones occur everywhere",
            )
        if self._redactor is None:
            self._redactor = self.log.redactor = Redactor()
        self._redactor.add(value)
        redact_in_process(value)

    def redact_text(self, text: str) -> str:
        """Return the text with ``***`` in place of redacted values."""
        return text if self._redactor is None else self._redactor.redact_text(text)

    def redact_json(self, text: str) -> str:
        """Return the JSON text with ``***`` in place of redacted values."""
        return text if self._redactor is None else self._redactor.redact_json(text)

    def warn(self, message: str) -> None:
        """Record a warning: the attempt ends as completed with warning."""
        text = self.redact_text(to_text(message))
        self.warnings.append(text)
        if self.workflow is not None:
            self.workflow.record_warning(text)
        self.log.warning(message)

    def error(self, message: str) -> None:
        """Record an error: the attempt ends as completed with error, which fails its step."""
        text = self.redact_text(to_text(message))
        self.errors.append(text)
        if self.workflow is not None:
            self.workflow.record_error(text)
        self.log.error(message)

    @property
    def cancelled(self) -> bool:
        """Whether a stop was requested. Long loops in plain functions should check it."""
        return self._stop_requested

    def raise_if_cancelled(self) -> None:
        """Leave the job here if a stop was requested."""
        if self._stop_requested:
            raise Stopped

    def wait(self, seconds: float) -> bool:
        """Sleep in a plain function; return True at once when a stop is requested."""
        if self._stop_event is None:
            self._stop_event = threading.Event()
        return self._stop_requested or self._stop_event.wait(seconds)

    def request_stop(self, *, lease_lost: bool = False) -> None:
        self.lease_lost = self.lease_lost or lease_lost
        self._stop_requested = True
        if self._stop_event is not None:
            self._stop_event.set()

    @property
    def steps(self) -> StepCheckpoints:
        """The step checkpoints of this task; they survive retries and crashes."""
        if self._steps is None:
            if self._open_checkpoints is None:
                raise EngineError(
                    "an isolated job runs in a child process, which has no step checkpoints and cannot sleep",
                    code="job.isolated.unsupported",
                    remedy="remove isolated=True from the job",
                )
            self._steps = self._open_checkpoints(self.task)
        return self._steps

    def sleep(self, duration: float | str | timedelta) -> Awaitable[None]:
        """Sleep without holding a slot, for days if need be: the code ends here and is called again afterwards.

        The code before the call runs again, except for finished steps of a chain; sleeps that have ended are skipped.
        """
        seconds = parse_duration_seconds(duration, field="duration")
        if seconds is None or not 0 <= seconds <= MAX_DELAY.total_seconds():
            raise Invalid(
                f"the sleep duration {duration!r} is not between 0 s and {MAX_DELAY.days} days",
                code="job.sleep.out_of_range",
                field="duration",
            )
        _require_event_loop(
            "only async code can sleep without holding its slot",
            "job.sleep.not_async",
            "make the function async def, or use ctx.wait(seconds), which holds the slot",
        )
        return self._sleep(timedelta(seconds=seconds))

    async def _sleep(self, duration: timedelta) -> None:
        if self._sleep_counts is None:
            self._sleep_counts = {}
        step = self.current_step_key if self.workflow is None else await self.workflow.begin_wait(SLEEP)
        number = self._sleep_counts.get(step, 0) + 1
        sleep = await self.steps.sleep(step, number, duration, self.log_text)
        self._sleep_counts[step] = number
        if not sleep.has_ended:
            self._defer(Deferral(resume_at=sleep.ends_at))
        if sleep.log is not None:
            self.log.prepend(sleep.log)

    @overload
    def wait_for_event(
        self, name: str, payload_type: type[T], *, key: str = "", timeout: float | str | timedelta | None = None
    ) -> Awaitable[T]: ...

    @overload
    def wait_for_event(
        self, name: str, *, key: str = "", timeout: float | str | timedelta | None = None
    ) -> Awaitable[Any]: ...

    def wait_for_event(
        self, name: str, payload_type: Any = Any, *, key: str = "", timeout: float | str | timedelta | None = None
    ) -> Awaitable[Any]:
        """Wait for an event without holding a slot, and return its payload; raise `EventTimeout` after the timeout.

        The code ends here and is called again when the event with this name and correlation key arrives. The code
        before the call runs again, except for finished steps of a chain. What a wait received, or that it timed out,
        is stored: the same call returns it again in every later attempt. An event that arrived before the wait and that
        no other wait has received is returned at once. ``payload_type`` validates the payload. Without a timeout the
        wait ends after 366 days.
        """
        check_event_name(name)
        check_event_key(key)
        duration = timedelta(seconds=parse_wait_seconds(timeout))
        _require_event_loop(
            "only async code can wait for an event without holding its slot",
            "job.event.not_async",
            "make the function async def",
        )
        return self._wait_for_event(name, key, duration, TypeAdapter(payload_type))

    async def _wait_for_event(self, name: str, key: str, timeout: timedelta, payload_type: TypeAdapter[Any]) -> Any:
        if self._wait_counts is None:
            self._wait_counts = {}
        step = self.current_step_key if self.workflow is None else await self.workflow.begin_wait(WAIT)
        number = self._wait_counts[step] = self._wait_counts.get(step, 0) + 1
        wait = await self.steps.wait_for_event(step, number, name, key, timeout, self.log_text)
        if (wait.name, wait.key) != (name, key):
            raise EngineError(
                f"wait {number} of the task was for {describe_event(wait.name, wait.key)}, not for"
                f" {describe_event(name, key)}",
                code="job.event.changed",
                remedy="the code has changed since, or its order of waits differs between attempts: cancel the task"
                " and enqueue it again",
            )
        if not wait.has_ended:
            self._report_waiting(describe_event(name, key))
            self._defer(Deferral(resume_at=wait.ends_at, waits=(WaitKey(step, number),)))
        if wait.log is not None:
            self.log.prepend(wait.log)
        if self._progress is None:  # else the record of the attempt would say that it still waits
            self.progress(0, message=f"waited for {describe_event(name, key)}")
        if wait.has_timed_out:
            raise EventTimeout(
                f"{describe_event(name, key)} did not arrive until {wait.ends_at.isoformat()}", code="job.event.timeout"
            )
        try:
            return payload_type.validate_json(to_json(wait.payload))
        except ValidationError as error:
            raise PermanentFailure(
                f"the payload of {describe_event(name, key)} is not acceptable:"
                f" {error.errors(include_url=False)[0]['msg']}",
                code="job.event.payload_mismatch",
                remedy="send the event with a payload of the type that the job expects to a new task",
            ) from error

    def _defer(self, deferral: Deferral) -> NoReturn:
        if self.workflow is not None:
            self.workflow.defer(deferral)
        raise TaskDeferred(deferral)

    def _report_waiting(self, what: str) -> None:
        """Say in the progress what the attempt waits for, and keep its numbers."""
        state = {"done": 0} if self._progress is None else json.loads(self._progress)
        self.progress(state["done"], state.get("total"), f"waits for {what}")

    # --- workflows ----------------------------------------------------------------------------------------------------

    @property
    def _workflow_run(self) -> WorkflowRun:
        if self.workflow is None:
            raise EngineError(
                "only a workflow has durable steps",
                code="workflow.required",
                remedy="register the function with @app.workflow instead of @app.job",
            )
        return self.workflow

    @property
    def step(self) -> StepCaller:
        """Run a function as a durable step of a workflow: ``await ctx.step(charge, order)``.

        Its result is stored when it ends. When the workflow is called again, the stored result is returned, and the
        function is not called. ``ctx.step.using(name=…, retry=…)`` sets options. A failure is raised as `StepFailed`.
        """
        return self._workflow_run.step

    @property
    def gather(self) -> GatherCaller:
        """Run steps and branches of a workflow in parallel: ``a, b = await ctx.gather(ctx.step(f), branch(ctx))``.

        The results are returned in order when all have ended. A branch is a call of an ``async def`` function that
        itself makes durable calls. If branches have failed, the failure of the first of them is raised, or returned
        with ``return_exceptions=True``.
        """
        return self._workflow_run.gather

    @property
    def run(self) -> ChildCaller:
        """Run a job as a child task of a workflow, and return its result: ``await ctx.run(resize, photo)``.

        The child is enqueued once. The workflow waits for its end without a slot. If the child fails for good or is
        cancelled, `ChildFailed` is raised. Cancelling the workflow cancels the child.
        """
        return self._workflow_run.run

    def patched(self, name: str) -> bool:
        """Return whether this run of a workflow takes changed code: False if it was past this place before the change.

        The answer is stored, and is the same whenever the run passes the place again.
        """
        return self._workflow_run.patched(name)

    async def now(self) -> datetime:
        """Return the time, the same one whenever the workflow is called again."""
        return await self._workflow_run.now()

    async def random(self) -> float:
        """Return a random number from 0 to 1, the same one whenever the workflow is called again."""
        return await self._workflow_run.random()

    async def uuid(self) -> UUID:
        """Return a random UUID, the same one whenever the workflow is called again."""
        return await self._workflow_run.uuid()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """Lend this attempt a database connection for the duration of the block."""
        if self._connect is None:
            raise EngineError(
                "an isolated job runs in a child process, which has no database connection",
                code="job.isolated.unsupported",
                remedy="remove isolated=True from the job, or open a connection in the job",
            )
        async with self._connect() as connection:
            yield connection


def _require_event_loop(problem: str, code: str, remedy: str) -> None:
    """Raise an error in a thread, where the result would not be awaited."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise EngineError(problem, code=code, remedy=remedy) from None


class _InjectedContext:
    """Stands for the context of a function that is called directly, without one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise EngineError(
            f"the function was called directly, without a context, and uses {name!r} of it",
            code="job.context.missing",
            remedy="give it a context, or run it as a task; tests can use tenuto.testing",
        )

    def __repr__(self) -> str:
        return "injected"


injected: Context = cast(Context, _InjectedContext())
"""Default of a `Context` parameter that is not the first one: callers of ``job.enqueue`` and their type checkers leave
it out, and the worker fills it in."""
