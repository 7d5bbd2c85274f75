"""Where the steps of a chain are remembered: in the database, under the lease of the task they belong to.

A database that is away is waited for: what a step has done must not be done again because its result could not be
stored at once. Whoever loses the lease meanwhile is stopped by the watchdog.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

from pydantic_core import from_json, to_json

from tenuto.jobs.context import Nap
from tenuto.logs import Log
from tenuto.model.tasks import Task, instant
from tenuto.postgres.database import Database
from tenuto.service.polling_loop import patiently
from tenuto.store import step_checkpoints

T = TypeVar("T")

log = Log("tenuto.chains")


class DatabaseMemory:
    """The memory of one attempt; see `jobs.context.StepMemory`."""

    __slots__ = ("_database", "_naps", "_task")

    def __init__(self, database: Database, task: Task) -> None:
        self._database = database
        self._task = task
        self._naps: dict[str, dict[str, Any]] | None = None

    async def recorded(self) -> dict[str, str]:
        return await self._patiently(lambda: step_checkpoints.recorded(self._database, self._task.id))

    async def record(self, name: str, output: str) -> str:
        return await self._patiently(lambda: step_checkpoints.record(self._database, self._task, name, output))

    async def sleep(self, step: str, number: int, span: timedelta, log: str | None) -> Nap:
        now = self._database.clock.now()
        if self._naps is None:
            self._naps = {}
        kept = self._naps.get(step)
        asked = None
        if kept is None or kept["number"] < number:
            asked = {"number": number, "until": (now + span).isoformat(), "attempt": self._task.attempt, "log": log}
            text = to_json(asked).decode()
            kept = from_json(
                await self._patiently(lambda: step_checkpoints.sleep(self._database, self._task, step, number, text))
            )
            self._naps[step] = kept
        until = instant(kept["until"], field="until")
        # Before an attempt sleeps for the second time, the first is over. So is one after which the task was taken
        # again: whoever took it has judged that, and our own clock may be a little behind theirs.
        over = kept["number"] > number or until <= max(now, self._task.run_at)
        went_on = asked is not None and kept != asked and kept["attempt"] == self._task.attempt
        return Nap(number, until, over, kept["log"] if went_on else None)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        return await patiently(ask, log, "steps cannot be stored yet", task=str(self._task.id))
