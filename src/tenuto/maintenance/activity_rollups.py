"""Add ended attempts to the time buckets that charts are drawn from.

Any number of schedulers may do this. Each activity is added once, also if its transaction is committed late: the row of
the progress is locked, and stores the transactions whose activities have been added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from tenuto.logs import Log
from tenuto.model.work.rollups import (
    BUCKET_RETENTION,
    BUCKET_SECONDS,
    Dimension,
    RollupCounts,
    floor_to_bucket,
)
from tenuto.postgres.database import Connection, Database
from tenuto.service.polling_loop import PollingLoop
from tenuto.store.work import rollups
from tenuto.store.work.rollups import EndedAttemptCount, RollupKey, RollupProgress

INTERVAL_SECONDS = 10.0
MAX_TRANSACTIONS_PER_STEP = 20_000
_MAX_STEPS_PER_CYCLE = 500
_DELETED_ROWS = 2000

P = TypeVar("P", bound=RollupProgress)

log = Log("tenuto.activity_rollups")


class ActivityRollups:
    """Adds ended attempts every ten seconds. ``loop`` runs in the background."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.loop = PollingLoop("tenuto-activity-rollups", self.run_cycle, log)

    async def run_cycle(self) -> float:
        """Run one cycle; return the seconds until the next one."""
        now = self._database.clock.now()
        for _ in range(_MAX_STEPS_PER_CYCLE):
            if not (await add_next_activities(self._database, now)).has_more:
                break
        else:
            return 0.1  # a backlog, after a time without schedulers
        for seconds, retention in BUCKET_RETENTION.items():
            await rollups.expire_rollups(self._database, seconds, now - retention, _DELETED_ROWS)
        return INTERVAL_SECONDS


@dataclass(frozen=True, slots=True)
class RollupStep:
    """Result of one step."""

    added_count: int
    has_more: bool
    """Further transactions had ended before the step began."""


async def add_ended_activities(database: Database, now: datetime) -> int:
    """Add the activities of all transactions that have ended; return their number."""
    added_count, has_more = 0, True
    while has_more:
        step = await add_next_activities(database, now)
        added_count, has_more = added_count + step.added_count, step.has_more
    return added_count


async def add_next_activities(database: Database, now: datetime) -> RollupStep:
    """Add the activities of the next transactions that have ended."""

    async def add(connection: Connection) -> RollupStep:
        found = await rollups.lock_progress(connection)
        if found is None:
            return RollupStep(0, has_more=False)  # another scheduler is adding them
        if found.new_next_transaction_id < found.next_transaction_id:
            # Transaction ids started again: the database was restored from a dump, with the ids of the old server.
            await rollups.store_progress(connection, found, now)
            log.warning("activity rollups restarted after a restore", since=now.isoformat())
            return RollupStep(0, has_more=False)
        progress = limit_transactions(found)
        ended = await rollups.count_new_activities(connection, progress)
        await rollups.add_rollups(connection, sum_buckets(ended, now).items())
        await rollups.store_progress(connection, progress, progress.since)
        has_more = progress.new_next_transaction_id < found.new_next_transaction_id
        return RollupStep(sum(each.count for each in ended), has_more)

    return await database.transaction(add)


def limit_transactions(progress: P) -> P:
    """Limit the progress of one step to a number of transactions. After a time without schedulers, the backlog is
    then added in several short steps."""
    end = min(progress.new_next_transaction_id, progress.next_transaction_id + MAX_TRANSACTIONS_PER_STEP)
    in_progress = [id for id in progress.new_in_progress if id < end]
    return replace(progress, new_next_transaction_id=end, new_in_progress=in_progress)


def sum_buckets(ended: Sequence[EndedAttemptCount], now: datetime) -> dict[RollupKey, RollupCounts]:
    """Sum counts by bucket size and dimension; buckets that are past their retention are left out."""
    sums: dict[RollupKey, RollupCounts] = {}
    oldest = {seconds: now - BUCKET_RETENTION.get(seconds, timedelta(days=36_500)) for seconds in BUCKET_SECONDS}
    for each in ended:
        for seconds in BUCKET_SECONDS:
            bucket_at = floor_to_bucket(each.bucket_at, seconds)
            if bucket_at < oldest[seconds]:
                continue
            for dimension, label in ((Dimension.ALL, ""), (Dimension.QUEUE, each.queue), (Dimension.NAME, each.name)):
                counts = sums.setdefault(RollupKey(seconds, dimension, label, bucket_at), RollupCounts())
                counts.count(each.state, each.wait_bin, each.run_bin, each.count)
    return sums
