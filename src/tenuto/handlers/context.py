"""What a job is given to work with: who it is, how far it has come, whether it should stop.

A `Context` speaks only of its own attempt. It never touches the queue: progress and log are kept here and carried to
the database by the worker.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenuto.errors import EngineError, Invalid, TenutoError
from tenuto.handlers.attemptlog import AttemptLog
from tenuto.model import payloads
from tenuto.model.access import Actor, ActorType
from tenuto.model.tasks import Aside, Task

current: ContextVar[Context | None] = ContextVar("tenuto_context", default=None)
"""The context of the attempt whose code is running, if any."""


LONGEST_WAIT = timedelta(days=366)


class PermanentFailure(TenutoError):
    """Raised by a job: this will not work however often it is tried."""


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


class PutAside(BaseException):
    """Raised inside a handler that wants to be called again later, without holding its slot till then.

    Not an Exception, so that `except Exception` lets it by.
    """

    def __init__(self, aside: Aside) -> None:
        super().__init__("put aside")
        self.aside = aside


class Stopped(BaseException):
    """Raised inside a plain function that was told to stop. Not an Exception, so that `except Exception` lets it by."""


class Context:
    """One attempt, seen from inside."""

    __slots__ = ("_connect", "_log", "_progress", "_stop", "_stop_event", "errors", "task", "warnings")

    def __init__(self, task: Task, connect: Callable[[], AbstractAsyncContextManager[Any]] | None = None) -> None:
        self.task = task
        self.warnings: list[str] = []
        self.errors: list[str] = []
        self._log: AttemptLog | None = None
        self._progress: str | None = None
        self._stop = False
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
            state["message"] = payloads.kept_text(message, 500)
        try:
            self._progress = json.dumps(state, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise Invalid(f"is not JSON: {error}", field="progress", remedy="give plain, finite numbers") from error

    def take_progress(self, state: str) -> None:
        """Progress as a child process reported it."""
        self._progress = state

    @property
    def latest_progress(self) -> str | None:
        return self._progress

    def warn(self, message: str) -> None:
        """The work is done, but somebody should look: the attempt ends as completed with warning."""
        self.warnings.append(message)
        self.log.warning(message)

    def error(self, message: str) -> None:
        """Part of the work failed: the attempt ends as completed with error, which counts as failed for its step."""
        self.errors.append(message)
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

    def tell_to_stop(self) -> None:
        self._stop = True
        if self._stop_event is not None:
            self._stop_event.set()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """A database connection of this attempt's own, for as long as the block lasts."""
        if self._connect is None:
            raise EngineError("this job runs in a child process, which has no connection of the worker's")
        async with self._connect() as connection:
            yield connection
