"""Queue and worker operations of the app: list workers, and list, limit, pause and resume queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from tenuto.errors import Invalid, NotFound, quoted
from tenuto.model import validation
from tenuto.model.definitions.queues import MAX_QUEUE_LIMIT
from tenuto.model.work.rate_limits import parse_rate_limit
from tenuto.operations.bound_operation import Operation, OperationGroup
from tenuto.postgres.database import Connection
from tenuto.store.service_notifications import notify_services
from tenuto.store.work import workers
from tenuto.store.work.workers import QueueRecord, WorkerRecord


class QueueOperations(OperationGroup):
    """The methods of an app that handle queues and workers."""

    async def workers(self, *, ended: bool = False) -> Sequence[WorkerRecord]:
        """List the live workers, optionally with those that have ended."""
        return await workers.list_workers(await self._open(), ended=ended)

    async def queues(self) -> Sequence[QueueRecord]:
        """List all queues with limit, pause and task counts."""
        return await workers.list_queues(await self._open())

    async def limit_queue(self, name: str, max_running: int | None) -> None:
        """Limit how many tasks of a queue run at the same time over all workers; None removes the limit."""
        if max_running is not None and not (isinstance(max_running, int) and 1 <= max_running <= MAX_QUEUE_LIMIT):
            raise Invalid(
                f"max_running must be from 1 to {MAX_QUEUE_LIMIT:,}, not {quoted(max_running, 40)}",
                code="queue.max_running.out_of_range",
                field="max_running",
                remedy="pause the queue to stop it",
            )
        _check_queue_name(name)
        operation = await self._begin("queue.limit", target=name, after={"max_running": max_running})
        await _change_queue(operation, name, lambda connection: workers.limit_queue(connection, name, max_running))

    async def limit_queue_rate(self, name: str, rate_limit: str | None) -> None:
        """Limit how many tasks of a queue start per second, minute or hour over all workers, such as ``100/m`` or
        ``5/s burst 20``; None removes the limit."""
        rate = parse_rate_limit(rate_limit)
        text = None if rate is None else str(rate)
        _check_queue_name(name)
        operation = await self._begin("queue.limit", target=name, after={"rate_limit": text})
        await _change_queue(operation, name, lambda connection: workers.limit_queue_rate(connection, name, text))

    async def pause_queue(self, name: str, reason: str | None = None) -> None:
        """Pause a queue: workers claim no more of its tasks; running tasks continue."""
        if reason is not None:
            validation.check_text(reason, field="reason", limit=1000)
        _check_queue_name(name)
        operation = await self._begin("queue.pause", target=name, reason=reason)
        by = operation.actor.name
        await _change_queue(
            operation, name, lambda connection: workers.pause_queue(connection, name, by=by, reason=reason)
        )

    async def resume_queue(self, name: str) -> None:
        """Resume a paused queue."""
        _check_queue_name(name)
        operation = await self._begin("queue.resume", target=name)
        await _change_queue(operation, name, lambda connection: workers.resume_queue(connection, name))

    async def drain_worker(self, name: str, reason: str | None = None) -> None:
        """Drain a worker: it claims no more tasks until it is resumed or started again; running tasks continue."""
        if reason is not None:
            validation.check_text(reason, field="reason", limit=1000)
        operation = await self._begin("worker.drain", target=name, reason=reason)
        by = operation.actor.name
        await _change_worker(
            operation, name, lambda connection: workers.drain_worker(connection, name, by=by, reason=reason)
        )

    async def resume_worker(self, name: str) -> None:
        """Let a drained worker claim tasks again."""
        operation = await self._begin("worker.resume", target=name)
        await _change_worker(operation, name, lambda connection: workers.resume_worker(connection, name))


async def _change_worker(operation: Operation, name: str, change: Callable[[Connection], Awaitable[bool]]) -> None:
    async def change_worker(connection: Connection) -> None:
        if await change(connection):
            return
        if not await workers.has_live_worker(connection, name):
            raise NotFound(
                f"there is no live worker named {quoted(name, 60)}",
                code="worker.not_found",
                remedy="list them with `tenuto worker list`",
            )
        operation.entry.mark_unchanged()

    await operation.database.transaction(change_worker)


async def _change_queue(operation: Operation, name: str, change: Callable[[Connection], Awaitable[bool]]) -> None:
    async def change_queue(connection: Connection) -> None:
        if not await change(connection):
            operation.entry.mark_unchanged()

    await operation.database.transaction(change_queue)
    await notify_services(operation.database, ["limits", f"queued {name}"])


def _check_queue_name(name: str) -> None:
    validation.check_name(name, field="queue", limit=64)
