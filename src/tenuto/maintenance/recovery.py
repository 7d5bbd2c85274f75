"""The nets beneath the workers: tasks whose worker died are taken back, through the same door as any other end.

A lease that has run out, or a holder known to be dead, makes an attempt lost; what that means for the task `settle`
decides. A task somebody had asked to stop ends as cancelled instead, and one whose holder let it go because it ran far
beyond its time limit as timed out. What is found is counted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from itertools import groupby
from uuid import UUID

from tenuto.errors import Invalid, StoreError, Unavailable
from tenuto.ids import new_id
from tenuto.lifecycle.completion import finish, finish_within
from tenuto.logs import Log
from tenuto.model.tasks import Settlement, Task, cancelled, lost, settle, timed_out
from tenuto.postgres.database import Connection, Database
from tenuto.store import tasks as store
from tenuto.store import workers

BATCH = 500
NET_EXPIRED = "lease_expired"
NET_RESTARTED = "worker_restarted"
NET_STUCK = "not_settled"
NET_TIME_LIMIT = "time_limit_not_kept"

Find = Callable[[Connection, int, Sequence[UUID]], Awaitable[list[Task]]]
"""Tasks that have slipped: so many, but not these; locked until the transaction ends."""

log = Log("tenuto.sweeper")


async def sweep(database: Database, now: datetime) -> int:
    """Take back whatever its holder has let slip; how many tasks."""
    if not await store.anything_slipped(database):
        return 0
    total = await _take_back(database, now, NET_EXPIRED, store.expired)
    for holder in await workers.ended_holders(database):
        total += await recover(database, holder, now)
    if total:
        log.warning("tasks taken back from dead workers", tasks=total)
    return total


async def recover(database: Database, worker_id: UUID, now: datetime) -> int:
    """Take back everything a dead worker held, without waiting for its leases."""

    async def held(connection: Connection, limit: int, without: Sequence[UUID]) -> list[Task]:
        return await store.held_by(connection, worker_id, limit, without)

    return await _take_back(database, now, NET_RESTARTED, held)


async def _take_back(database: Database, now: datetime, net: str, find: Find) -> int:
    """Batch after batch, until nothing is found; what cannot be settled is passed over and holds up nobody else."""
    total = 0
    stuck: list[UUID] = []

    async def take_batch(connection: Connection) -> tuple[int, int]:
        found = await find(connection, BATCH, stuck)
        return len(found), await _settle_lost(connection, found, now, net)

    while True:
        try:
            found, taken = await database.transaction(take_batch)
        except (StoreError, Invalid) as error:
            if isinstance(error, Unavailable):
                raise
            found, taken = await _take_back_one_by_one(database, now, net, find, stuck)
        total += taken
        if found < BATCH:
            break
    if stuck:
        await _count(database, NET_STUCK, len(stuck))
    return total


async def _take_back_one_by_one(
    database: Database, now: datetime, net: str, find: Find, stuck: list[UUID]
) -> tuple[int, int]:
    """A batch in which something cannot be settled. Nothing is locked meanwhile: fences let each be settled once."""
    tasks = await database.transaction(lambda connection: find(connection, BATCH, stuck))
    taken = 0
    for task in tasks:
        try:
            taken += len(await finish(database, [_lost(task, now)]))
        except (StoreError, Invalid) as error:
            if isinstance(error, Unavailable):
                raise
            stuck.append(task.id)
            log.error("a lost task cannot be settled", task=str(task.id), job=task.name, error=str(error))
    if taken:
        await _count(database, net, taken)
    return len(tasks), taken


async def _count(database: Database, net: str, tasks: int) -> None:
    await database.transaction(lambda connection: workers.count_repair(connection, net, tasks))


async def _settle_lost(connection: Connection, tasks: list[Task], now: datetime, net: str) -> int:
    if not tasks:
        return 0
    by_holder = groupby(sorted(tasks, key=lambda task: str(task.worker_id)), key=lambda task: task.worker_id)
    for _, held in by_holder:
        await finish_within(connection, [_lost(task, now) for task in held])
    over = sum(task.ran_over for task in tasks)
    for name, count in ((net, len(tasks) - over), (NET_TIME_LIMIT, over)):
        if count:
            await workers.count_repair(connection, name, count)
    return len(tasks)


def _lost(task: Task, now: datetime) -> Settlement:
    if (by := task.cancelled_by) is not None:
        return Settlement(task, cancelled(task, now, by))
    outcome = timed_out(task, now) if task.ran_over else lost(task, now)
    return settle(task, outcome, now, new_id)
