"""What a job is given to work with: who it is, how far it has come, whether it should stop.

A `Context` speaks only of its own attempt. It never touches the queue: progress and log are kept here and carried to
the database by the worker.
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
from typing import Any, Protocol
from uuid import UUID

from tenuto.errors import EngineError, Invalid, TenutoError
from tenuto.jobs.attempt_log import AttemptLog, shown
from tenuto.jobs.redaction import SHORTEST, Mask, hide_for_process
from tenuto.logs import tell_about
from tenuto.model import stored_values
from tenuto.model.actors import Actor, ActorType
from tenuto.model.tasks import Aside, Task, seconds

current: ContextVar[Context | None] = ContextVar("tenuto_context", default=None)
"""The context of the attempt whose code is running, if any."""


def _about() -> dict[str, str | int]:
    context = current.get()
    return {} if context is None else context.task.about


tell_about(_about)


LONGEST_WAIT = timedelta(days=366)


class PermanentFailure(TenutoError):
    """Raised by a job: this will not work however often it is tried."""


class TimedOut(TenutoError):
    """Raised inside a handler whose time limit is over, though it held no slot for most of it."""


class RetryLater(TenutoError):
    """Raised by a job: failed for now; try again after a wait of the job's choosing."""

    def __init__(self, message: str, *, after: float | timedelta) -> None:
        super().__init__(message)
        try:
            self.after = after if isinstance(after, timedelta) else timedelta(seconds=after)
        except (ValueError, OverflowError):  # NaN, or beyond the end of time
            self.after = timedelta.max
        if self.after > LONGEST_WAIT:
            raise Invalid(f"must be at most {LONGEST_WAIT.days} days", field="after")
        self.after = max(self.after, timedelta(0))  # reckoned from an instant that has passed: at once


class PutAside(BaseException):
    """Raised inside a handler that wants to be called again later, without holding its slot till then.

    Not an Exception, so that `except Exception` lets it by.
    """

    def __init__(self, aside: Aside) -> None:
        super().__init__("put aside")
        self.aside = aside


@dataclass(frozen=True, slots=True)
class Nap:
    """The sleep a step has come to: the how many-th of it, and whether it is over."""

    number: int
    until: datetime
    over: bool
    log: str | None = None
    """What the attempt had said before it, if this attempt is the same one."""


class StepMemory(Protocol):
    """What the steps of a task have come to, kept where a crash cannot reach it."""

    async def recorded(self) -> dict[str, str]:
        """What is stored, by name, as JSON."""
        ...

    async def record(self, name: str, output: str) -> str:
        """Store what a step came to; what stands."""
        ...

    async def sleep(self, step: str, number: int, span: timedelta, log: str | None) -> Nap:
        """Have the n-th sleep of a step begin now, unless it, or a later one, has begun before."""
        ...


Beside = Callable[[Callable[..., Any], dict[str, Any]], Awaitable[Any]]
"""Runs a plain function in a thread, for code on the loop."""


class Stopped(BaseException):
    """Raised inside a plain function that was told to stop. Not an Exception, so that `except Exception` lets it by."""


