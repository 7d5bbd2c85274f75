"""Recovery sweep: settle the tasks of dead workers.

An attempt is lost when its lease has expired or its worker is known to be dead; `settle` decides what follows. A task
whose cancellation was requested ends as cancelled, a task that overran its time limit as timed out. Repairs are
counted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from itertools import groupby
from uuid import UUID

from tenuto.errors import Invalid, StoreError, Unavailable
from tenuto.ids import new_id
from tenuto.lifecycle.completion import finish, finish_in_transaction
from tenuto.logs import Log
from tenuto.model.work.tasks import Settlement, Task, cancelled_outcome, lost_outcome, settle, timed_out_outcome
from tenuto.postgres.database import Connection, Database
from tenuto.store.work import tasks as store
from tenuto.store.work import workers

BATCH_SIZE = 500
REPAIR_LEASE_EXPIRED = "lease_expired"
REPAIR_WORKER_RESTARTED = "worker_restarted"
REPAIR_NOT_SETTLED = "not_settled"
REPAIR_TIME_LIMIT_EXCEEDED = "time_limit_not_kept"

LockLostTasks = Callable[[Connection, int, Sequence[UUID]], Awaitable[list[Task]]]
"""Locks and returns up to so many lost tasks, except the given ones."""

log = Log("tenuto.sweeper")


async def recover_lost_tasks(database: Database, now: datetime, *, batch_size: int = BATCH_SIZE) -> int:
    """Settle all lost tasks; return their number."""
    if not await store.has_recoverable_tasks(database):
        return 0
    count = await _recover(database, now, REPAIR_LEASE_EXPIRED, store.lock_expired_tasks, batch_size)
    for worker_id in await workers.find_ended_holders(database):
        count += await recover_tasks_of_worker(database, worker_id, now)
    if count:
        log.warning("lost tasks recovered", tasks=count)
    return count


async def recover_tasks_of_worker(database: Database, worker_id: UUID, now: datetime) -> int:
    """Settle all tasks of a dead worker without waiting for their leases; return their number."""

    async def lock_tasks(connection: Connection, limit: int, excluded_ids: Sequence[UUID]) -> list[Task]:
        return await store.lock_tasks_of_worker(connection, worker_id, limit, excluded_ids)

    return await _recover(database, now, REPAIR_WORKER_RESTARTED, lock_tasks, BATCH_SIZE)


async def _recover(
    database: Database, now: datetime, repair: str, lock_lost_tasks: LockLostTasks, batch_size: int
) -> int:
    """Settle lost tasks in batches. Tasks that cannot be settled are skipped and do not block others."""
    total = 0
    skipped_ids: list[UUID] = []

    async def recover_batch(connection: Connection) -> tuple[int, int]:
        tasks = await lock_lost_tasks(connection, batch_size, skipped_ids)
        return len(tasks), await _settle_lost_tasks(connection, tasks, now, repair)

    while True:
        try:
            found, recovered = await database.transaction(recover_batch)
        except (StoreError, Invalid) as error:
            if isinstance(error, Unavailable):
                raise
            tasks = await database.transaction(lambda connection: lock_lost_tasks(connection, batch_size, skipped_ids))
            found, recovered = len(tasks), await _recover_one_by_one(database, now, repair, tasks, skipped_ids)
        total += recovered
        if found < batch_size:
            break
    if skipped_ids:
        await _count_repairs(database, REPAIR_NOT_SETTLED, len(skipped_ids))
    return total


async def _recover_one_by_one(
    database: Database, now: datetime, repair: str, tasks: Sequence[Task], skipped_ids: list[UUID]
) -> int:
    """Settle the tasks of a failed batch. They are not locked; their fences prevent a second settlement."""
    recovered = 0
    for task in tasks:
        try:
            recovered += len(await finish(database, [_settlement_of_lost(task, now)]))
        except (StoreError, Invalid) as error:
            if isinstance(error, Unavailable):
                raise
            skipped_ids.append(task.id)
            log.error("lost task not settled", task_id=str(task.id), job=task.name, error=str(error))
    if recovered:
        await _count_repairs(database, repair, recovered)
    return recovered


async def _settle_lost_tasks(connection: Connection, tasks: list[Task], now: datetime, repair: str) -> int:
    if not tasks:
        return 0
    by_worker = groupby(sorted(tasks, key=lambda task: str(task.worker_id)), key=lambda task: task.worker_id)
    for _, group in by_worker:
        await finish_in_transaction(connection, [_settlement_of_lost(task, now) for task in group])
    overrun_count = sum(task.overran_time_limit for task in tasks)
    for name, count in ((repair, len(tasks) - overrun_count), (REPAIR_TIME_LIMIT_EXCEEDED, overrun_count)):
        if count:
            await workers.count_repair(connection, name, count)
    return len(tasks)


async def _count_repairs(database: Database, repair: str, count: int) -> None:
    await database.transaction(lambda connection: workers.count_repair(connection, repair, count))


def _settlement_of_lost(task: Task, now: datetime) -> Settlement:
    if (by := task.cancelled_by) is not None:  # guard: recovery.cancelled_task
        return Settlement(task, cancelled_outcome(task, now, by))
    outcome = timed_out_outcome(task, now) if task.overran_time_limit else lost_outcome(task, now)
    return settle(task, outcome, now, new_id)
