"""The nets beneath the workers: tasks whose worker died are taken back, through the same door as any other end.

A lease that has run out, or a holder known to be dead, makes an attempt lost; what that means for the task `settle`
decides. A task somebody had asked to stop ends as cancelled instead. What is found is counted.
"""

from __future__ import annotations

from datetime import datetime
from itertools import groupby
from uuid import UUID

from tenuto.ids import new_id
from tenuto.logs import Log
from tenuto.model.tasks import Settlement, Task, cancelled, lost, settle
from tenuto.store import tasks as store
from tenuto.store import workers
from tenuto.store.database import Connection, Database
from tenuto.store.finishing import finish_within

BATCH = 500
NET_EXPIRED = "lease_expired"
NET_RESTARTED = "worker_restarted"

log = Log("tenuto.sweeper")


async def sweep(database: Database, now: datetime) -> int:
    """Take back whatever its holder has let slip; how many tasks."""
    if not await store.anything_slipped(database):
        return 0
    total = 0
    while True:
        found = await database.transaction(lambda connection: _take_back_expired(connection, now))
        total += found
        if found < BATCH:
            break
    for holder in await workers.ended_holders(database):
        total += await recover(database, holder, now)
    if total:
        log.warning("tasks taken back from dead workers", tasks=total)
    return total


async def recover(database: Database, worker_id: UUID, now: datetime) -> int:
    """Take back everything a dead worker held, without waiting for its leases."""
    total = 0
    while True:
        found = await database.transaction(lambda connection: _take_back_from(connection, worker_id, now))
        total += found
        if found < BATCH:
            return total


async def _take_back_expired(connection: Connection, now: datetime) -> int:
    return await _settle_lost(connection, await store.expired(connection, BATCH), now, NET_EXPIRED)


async def _take_back_from(connection: Connection, worker_id: UUID, now: datetime) -> int:
    return await _settle_lost(connection, await store.held_by(connection, worker_id, BATCH), now, NET_RESTARTED)


async def _settle_lost(connection: Connection, tasks: list[Task], now: datetime, net: str) -> int:
    if not tasks:
        return 0
    by_holder = groupby(sorted(tasks, key=lambda task: str(task.worker_id)), key=lambda task: task.worker_id)
    for _, held in by_holder:
        await finish_within(connection, [_lost(task, now) for task in held])
    await workers.count_repair(connection, net, len(tasks))
    return len(tasks)


def _lost(task: Task, now: datetime) -> Settlement:
    if (by := task.cancelled_by) is not None:
        return Settlement(task, cancelled(task, now, by))
    return settle(task, lost(task, now), now, new_id)
