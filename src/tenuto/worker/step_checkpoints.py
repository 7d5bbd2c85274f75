"""Step checkpoints: results, sleeps and waits of chain steps, stored in the database under the lease of their task.

While the database is unreachable, storing is retried: a step must not run again because its result could not be stored
at once. If the worker loses the lease meanwhile, the watchdog stops the attempt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

from pydantic_core import from_json, to_json

from tenuto.jobs.context import StepSleep, StepWait
from tenuto.logs import Log
from tenuto.model.events.event_names import EventWait, WaitOutcome
from tenuto.model.work.tasks import NewTask, Task, parse_instant
from tenuto.postgres.database import Database
from tenuto.service.polling_loop import retry_while_unavailable
from tenuto.store.events import child_tasks, external_events
from tenuto.store.events.external_events import WaitRecord
from tenuto.store.work import step_checkpoints

T = TypeVar("T")

_SLEEP = "sleep in "

log = Log("tenuto.chains")


class DatabaseStepCheckpoints:
    """Checkpoints of one attempt."""

    __slots__ = ("_database", "_is_log_taken", "_sleeps", "_task", "_waits")

    def __init__(self, database: Database, task: Task) -> None:
        self._database = database
        self._task = task
        self._sleeps: dict[str, dict[str, Any]] | None = None
        self._waits: dict[tuple[str, int], WaitRecord] | None = None
        self._is_log_taken = False

    async def load(self) -> dict[str, str]:
        stored = await self._retry(lambda: step_checkpoints.load_checkpoints(self._database, self._task.id))
        sleeps = {name.removeprefix(_SLEEP): text for name, text in stored.items() if name.startswith(_SLEEP)}
        self._sleeps = {step: from_json(text) for step, text in sleeps.items()}
        return stored

    async def save(self, name: str, output: str) -> str:
        return await self._retry(lambda: step_checkpoints.record_checkpoint(self._database, self._task, name, output))

    async def sleep(self, step: str, number: int, duration: timedelta, log: str | None) -> StepSleep:
        now = self._database.clock.now()
        if self._sleeps is None:
            self._sleeps = {}
        stored = self._sleeps.get(step)
        requested = None
        if stored is None or stored["number"] < number:
            requested = {
                "number": number,
                "until": (now + duration).isoformat(),
                "attempt": self._task.attempt,
                "log": log,
            }
            text = to_json(requested).decode()
            stored = from_json(
                await self._retry(lambda: step_checkpoints.record_sleep(self._database, self._task, step, number, text))
            )
            self._sleeps[step] = stored
        until = parse_instant(stored["until"], field="until")
        # An earlier sleep of the attempt is over before the next one begins. A sleep is also over if the task was
        # claimed again after it: the claim decided that, and the clock of this process may be slightly behind.
        has_ended = stored["number"] > number or until <= max(now, self._task.run_at)
        continues_attempt = stored != requested and stored["attempt"] == self._task.attempt
        return StepSleep(number, until, has_ended, await self._take_deferred_log() if continues_attempt else None)

    async def wait_for_event(
        self, step: str, number: int, name: str, key: str, timeout: timedelta, log: str | None
    ) -> StepWait:
        waits = await self._load_waits()
        found = waits.get((step, number))
        is_known = found is not None
        if found is None or found.outcome is None:
            # The task that resumes after its deadline may be slightly ahead of the clock of this process: see sleep.
            now = max(self._database.clock.now(), self._task.run_at) if is_known else self._database.clock.now()
            wait = EventWait(step, number, name, key, now + timeout)
            found = await self._retry(lambda: external_events.register_wait(self._database, self._task, wait, now, log))
            waits[(step, number)] = found
        has_timed_out = found.outcome is WaitOutcome.TIMED_OUT
        deferred_log = await self._take_deferred_log() if is_known and found.outcome is not None else None
        return StepWait(
            number, found.name, found.key, found.expires_at, found.outcome is not None, has_timed_out, found.payload,
            deferred_log,
        )  # fmt: skip

    async def run_child(self, step: str, child: NewTask, log: str | None) -> StepWait:
        waits = await self._load_waits()
        found = waits.get((step, 1))
        is_known = found is not None
        if found is None:
            child.let_wait(self._task.id, step)
            found = await self._retry(lambda: child_tasks.start_child(self._database, self._task, step, child, log))
            waits[(step, 1)] = found
        deferred_log = await self._take_deferred_log() if is_known and found.outcome is not None else None
        return StepWait(
            1, found.name, found.key, found.expires_at, found.outcome is not None, payload=found.payload,
            log=deferred_log,
        )  # fmt: skip

    async def _load_waits(self) -> dict[tuple[str, int], WaitRecord]:
        if self._waits is None:
            stored = await self._retry(lambda: external_events.list_waits_of_task(self._database, self._task.id))
            self._waits = {(wait.step, wait.number): wait for wait in stored}
        return self._waits

    async def _take_deferred_log(self) -> str | None:
        """Return the log of this attempt before it gave up its slot, once."""
        if self._is_log_taken:
            return None
        self._is_log_taken = True
        return await self._retry(lambda: external_events.load_deferred_log(self._database, self._task))

    async def _retry(self, operation: Callable[[], Awaitable[T]]) -> T:
        return await retry_while_unavailable(
            operation, log, "step checkpoint not stored yet", task_id=str(self._task.id)
        )
