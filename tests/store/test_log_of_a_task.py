"""How many records of the write-ahead log a plain task writes in its life.

A further index that the hot path maintains is one more record for every task, of 70 to 100 bytes of about 1,700. The
counts say which indexes a plain task enters; docs/performance.md says what each is for.
"""

from __future__ import annotations

import pytest

from tenuto.model.work.tasks import Settlement
from tenuto.postgres.database import Database
from tenuto.store.work import task_outcomes
from tenuto.store.work import tasks as store
from tenuto.store.work.task_creation import enqueue_bulk
from tests.support.model_values import make_new_task
from tests.support.tasks import LEASE, Register, completed_outcome

TASK_COUNT = 1000


class LogRecords:
    """Records of the write-ahead log by the only connection in use."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last_pid, self._last_count = 0, 0

    async def written(self) -> float:
        """Return how many records for each task were written since the last call."""
        await self._database.fetch_all("SELECT pg_stat_force_next_flush()")
        row = await self._database.fetch_one(
            "SELECT pg_backend_pid() AS pid, (pg_stat_get_backend_wal(pg_backend_pid())).wal_records AS record_count"
        )
        assert row is not None
        pid, last_count = row["pid"], self._last_count
        assert self._last_pid in (0, pid), "another connection was used"
        self._last_pid, self._last_count = pid, int(row["record_count"])
        return (self._last_count - last_count) / TASK_COUNT


async def test_plain_task_writes_few_log_records(db: Database, register_worker: Register) -> None:
    worker, records = await register_worker(), LogRecords(db)
    await records.written()
    await enqueue_bulk(db, make_new_task(), ["{}"] * TASK_COUNT)
    enqueueing = await records.written()
    tasks = await store.claim_tasks(db, worker, ["default"], TASK_COUNT, LEASE, store.ClaimCursor())
    assert len(tasks) == TASK_COUNT
    claiming = await records.written()
    outcome = completed_outcome()  # one instant: later ones may extend the range of pages of activities_by_end
    await task_outcomes.end_tasks_directly(db, [Settlement(task, outcome) for task in tasks])
    finishing = await records.written()
    # The rows of a page are one record. Indexes: tasks_pkey, tasks_to_take, tasks_by_name.
    assert enqueueing == pytest.approx(3.1, abs=0.4)
    # Lock, row, and the indexes tasks_pkey and tasks_held.
    assert claiming == pytest.approx(4.1, abs=0.4)
    # Deletion, row, and the indexes activities_pkey and activities_by_name.
    assert finishing == pytest.approx(4.1, abs=0.4)
