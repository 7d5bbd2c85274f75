"""Activity rollups: every ended attempt is counted once, by several schedulers, late commits included."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from tenuto.ids import new_id
from tenuto.maintenance import activity_rollups
from tenuto.maintenance.activity_rollups import ActivityRollups, add_ended_activities
from tenuto.model.work.rollups import HISTOGRAM_BOUNDS, Dimension, add_histograms
from tenuto.postgres.database import Database
from tenuto.store.work import rollups
from tests.support.model_values import NOON
from tests.support.repetition_counts import times

INSERT = """
INSERT INTO tenuto.activities (id, task_id, attempt, status, final, kind, name, queue, priority, created_at, run_at,
    claimed_at, started_at, ended_at, fence, failures, losses, input, initiator_type, initiator_name)
VALUES ($1, $1, 1, $2, true, 'job', $3, $4, 0, $5, $5, $5, $6, $7, 1, 0, 0, '{}', 'system', 'test')
"""
NOW = NOON + timedelta(minutes=5)
HOUR = timedelta(hours=1)


async def write_activity(
    connection: Any,
    ended_at: datetime = NOON,
    state: str = "completed",
    name: str = "bake",
    queue: str = "default",
    *,
    waited: float = 2.0,
    ran: float | None = 1.0,
) -> None:
    started_at = None if ran is None else ended_at - timedelta(seconds=ran)
    run_at = (started_at or ended_at) - timedelta(seconds=waited)
    await connection.execute(INSERT, new_id(), state, name, queue, run_at, started_at, ended_at)


async def count_attempts(db: Database, seconds: int = 3600, dimension: Dimension = Dimension.ALL) -> dict[str, int]:
    found = await rollups.list_rollups(db, seconds, dimension, NOON - 24 * HOUR, NOON + 24 * HOUR)
    totals: dict[str, int] = {}
    for each in found:
        totals[each.label] = totals.get(each.label, 0) + each.counts().total
    return totals


async def test_rollups_count_outcomes_by_bucket_size_and_dimension(db: Database) -> None:
    async with db.connection() as connection:
        await write_activity(connection, NOON, "completed", "bake", "oven")
        await write_activity(connection, NOON + timedelta(seconds=25), "failed", "bake", "oven")
        await write_activity(connection, NOON + timedelta(seconds=70), "cancelled", "wash", "sink", ran=None)
    assert await add_ended_activities(db, NOW) == 3
    assert await count_attempts(db) == {"": 3}
    assert await count_attempts(db, 60, Dimension.QUEUE) == {"oven": 2, "sink": 1}
    assert await count_attempts(db, 10, Dimension.NAME) == {"bake": 2, "wash": 1}
    minutes = await rollups.list_rollups(db, 60, Dimension.ALL, NOON, NOON + HOUR)
    assert [(each.bucket_at, each.completed, each.failed, each.cancelled) for each in minutes] == [
        (NOON, 1, 1, 0),
        (NOON + timedelta(minutes=1), 0, 0, 1),
    ]
    assert (sum(minutes[0].wait_bins), sum(minutes[0].run_bins)) == (2, 2)
    assert (list(minutes[1].wait_bins), list(minutes[1].run_bins)) == ([], []), "it never started"


async def test_rollups_count_an_activity_once(db: Database) -> None:
    async with db.connection() as connection:
        await write_activity(connection)
    assert [await add_ended_activities(db, NOW) for _ in range(3)] == [1, 0, 0]
    assert await count_attempts(db) == {"": 1}


async def test_rollups_count_an_activity_that_is_committed_late(db: Database) -> None:
    async with db.connection() as slow, db.connection() as quick:
        transaction = slow.transaction()
        await transaction.start()
        await write_activity(slow, NOON)
        await write_activity(quick, NOON + timedelta(seconds=1))
        assert await add_ended_activities(db, NOW) == 1, "an open transaction must not delay the others"
        await write_activity(quick, NOON + timedelta(seconds=2))
        assert await add_ended_activities(db, NOW) == 1
        await transaction.commit()
    assert [await add_ended_activities(db, NOW), await add_ended_activities(db, NOW)] == [1, 0]
    assert await count_attempts(db, 10) == {"": 3}


async def test_activity_committed_while_others_are_counted_is_left_for_the_next_cycle(db: Database) -> None:
    async with db.connection() as slow, db.connection() as scheduler:
        transaction = slow.transaction()
        await transaction.start()
        await write_activity(slow)
        await write_activity(scheduler)
        async with scheduler.transaction():
            progress = await rollups.lock_progress(scheduler)
            assert progress is not None
            await transaction.commit()
            assert sum(each.count for each in await rollups.count_new_activities(scheduler, progress)) == 1
            await rollups.store_progress(scheduler, progress, progress.since)
    assert [await add_ended_activities(db, NOW), await add_ended_activities(db, NOW)] == [1, 0]


async def test_rollups_of_concurrent_schedulers_are_exact(db: Database) -> None:
    written = 0

    async def write(number: int) -> None:
        nonlocal written
        for turn in range(times(15, in_a_proof=100)):
            async with db.connection() as connection, connection.transaction():
                await write_activity(connection, NOON + timedelta(seconds=turn), name=f"job-{number}")
                await asyncio.sleep(0.001 * (number + turn) % 0.01)
            written += 1

    async def aggregate() -> None:
        for _ in range(times(15, in_a_proof=100)):
            await add_ended_activities(db, NOW)
            await asyncio.sleep(0.002)

    await asyncio.gather(*(write(number) for number in range(4)), *(aggregate() for _ in range(3)))
    await add_ended_activities(db, NOW)
    for seconds in (10, 60, 3600):
        assert await count_attempts(db, seconds) == {"": written}
    by_name = await count_attempts(db, 60, Dimension.NAME)
    assert sum(by_name.values()) == written
    assert len(by_name) == 4


async def test_backlog_is_added_in_steps_of_some_transactions(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await add_ended_activities(db, NOW)
    monkeypatch.setattr(activity_rollups, "MAX_TRANSACTIONS_PER_STEP", 3)
    async with db.connection() as slow, db.connection() as quick:
        transaction = slow.transaction()
        await transaction.start()
        await write_activity(slow)
        for _ in range(20):
            await write_activity(quick)
        steps = [await activity_rollups.add_next_activities(db, NOW) for _ in range(30)]
        assert sum(step.added_count for step in steps) == 20
        assert max(step.added_count for step in steps) <= 3
        assert steps[0].has_more
        assert await add_ended_activities(db, NOW) == 0
        await transaction.commit()
    assert await add_ended_activities(db, NOW) == 1
    assert await count_attempts(db) == {"": 21}


async def test_second_scheduler_leaves_the_counting_to_the_first(db: Database) -> None:
    async with db.connection() as first, first.transaction():
        assert await rollups.lock_progress(first) is not None
        await write_activity(first)
    async with db.connection() as first, first.transaction():
        assert await rollups.lock_progress(first) is not None
        assert await add_ended_activities(db, NOW) == 0
    assert await add_ended_activities(db, NOW) == 1


async def test_rollups_restart_after_a_restore_with_smaller_transaction_ids(db: Database) -> None:
    async with db.connection() as connection:
        await write_activity(connection, NOON)
        await add_ended_activities(db, NOW)
        await connection.execute(
            "UPDATE tenuto.rollup_progress SET next_transaction_id = next_transaction_id + 1000000"
        )
        await write_activity(connection, NOON)
        assert await add_ended_activities(db, NOW) == 0
        await write_activity(connection, NOW)
    assert await add_ended_activities(db, NOW) == 1, "counting goes on"


async def test_small_buckets_are_deleted_after_their_retention(db: Database) -> None:
    now = db.clock.now()
    ages = [timedelta(minutes=1), timedelta(hours=3), timedelta(days=3)]
    async with db.connection() as connection:
        for age in ages:
            await write_activity(connection, now - age)
    await add_ended_activities(db, now - timedelta(days=3))
    await ActivityRollups(db).run_cycle()
    span = (now - timedelta(days=9), now + timedelta(days=1))
    counts = {size: len(await rollups.list_rollups(db, size, Dimension.ALL, *span)) for size in (10, 60, 3600)}
    assert counts == {10: 1, 60: 2, 3600: 3}
    assert await rollups.delete_old_hours(db, now - timedelta(days=1), 100) == 3, "all, queue and name"


async def test_late_activity_creates_no_bucket_that_is_past_its_retention(db: Database) -> None:
    async with db.connection() as connection:
        await write_activity(connection, NOON)
    await add_ended_activities(db, NOON + timedelta(days=3))
    assert [await count_attempts(db, seconds) for seconds in (10, 60, 3600)] == [{}, {}, {"": 1}]


@pytest.mark.parametrize(("first", "second"), [([], []), ([1, 2], [3]), ([], [0, 0, 5]), ([7], [])])
async def test_histograms_are_added_alike_in_python_and_in_the_database(
    db: Database, first: list[int], second: list[int]
) -> None:
    assert await db.fetch_value("SELECT tenuto.add_histograms($1, $2)", first, second) == add_histograms(first, second)


async def test_durations_are_counted_in_the_bins_of_their_bounds(db: Database) -> None:
    durations = [0.0005, 0.001, 1.0, 59.0, HISTOGRAM_BOUNDS[-1] * 2]
    async with db.connection() as connection:
        for ran in durations:
            await write_activity(connection, NOON, ran=ran)
    await add_ended_activities(db, NOW)
    (found,) = await rollups.list_rollups(db, 3600, Dimension.ALL, NOON, NOON + HOUR)
    expected = [sum(bound <= ran for bound in HISTOGRAM_BOUNDS) for ran in durations]
    assert [number for number, count in enumerate(found.run_bins) if count] == expected
