"""Partitions of activities (W8, J2): created ahead of time, dropped when old, open tasks never touched."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from tenuto.ids import new_id, smallest_id_at
from tenuto.lifecycle.completion import finish
from tenuto.model.partition_ranges import PartitionPeriod
from tenuto.model.work.tasks import Settlement
from tenuto.postgres.database import Database
from tenuto.store import partitions
from tenuto.store.work import task_creation
from tenuto.store.work.activities import SQL
from tests.support.model_values import make_new_task
from tests.support.tasks import Register, claim, completed_outcome, create_task, read_rows
from tests.support.waiting import eventually

RECORD = """
INSERT INTO tenuto.activities (id, task_id, attempt, status, final, kind, name, queue, priority, created_at, run_at,
                               ended_at, fence, failures, losses, input, initiator_type, initiator_name)
VALUES ($1, $1, 1, 'completed', true, 'job', 'bake', 'default', 0, $2, $2, $3, 1, 0, 0, '{}', 'system', 'test')
"""
JUNE = datetime(2027, 6, 15, tzinfo=UTC)


def id_at(instant: datetime) -> UUID:
    return UUID(int=smallest_id_at(instant).int + 1)


async def insert_activity(db: Database, created: datetime, ended: datetime | None = None) -> UUID:
    await db.fetch_all(RECORD, id_at(created), created, ended or created)
    return id_at(created)


async def partition_of(db: Database, id: UUID) -> str:
    return str(
        await db.fetch_value(
            "SELECT relname FROM tenuto.activities JOIN pg_class ON pg_class.oid = activities.tableoid WHERE id = $1",
            id,
        )
    )


async def list_partitions(db: Database) -> list[str]:
    return [row["name"] for row in await db.fetch_all(SQL.list_partitions)]


async def test_partitions_are_created_three_months_ahead(db: Database) -> None:
    made = await partitions.ensure_partitions(db, JUNE)
    assert made == ["activities_2027_06", "activities_2027_07", "activities_2027_08", "activities_2027_09"]
    assert await partitions.ensure_partitions(db, JUNE) == []
    assert await partitions.find_missing_partitions(db, JUNE, ahead=3) == []
    assert await partitions.find_missing_partitions(db, JUNE, ahead=4) == ["activities_2027_10"]


async def test_partitions_are_created_across_the_year_end(db: Database) -> None:
    made = await partitions.ensure_partitions(db, datetime(2027, 11, 30, 23, 59, tzinfo=UTC))
    assert made == ["activities_2027_11", "activities_2027_12", "activities_2028_01", "activities_2028_02"]


async def test_concurrent_processes_create_each_partition_once(db: Database) -> None:
    made = await asyncio.gather(*(partitions.ensure_partitions(db, JUNE) for _ in range(5)))
    assert len([name for names in made for name in names if name == "activities_2027_06"]) >= 1
    assert len(await list_partitions(db)) == len(set(await list_partitions(db)))


async def test_activity_is_stored_in_the_month_of_its_task(db: Database) -> None:
    await partitions.ensure_partitions(db, JUNE)
    for instant, month in [
        (datetime(2027, 6, 1, tzinfo=UTC), "activities_2027_06"),
        (datetime(2027, 6, 30, 23, 59, 59, 999000, tzinfo=UTC), "activities_2027_06"),
        (datetime(2027, 7, 1, tzinfo=UTC), "activities_2027_07"),
    ]:
        assert await partition_of(db, await insert_activity(db, instant)) == month


async def test_activity_older_than_all_partitions_goes_to_the_default_partition(
    db: Database, register_worker: Register
) -> None:
    old = id_at(datetime(2020, 1, 1, tzinfo=UTC))
    await task_creation.enqueue_tasks(db, [make_new_task(id=old)])
    (task,) = await claim(db, await register_worker())
    assert await finish(db, [Settlement(task, completed_outcome())]) == {old}
    assert await partition_of(db, old) == "activities_old"


async def test_partition_is_not_created_over_rows_in_the_default_partition(db: Database) -> None:
    lying_there = await insert_activity(db, JUNE)
    assert await partition_of(db, lying_there) == "activities_old"
    made = await partitions.ensure_partitions(db, JUNE)
    assert made == ["activities_2027_07", "activities_2027_08", "activities_2027_09"]
    assert await partition_of(db, lying_there) == "activities_old"
    assert await partition_of(db, await insert_activity(db, JUNE + timedelta(days=1))) == "activities_old"


async def test_partitions_before_the_cutoff_are_dropped(db: Database) -> None:
    await partitions.ensure_partitions(db, datetime(2020, 3, 1, tzinfo=UTC))
    gone = await insert_activity(db, datetime(2020, 3, 5, tzinfo=UTC))
    kept = await insert_activity(db, datetime(2020, 5, 5, tzinfo=UTC))
    dropped = await partitions.drop_old_partitions(db, datetime(2020, 5, 20, tzinfo=UTC))
    assert dropped == ["activities_2020_03", "activities_2020_04"]
    left = {row["id"] for row in await read_rows(db, "activities")}
    assert kept in left
    assert gone not in left
    assert {"activities_old", "activities_2020_05", "activities_2020_06"} <= set(await list_partitions(db))


async def test_old_partition_with_a_recent_activity_is_kept(db: Database) -> None:
    await partitions.ensure_partitions(db, datetime(2020, 3, 1, tzinfo=UTC))
    await insert_activity(db, datetime(2020, 3, 5, tzinfo=UTC), ended=datetime(2020, 9, 1, tzinfo=UTC))
    assert "activities_2020_03" not in await partitions.drop_old_partitions(db, datetime(2020, 8, 1, tzinfo=UTC))
    assert "activities_2020_03" in await partitions.drop_old_partitions(db, datetime(2020, 10, 1, tzinfo=UTC))


async def test_concurrent_processes_drop_each_partition_once(db: Database) -> None:
    for year in (2019, 2020, 2021):
        await partitions.ensure_partitions(db, datetime(year, 3, 1, tzinfo=UTC))
        dropped = await asyncio.gather(
            *(partitions.drop_old_partitions(db, datetime(year + 1, 1, 1, tzinfo=UTC)) for _ in range(4))
        )
        assert sorted(name for names in dropped for name in names) == [
            f"activities_{year}_{month:02}" for month in (3, 4, 5, 6)
        ]


async def test_activity_written_before_the_drop_keeps_its_partition(
    db: Database, url: str, register_worker: Register
) -> None:
    march = datetime(2020, 3, 5, tzinfo=UTC)
    await partitions.ensure_partitions(db, march)
    await task_creation.enqueue_tasks(db, [make_new_task(id=id_at(march))])
    (task,) = await claim(db, await register_worker())
    other = await asyncpg.connect(url)
    transaction = other.transaction()
    await transaction.start()
    await other.execute(SQL.lock_partitions)
    dropping = asyncio.create_task(partitions.drop_old_partitions(db, datetime(2020, 5, 1, tzinfo=UTC)))
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    await eventually(lambda: other.fetchval(waits))
    await finish(db, [Settlement(task, completed_outcome())])
    await transaction.commit()
    await other.close()
    assert "activities_2020_03" not in await dropping
    assert [row["id"] for row in await read_rows(db, "activities")] == [task.id]


async def test_open_task_does_not_keep_its_partition(db: Database) -> None:
    march = datetime(2020, 3, 5, tzinfo=UTC)
    await partitions.ensure_partitions(db, march)
    await task_creation.enqueue_tasks(db, [make_new_task(id=id_at(march), run_at=JUNE)])
    assert "activities_2020_03" in await partitions.drop_old_partitions(db, datetime(2020, 5, 1, tzinfo=UTC))


async def test_default_partition_is_cleaned_in_batches_by_end(db: Database) -> None:
    cutoff = datetime(2021, 1, 1, tzinfo=UTC)
    for day in range(5):
        await insert_activity(db, datetime(2019, 1, 1 + day, tzinfo=UTC))
    young = await insert_activity(db, datetime(2019, 2, 1, tzinfo=UTC), ended=datetime(2026, 1, 1, tzinfo=UTC))
    counts = [await partitions.delete_old_default_rows(db, cutoff, 2) for _ in range(4)]
    assert counts == [2, 2, 1, 0]
    assert [row["id"] for row in await read_rows(db, "activities")] == [young]


async def test_retention_never_deletes_open_tasks(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    await task_creation.enqueue_tasks(
        db, [make_new_task(id=id_at(datetime(2019, 1, 1 + day, tzinfo=UTC))) for day in range(3)]
    )
    await claim(db, worker, limit=1)
    await create_task(db, run_at=JUNE)
    before = await read_rows(db)
    far = datetime(2100, 1, 1, tzinfo=UTC)
    await partitions.drop_old_partitions(db, far)
    await partitions.delete_old_default_rows(db, far, 1000)
    assert await read_rows(db) == before


async def test_finished_task_is_recorded_without_any_partition(db: Database, register_worker: Register) -> None:
    await partitions.drop_old_partitions(db, datetime(2100, 1, 1, tzinfo=UTC))
    task_id = await create_task(db)
    (task,) = await claim(db, await register_worker())
    await finish(db, [Settlement(task, completed_outcome())])
    assert await partition_of(db, task_id) == "activities_old"


def test_id_contains_its_creation_time() -> None:
    assert (
        smallest_id_at(datetime.now(UTC) - timedelta(seconds=5))
        < new_id()
        < smallest_id_at(datetime.now(UTC) + timedelta(seconds=5))
    )


async def test_recent_activity_is_not_dropped_while_tasks_of_its_month_are_open(
    db: Database, url: str, register_worker: Register
) -> None:
    march = datetime(2020, 3, 5, tzinfo=UTC)
    await partitions.ensure_partitions(db, march)
    await task_creation.enqueue_tasks(db, [make_new_task(id=id_at(march))])
    (task,) = await claim(db, await register_worker())
    other = await asyncpg.connect(url)
    transaction = other.transaction()
    await transaction.start()
    await other.execute(SQL.lock_partitions)
    dropping = asyncio.create_task(partitions.drop_old_partitions(db, datetime(2020, 5, 1, tzinfo=UTC)))
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    await eventually(lambda: other.fetchval(waits))
    await finish(db, [Settlement(task, completed_outcome())])
    await task_creation.enqueue_tasks(
        db, [make_new_task(id=id_at(march + timedelta(days=1)))]
    )  # an old id that is stored only now
    await transaction.commit()
    await other.close()
    assert "activities_2020_03" not in await dropping
    assert [row["id"] for row in await read_rows(db, "activities")] == [task.id]


async def test_activity_written_during_the_check_keeps_its_partition(db: Database, url: str) -> None:
    march = datetime(2020, 3, 5, tzinfo=UTC)
    await partitions.ensure_partitions(db, march)
    other = await asyncpg.connect(url)
    transaction = other.transaction()
    await transaction.start()
    await other.execute(RECORD, id_at(march), march, JUNE)
    dropping = asyncio.create_task(partitions.drop_old_partitions(db, datetime(2020, 5, 1, tzinfo=UTC)))
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'relation' AND NOT granted"
    await eventually(lambda: other.fetchval(waits))
    await transaction.commit()
    await other.close()
    assert "activities_2020_03" not in await dropping
    assert await partition_of(db, id_at(march)) == "activities_2020_03"


async def test_task_whose_partition_was_dropped_is_recorded_in_the_default_partition(
    db: Database, register_worker: Register
) -> None:
    march = datetime(2020, 3, 5, tzinfo=UTC)
    await partitions.ensure_partitions(db, march)
    await task_creation.enqueue_tasks(db, [make_new_task(id=id_at(march))])
    (task,) = await claim(db, await register_worker())
    cutoff = datetime(2020, 5, 1, tzinfo=UTC)
    assert "activities_2020_03" in await partitions.drop_old_partitions(db, cutoff)
    assert await finish(db, [Settlement(task, completed_outcome())]) == {task.id}
    await partitions.drop_old_partitions(db, cutoff)
    assert await partitions.delete_old_default_rows(db, cutoff, 1000) == 0
    assert await partition_of(db, task.id) == "activities_old"


async def test_partition_age_check_uses_the_index(db: Database) -> None:
    await partitions.ensure_partitions(db, datetime(2020, 3, 1, tzinfo=UTC))
    await db.fetch_all(
        "INSERT INTO tenuto.activities_2020_03 (id, task_id, attempt, status, final, kind, name, queue, priority,"
        " created_at, run_at, ended_at, fence, failures, losses, input, initiator_type, initiator_name)"
        " SELECT id, id, 1, 'completed', true, 'job', 'bake', 'default', 0, at, at, at, 1, 0, 0, '{}', 'system', 'test'"
        " FROM (SELECT lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0')::text || lpad(to_hex(n), 20, '0')"
        "       AS hex, at, n FROM (SELECT timestamptz '2020-03-02Z' + n * interval '10 s' AS at, n"
        "                           FROM generate_series(1, 200000) AS n) AS spread) AS made,"
        " LATERAL (SELECT hex::uuid AS id) AS ids"
    )
    async with db.connection() as connection:
        await connection.execute("VACUUM tenuto.activities_2020_03")  # as autovacuum does long before
        pages = await connection.fetchval("SELECT pg_relation_size('tenuto.activities_2020_03') / 8192")
        look = partitions.HAS_YOUNGER_ROWS.format(name="activities_2020_03")
        text = await connection.fetchval(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {look}", datetime(2020, 5, 1, tzinfo=UTC)
        )
    (plan,) = json.loads(text)
    read = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
    assert read < pages / 20, f"{read} of {pages} pages"
    assert "activities_2020_03" in await partitions.drop_old_partitions(db, datetime(2020, 5, 1, tzinfo=UTC))


# --- partitions by day ------------------------------------------------------------------------------------------------


async def test_days_are_created_a_week_ahead(db: Database) -> None:
    made = await partitions.ensure_partitions(db, datetime(2027, 6, 28, tzinfo=UTC), PartitionPeriod.DAY)
    assert (made[0], made[-1], len(made)) == ("activities_2027_06_28", "activities_2027_07_05", 8)
    assert await partitions.ensure_partitions(db, datetime(2027, 6, 28, tzinfo=UTC)) == [], "the period remains"
    assert await partition_of(db, await insert_activity(db, datetime(2027, 6, 30, 23, 59, tzinfo=UTC))) == made[2]
    assert await partition_of(db, await insert_activity(db, datetime(2027, 7, 1, tzinfo=UTC))) == made[3]
    with pytest.raises(asyncpg.RestrictViolationError):
        async with db.connection() as connection:
            await connection.execute(f"TRUNCATE tenuto.{made[0]}")


async def test_period_of_a_live_database_changes_at_the_end_of_the_month_without_gap_and_overlap(db: Database) -> None:
    await partitions.ensure_partitions(db, JUNE)
    ahead = await insert_activity(db, datetime(2027, 8, 1, tzinfo=UTC))  # as with a clock that is fast
    kept = await insert_activity(db, JUNE)
    assert await partitions.ensure_partitions(db, JUNE, PartitionPeriod.DAY) == ["activities_2027_09_01"]
    names = await list_partitions(db)
    assert {"activities_2027_06", "activities_2027_08"} <= set(names)
    assert {"activities_2027_07", "activities_2027_09"}.isdisjoint(names), "empty months to come make room for days"
    assert await partition_of(db, kept) == "activities_2027_06"
    assert await partition_of(db, ahead) == "activities_2027_08"
    july = datetime(2027, 7, 1, tzinfo=UTC)
    assert (await partitions.ensure_partitions(db, july, PartitionPeriod.DAY))[0] == "activities_2027_07_01"
    assert await partition_of(db, await insert_activity(db, july)) == "activities_2027_07_01"
    late = datetime(2027, 7, 10, tzinfo=UTC)
    made = await partitions.ensure_partitions(db, late, PartitionPeriod.MONTH)
    assert made[-2:] == ["activities_2027_09", "activities_2027_10"]
    assert "activities_2027_07_31" in made, "the month that has begun is completed by days"
    assert await partitions.find_missing_partitions(db, late) == []


async def test_commands_without_the_setting_keep_the_period_of_the_services(db: Database) -> None:
    await partitions.ensure_partitions(db, JUNE)
    await partitions.ensure_partitions(db, JUNE, PartitionPeriod.DAY)
    assert await partitions.ensure_partitions(db, JUNE) == [], "the month goes on, and days follow it"
    made = await partitions.ensure_partitions(db, datetime(2027, 6, 25, tzinfo=UTC))
    assert made == ["activities_2027_07_02"]
    assert await partitions.find_partitions_of_other_period(db, JUNE, PartitionPeriod.DAY) == []


async def test_commands_without_the_setting_keep_days_that_have_ended(db: Database) -> None:
    await partitions.drop_old_partitions(db, datetime(2100, 1, 1, tzinfo=UTC))
    await partitions.ensure_partitions(db, JUNE, PartitionPeriod.DAY)
    made = await partitions.ensure_partitions(db, JUNE + timedelta(days=8))
    assert (made[0], made[-1]) == ("activities_2027_06_23", "activities_2027_06_30")


async def test_days_are_dropped_while_late_records_arrive_and_none_is_lost(
    db: Database, register_worker: Register
) -> None:
    """Tasks of a day end while its partition is dropped, and afterwards: each record is kept."""
    created = datetime(2020, 3, 3, tzinfo=UTC)
    for day in range(3):
        await partitions.ensure_partitions(db, created + timedelta(days=day), PartitionPeriod.DAY)
    await insert_activity(db, created + timedelta(hours=1))
    ids = [id_at(created + timedelta(seconds=number)) for number in range(40)]
    await task_creation.enqueue_tasks(db, [make_new_task(id=id) for id in ids])
    claimed = await claim(db, await register_worker(), limit=40)
    assert len(claimed) == 40

    async def end_one_after_the_other() -> None:
        for task in claimed:
            await finish(db, [Settlement(task, completed_outcome())])

    cutoff = created + timedelta(days=2)
    ending = asyncio.create_task(end_one_after_the_other())
    dropped = []
    while not ending.done():
        dropped += await partitions.drop_old_partitions(db, cutoff)
        await asyncio.sleep(0)
    await ending
    dropped += await partitions.drop_old_partitions(db, cutoff)
    assert "activities_2020_03_04" in dropped
    assert "activities_2020_03_05" not in dropped
    assert set(ids) <= {row["id"] for row in await read_rows(db, "activities")}
    assert await partitions.delete_old_default_rows(db, cutoff, 100) == 0


async def test_late_record_of_a_dropped_day_goes_to_the_default_partition(
    db: Database, register_worker: Register
) -> None:
    created = datetime(2020, 3, 3, tzinfo=UTC)
    await partitions.ensure_partitions(db, created, PartitionPeriod.DAY)
    late = id_at(created)
    await task_creation.enqueue_tasks(db, [make_new_task(id=late)])
    assert "activities_2020_03_03" in await partitions.drop_old_partitions(db, created + timedelta(days=1))
    (task,) = await claim(db, await register_worker())
    assert await finish(db, [Settlement(task, completed_outcome())]) == {late}
    assert await partition_of(db, late) == "activities_old"


@pytest.fixture
async def seen(db: Database) -> AsyncIterator[partitions.PartitionedTable]:
    """A table of an extension, partitioned by an instant."""
    await db.write_all("CREATE SCHEMA tenuto_probe")
    await db.write_all("CREATE TABLE tenuto_probe.seen (at timestamptz NOT NULL) PARTITION BY RANGE (at)")
    await db.write_all("CREATE TABLE tenuto_probe.seen_default PARTITION OF tenuto_probe.seen DEFAULT")
    yield partitions.PartitionedTable("tenuto_probe", "seen", "instant")
    await db.write_all("DROP SCHEMA tenuto_probe CASCADE")


async def test_tables_of_extensions_change_their_period_like_activities(
    db: Database, seen: partitions.PartitionedTable
) -> None:
    made = await partitions.ensure_partitions_of_table(db, seen, JUNE)
    assert made == ["seen_2027_06", "seen_2027_07", "seen_2027_08", "seen_2027_09"]
    await db.write_all("INSERT INTO tenuto_probe.seen VALUES ('2027-08-02')")
    july = datetime(2027, 7, 1, tzinfo=UTC)
    assert await partitions.ensure_partitions_of_table(db, seen, JUNE, PartitionPeriod.DAY) == ["seen_2027_09_01"]
    made = await partitions.ensure_partitions_of_table(db, seen, july, PartitionPeriod.DAY)
    assert (made[0], made[-1]) == ("seen_2027_07_01", "seen_2027_07_08")
    assert await db.fetch_value("SELECT count(*) FROM tenuto_probe.seen") == 1, "a month with rows stays"
    dropped = await partitions.drop_old_partitions_of_table(db, seen, datetime(2027, 7, 3, tzinfo=UTC))
    assert dropped == ["seen_2027_06", "seen_2027_07_01", "seen_2027_07_02"]


async def test_partition_of_an_extension_is_not_created_over_rows_in_the_default_partition(
    db: Database, seen: partitions.PartitionedTable
) -> None:
    await db.write_all("INSERT INTO tenuto_probe.seen VALUES ('2027-06-15 12:00+00'), ('2027-06-17 00:00+00')")
    made = await partitions.ensure_partitions_of_table(db, seen, JUNE, PartitionPeriod.DAY)
    assert [name[-2:] for name in made] == ["16", "18", "19", "20", "21", "22"]
    assert await partitions.ensure_partitions_of_table(db, seen, JUNE, PartitionPeriod.DAY) == []
    assert await db.fetch_value("SELECT count(*) FROM tenuto_probe.seen_default") == 2


async def test_old_rows_of_an_extension_in_the_default_partition_are_deleted_in_batches(
    db: Database, seen: partitions.PartitionedTable
) -> None:
    await db.write_all(
        "INSERT INTO tenuto_probe.seen SELECT timestamptz '2027-06-14 23:59:59+00' + n * interval '1 second'"
        " FROM generate_series(-4, 1) AS n"
    )
    counts = [await partitions.delete_old_default_rows_of_table(db, JUNE, 3, table=seen) for _ in range(3)]
    assert counts == [3, 2, 0]
    assert await db.fetch_value("SELECT min(at) FROM tenuto_probe.seen") == JUNE
