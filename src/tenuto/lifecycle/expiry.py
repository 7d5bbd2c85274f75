"""End tasks that have not started before they expired. A running task is not affected: that is the timeout."""

from __future__ import annotations

from datetime import datetime

from tenuto.lifecycle.completion import finish
from tenuto.logs import Log
from tenuto.model.work.tasks import Settlement, expired_outcome
from tenuto.postgres.database import Database
from tenuto.store.work import tasks as store

EXPIRY_BATCH_SIZE = 500

log = Log("tenuto.expiry")


async def expire_tasks(database: Database, now: datetime) -> int:
    """End up to `EXPIRY_BATCH_SIZE` expired tasks; return their number.

    Several workers may do so at the same time: a task that was claimed, cancelled or ended meanwhile is left alone.
    """
    tasks = await store.list_expired_tasks(database, now, EXPIRY_BATCH_SIZE)
    if not tasks:
        return 0
    ended = await finish(database, [Settlement(task, expired_outcome(task, now)) for task in tasks])
    if ended:
        log.info("tasks expired", tasks=len(ended))
    return len(tasks)