class Context:
    """One attempt, seen from inside."""

    __slots__ = (
        "_connect", "_log", "_mask", "_progress", "_remember", "_sleeps", "_steps", "_stop", "_stop_event", "at_step",
        "beside", "errors", "lease_lost", "step_key", "task", "warnings",
    )  # fmt: skip

    def __init__(
        self,
        task: Task,
        connect: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        remember: Callable[[Task], StepMemory] | None = None,
    ) -> None:
        self.task = task
        self.at_step = self.step_key = ""
        """The step of a chain that is under way: its name, and what it is stored under."""
        self.beside: Beside | None = None
        """Set by whoever runs the attempt, if it can run plain functions beside it."""
        self._remember = remember
        self._steps: StepMemory | None = None
        self._sleeps: dict[str, int] | None = None
        self.warnings: list[str] = []
        self.errors: list[str] = []
        self._log: AttemptLog | None = None
        self._mask: Mask | None = None
        self._progress: str | None = None
        self._stop = False
        self.lease_lost = False
        """Whether it was told to stop because the task is no longer its own: nothing may go on, not even to tidy up."""
        self._stop_event: threading.Event | None = None
        self._connect = connect

    @property
    def log(self) -> AttemptLog:
        """This attempt's own log; kept with its record."""
        if self._log is None:
            self._log = AttemptLog(self.task)
        return self._log

    @property
    def log_text(self) -> str | None:
        """What was said so far, or None."""
        return None if self._log is None else self._log.text()

    @property
    def task_id(self) -> UUID:
        return self.task.id

    @property
    def activity_id(self) -> UUID:
        """The id of the record this attempt will leave."""
        return self.task.activity_id

    @property
    def attempt(self) -> int:
        """1 for the first try."""
        return self.task.attempt

    @property
    def fence(self) -> int:
        """Grows with every claim: let a receiver refuse a smaller number than it has seen."""
        return self.task.fence

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt at this task: let a receiver act on it once."""
        return str(self.task.id)

    @property
    def scheduled_for(self) -> datetime:
        return self.task.run_at

    @property
    def initiator(self) -> Actor:
        """Who asked for this."""
        return Actor(ActorType(self.task.initiator_type), self.task.initiator_id, self.task.initiator_name)

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Say how far the work has come; shown live, at most about once a second."""
        state: dict[str, Any] = {"done": done}
        if total is not None:
            state["total"] = total
        if message is not None:
            state["message"] = stored_values.kept_text(self.hidden(message), 500)
        try:
            self._progress = self.hidden_json(json.dumps(state, ensure_ascii=False, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise Invalid(f"is not JSON: {error}", field="progress", remedy="give plain, finite numbers") from error

    def take_progress(self, state: str) -> None:
        """Progress as a child process reported it."""
        self._progress = state

    @property
    def latest_progress(self) -> str | None:
        return self._progress

    def conceal(self, value: str) -> None:
        """Show ``***`` instead of this value in everything this attempt leaves behind from now on.

        Secrets need no word of the job's own; this is for what it has found out by itself, such as a session token.
        """
        if len(value.strip()) < SHORTEST:
            raise Invalid(f"must be {SHORTEST} characters or more", field="value", remedy="less is found everywhere")
        if self._mask is None:
            self._mask = self.log.mask = Mask()
        self._mask.add(value)
        hide_for_process(value)

    def hidden(self, text: str) -> str:
        """The text with ``***`` for what must not be seen."""
        return text if self._mask is None else self._mask.text(text)

    def hidden_json(self, text: str) -> str:
        """The JSON text with ``***`` for what must not be seen."""
        return text if self._mask is None else self._mask.json(text)

    def warn(self, message: str) -> None:
        """The work is done, but somebody should look: the attempt ends as completed with warning."""
        self.warnings.append(self.hidden(shown(message)))
        self.log.warning(message)

    def error(self, message: str) -> None:
        """Part of the work failed: the attempt ends as completed with error, which counts as failed for its step."""
        self.errors.append(self.hidden(shown(message)))
        self.log.error(message)

    @property
    def cancelled(self) -> bool:
        """Whether this attempt has been told to stop. Long loops in plain functions should look at it."""
        return self._stop

    def check(self) -> None:
        """Stop here if told to."""
        if self._stop:
            raise Stopped

    def wait(self, seconds: float) -> bool:
        """Sleep in a plain function, waking at once when told to stop; True if so."""
        if self._stop_event is None:
            self._stop_event = threading.Event()
        return self._stop or self._stop_event.wait(seconds)

    def tell_to_stop(self, *, lease_lost: bool = False) -> None:
        self.lease_lost = self.lease_lost or lease_lost
        self._stop = True
        if self._stop_event is not None:
            self._stop_event.set()

    @property
    def steps(self) -> StepMemory:
        """What the steps of this task have come to, kept over retries and crashes."""
        if self._steps is None:
            if self._remember is None:
                raise EngineError("this job runs in a child process, which can neither keep steps nor sleep")
            self._steps = self._remember(self.task)
        return self._steps

    def sleep(self, span: float | str | timedelta) -> Awaitable[None]:
        """Sleep, for days if need be, without holding a slot: the code is left here and called again when it is time.

        What goes before it is run again then, but not the finished steps of a chain; sleeps that are over are passed.
        """
        wait = seconds(span, field="span")
        if wait is None or not 0 <= wait <= LONGEST_WAIT.total_seconds():
            raise Invalid(f"must be from 0 s to {LONGEST_WAIT.days} days", field="span")
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # in a thread nobody would await it
            raise EngineError(
                "only async code can sleep without holding its slot",
                remedy="make it an async def, or use ctx.wait(seconds), which holds the slot",
            ) from None
        return self._sleep(timedelta(seconds=wait))

    async def _sleep(self, span: timedelta) -> None:
        if self._sleeps is None:
            self._sleeps = {}
        number = self._sleeps.get(self.step_key, 0) + 1
        nap = await self.steps.sleep(self.step_key, number, span, self.log_text)
        self._sleeps[self.step_key] = number
        if not nap.over:
            raise PutAside(Aside(until=nap.until))
        if nap.log is not None:
            self.log.goes_on_from(nap.log)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """A database connection of this attempt's own, for as long as the block lasts."""
        if self._connect is None:
            raise EngineError("this job runs in a child process, which has no connection of the worker's")
        async with self._connect() as connection:
            yield connection
