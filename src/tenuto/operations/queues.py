"""Queue and worker operations of the app: list workers, and list, limit, pause and resume queues."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence

from tenuto.errors import Invalid, quoted
from tenuto.model import validation
from tenuto.model.actors import Actor
from tenuto.postgres.database import Database
from tenuto.store import tasks, workers
from tenuto.store.access import audit_recorder
from tenuto.store.workers import QueueRecord, WorkerRecord

_MAX_QUEUE_LIMIT = 100_000


class QueueOperations(ABC):
    """The methods of an app that handle queues and workers."""

    @abstractmethod
    async def open(self) -> Database:
        """Return the database of the app."""

    @abstractmethod
    def _current_actor(self) -> Actor:
        """Return the actor on whose behalf the operation runs."""

    async def workers(self, *, ended: bool = False) -> Sequence[WorkerRecord]:
        """List the live workers, optionally with those that have ended."""
        return await workers.list_workers(await self.open(), ended=ended)

    async def queues(self) -> Sequence[QueueRecord]:
        """List all queues with limit, pause and task counts."""
        return await workers.list_queues(await self.open())

    async def limit_queue(self, name: str, max_running: int | None) -> None:
        """Limit how many tasks of a queue run at the same time over all workers; None removes the limit."""
        if max_running is not None and not (isinstance(max_running, int) and 1 <= max_running <= _MAX_QUEUE_LIMIT):
            raise Invalid(
                f"max_running must be from 1 to {_MAX_QUEUE_LIMIT:,}, not {quoted(max_running, 40)}",
                code="queue.max_running.out_of_range",
                field="max_running",
                remedy="pause the queue to stop it",
            )
        audit_recorder.add_audit_details(target=name, after={"max_running": max_running})
        await self._change_queue(name, lambda database: workers.limit_queue(database, name, max_running))

    async def pause_queue(self, name: str, reason: str | None = None) -> None:
        """Pause a queue: workers claim no more of its tasks; running tasks continue."""
        if reason is not None:
            validation.check_text(reason, field="reason", limit=1000)
        by = self._current_actor().name
        audit_recorder.add_audit_details(target=name, reason=reason)
        await self._change_queue(name, lambda database: workers.pause_queue(database, name, by=by, reason=reason))

    async def resume_queue(self, name: str) -> None:
        """Resume a paused queue."""
        audit_recorder.add_audit_details(target=name)
        await self._change_queue(name, lambda database: workers.resume_queue(database, name))

    async def _change_queue(self, name: str, change: Callable[[Database], Awaitable[None]]) -> None:
        validation.check_name(name, field="queue", limit=64)
        database = await self.open()
        await change(database)
        await tasks.notify_services(database, ["limits", f"queued {name}"])
