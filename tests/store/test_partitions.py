"""Months of the past (W8, J2): made ahead of time, dropped whole when they have aged, nothing live ever touched."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg

from tenuto.ids import first_id_at, new_id
from tenuto.lifecycle.completion import finish
from tenuto.model.tasks import Settlement
from tenuto.postgres.database import Database
from tenuto.store import partitions
from tenuto.store import tasks as store
from tenuto.store.activities import SQL
from tests.support.model_values import a_new_task
from tests.support.tasks import Register, claim, completed, rows, start
from tests.support.waiting import eventually

RECORD = """
INSERT INTO tenuto.activities (id, task_id, attempt, status, final, kind, name, queue, priority, created_at, run_at,
                               ended_at, fence, failures, losses, input, initiator_type, initiator_name)
VALUES ($1, $1, 1, 'completed', true, 'job', 'bake', 'default', 0, $2, $2, $3, 1, 0, 0, '{}', 'system', 'test')
"""
JUNE = datetime(2027, 6, 15, tzinfo=UTC)


def id_at(instant: datetime) -> UUID:
    return UUID(int=first_id_at(instant).int + 1)


async def record(db: Database, created: datetime, ended: datetime | None = None) -> UUID:
    await db.all(RECORD, id_at(created), created, ended or created)
    return id_at(created)


async def where_is(db: Database, id: UUID) -> str:
    return str(
        await db.value(
            "SELECT relname FROM tenuto.activities JOIN pg_class ON pg_class.oid = activities.tableoid WHERE id = $1",
            id,
        )
    )


async def months(db: Database) -> list[str]:
    return [row["name"] for row in await db.all(SQL.partitions)]


async def test_this_month_and_three_more_are_there_ahead_of_time(db: Database) -> None:
    made = await partitions.ensure(db, JUNE)
    assert made == ["activities_2027_06", "activities_2027_07", "activities_2027_08", "activities_2027_09"]
    assert await partitions.ensure(db, JUNE) == []
    assert await partitions.missing(db, JUNE, ahead=3) == []
    assert await partitions.missing(db, JUNE, ahead=4) == ["activities_2027_10"]


async def test_the_turn_of_the_year_is_a_month_like_any_other(db: Database) -> None:
    made = await partitions.ensure(db, datetime(2027, 11, 30, 23, 59, tzinfo=UTC))
    assert made == ["activities_2027_11", "activities_2027_12", "activities_2028_01", "activities_2028_02"]


async def test_several_that_make_partitions_at_once_make_each_once(db: Database) -> None:
    made = await asyncio.gather(*(partitions.ensure(db, JUNE) for _ in range(5)))
    assert len([name for names in made for name in names if name == "activities_2027_06"]) >= 1
    assert len(await months(db)) == len(set(await months(db)))


async def test_a_record_lies_in_the_month_its_task_was_created_in(db: Database) -> None:
    await partitions.ensure(db, JUNE)
    for instant, month in [
        (datetime(2027, 6, 1, tzinfo=UTC), "activities_2027_06"),
        (datetime(2027, 6, 30, 23, 59, 59, 999000, tzinfo=UTC), "activities_2027_06"),
        (datetime(2027, 7, 1, tzinfo=UTC), "activities_2027_07"),
    ]:
        assert await where_is(db, await record(db, instant)) == month


async def test_a_task_created_before_the_oldest_month_finds_room_among_the_old(
    db: Database, register_worker: Register
) -> None:
    old = id_at(datetime(2020, 1, 1, tzinfo=UTC))
    await store.start(db, [a_new_task(id=old)])
    (task,) = await claim(db, await register_worker())
    assert await finish(db, [Settlement(task, completed())]) == {old}
    assert await where_is(db, old) == "activities_old"


async def test_a_month_whose_records_already_lie_among_the_old_is_not_made_and_loses_nothing(db: Database) -> None:
    lying_there = await record(db, JUNE)
    assert await where_is(db, lying_there) == "activities_old"
    made = await partitions.ensure(db, JUNE)
    assert made == ["activities_2027_07", "activities_2027_08", "activities_2027_09"]
    assert await where_is(db, lying_there) == "activities_old"
    assert await where_is(db, await record(db, JUNE + timedelta(days=1))) == "activities_old"


async def test_whole_months_before_the_cutoff_are_dropped_and_the_others_stay(db: Database) -> None:
    await partitions.ensure(db, datetime(2020, 3, 1, tzinfo=UTC))
    gone = await record(db, datetime(2020, 3, 5, tzinfo=UTC))
    kept = await record(db, datetime(2020, 5, 5, tzinfo=UTC))
    dropped = await partitions.drop_aged(db, datetime(2020, 5, 20, tzinfo=UTC))
    assert dropped == ["activities_2020_03", "activities_2020_04"]
    left = {row["id"] for row in await rows(db, "activities")}
    assert kept in left
    assert gone not in left
    assert {"activities_old", "activities_2020_05", "activities_2020_06"} <= set(await months(db))


async def test_an_aged_month_with_a_record_that_ended_lately_is_kept(db: Database) -> None:
    await partitions.ensure(db, datetime(2020, 3, 1, tzinfo=UTC))
    await record(db, datetime(2020, 3, 5, tzinfo=UTC), ended=datetime(2020, 9, 1, tzinfo=UTC))
    assert "activities_2020_03" not in await partitions.drop_aged(db, datetime(2020, 8, 1, tzinfo=UTC))
    assert "activities_2020_03" in await partitions.drop_aged(db, datetime(2020, 10, 1, tzinfo=UTC))


async def test_several_that_drop_months_at_once_drop_each_once(db: Database) -> None:
    for year in (2019, 2020, 2021):
        await partitions.ensure(db, datetime(year, 3, 1, tzinfo=UTC))
        dropped = await asyncio.gather(
            *(partitions.drop_aged(db, datetime(year + 1, 1, 1, tzinfo=UTC)) for _ in range(4))
        )
        assert sorted(name for names in dropped for name in names) == [
            f"activities_{year}_{month:02}" for month in (3, 4, 5, 6)
        ]


async def test_a_record_written_while_its_month_is_about_to_be_dropped_keeps_the_month(
    db: Database, url: str, register_worker: Register
) -> None:
    march = datetime(2020, 3, 5, tzinfo=UTC)
    await partitions.ensure(db, march)
    await store.start(db, [a_new_task(id=id_at(march))])
    (task,) = await claim(db, await register_worker())
    other = await asyncpg.connect(url)
    transaction = other.transaction()
    await transaction.start()
    await other.execute(SQL.lock_partitions)
    dropping = asyncio.create_task(partitions.drop_aged(db, datetime(2020, 5, 1, tzinfo=UTC)))
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    await eventually(lambda: other.fetchval(waits))
    await finish(db, [Settlement(task, completed())])
    await transaction.commit()
    await other.close()
    assert "activities_2020_03" not in await dropping
    assert [row["id"] for row in await rows(db, "activities")] == [task.id]


async def test_a_task_still_to_be_done_does_not_keep_the_month_it_was_created_in(db: Database) -> None:
    march = datetime(2020, 3, 5, tzinfo=UTC)
    await partitions.ensure(db, march)
    await store.start(db, [a_new_task(id=id_at(march), run_at=JUNE)])
    assert "activities_2020_03" in await partitions.drop_aged(db, datetime(2020, 5, 1, tzinfo=UTC))


async def test_the_old_are_thinned_out_in_small_batches_by_when_they_ended(db: Database) -> None:
    cutoff = datetime(2021, 1, 1, tzinfo=UTC)
    for day in range(5):
        await record(db, datetime(2019, 1, 1 + day, tzinfo=UTC))
    young = await record(db, datetime(2019, 2, 1, tzinfo=UTC), ended=datetime(2026, 1, 1, tzinfo=UTC))
    counts = [await partitions.delete_old(db, cutoff, 2) for _ in range(4)]
    assert counts == [2, 2, 1, 0]
    assert [row["id"] for row in await rows(db, "activities")] == [young]


async def test_retention_never_touches_what_is_still_to_be_done(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    await store.start(db, [a_new_task(id=id_at(datetime(2019, 1, 1 + day, tzinfo=UTC))) for day in range(3)])
    await claim(db, worker, limit=1)
    await start(db, run_at=JUNE)
    before = await rows(db)
    far = datetime(2100, 1, 1, tzinfo=UTC)
    await partitions.drop_aged(db, far)
    await partitions.delete_old(db, far, 1000)
    assert await rows(db) == before


async def test_after_all_months_are_gone_a_finished_task_is_still_recorded(
    db: Database, register_worker: Register
) -> None:
    await partitions.drop_aged(db, datetime(2100, 1, 1, tzinfo=UTC))
    task_id = await start(db)
    (task,) = await claim(db, await register_worker())
    await finish(db, [Settlement(task, completed())])
    assert await where_is(db, task_id) == "activities_old"


def test_an_id_carries_the_instant_it_was_made_at() -> None:
    assert (
        first_id_at(datetime.now(UTC) - timedelta(seconds=5))
        < new_id()
        < first_id_at(datetime.now(UTC) + timedelta(seconds=5))
    )


async def test_a_fresh_record_is_not_dropped_though_as_many_tasks_of_its_month_are_open_as_before(
    db: Database, url: str, register_worker: Register
) -> None:
    march = datetime(2020, 3, 5, tzinfo=UTC)
    await partitions.ensure(db, march)
    await store.start(db, [a_new_task(id=id_at(march))])
    (task,) = await claim(db, await register_worker())
    other = await asyncpg.connect(url)
    transaction = other.transaction()
    await transaction.start()
    await other.execute(SQL.lock_partitions)
    dropping = asyncio.create_task(partitions.drop_aged(db, datetime(2020, 5, 1, tzinfo=UTC)))
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    await eventually(lambda: other.fetchval(waits))
    await finish(db, [Settlement(task, completed())])
    await store.start(db, [a_new_task(id=id_at(march + timedelta(days=1)))])  # asked for long ago, and come in only now
    await transaction.commit()
    await other.close()
    assert "activities_2020_03" not in await dropping
    assert [row["id"] for row in await rows(db, "activities")] == [task.id]


async def test_a_record_that_is_being_written_while_its_month_is_looked_at_keeps_the_month(
    db: Database, url: str
) -> None:
    march = datetime(2020, 3, 5, tzinfo=UTC)
    await partitions.ensure(db, march)
    other = await asyncpg.connect(url)
    transaction = other.transaction()
    await transaction.start()
    await other.execute(RECORD, id_at(march), march, JUNE)
    dropping = asyncio.create_task(partitions.drop_aged(db, datetime(2020, 5, 1, tzinfo=UTC)))
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'relation' AND NOT granted"
    await eventually(lambda: other.fetchval(waits))
    await transaction.commit()
    await other.close()
    assert "activities_2020_03" not in await dropping
    assert await where_is(db, id_at(march)) == "activities_2020_03"


async def test_a_task_whose_month_went_while_it_was_open_leaves_a_record_that_is_kept(
    db: Database, register_worker: Register
) -> None:
    march = datetime(2020, 3, 5, tzinfo=UTC)
    await partitions.ensure(db, march)
    await store.start(db, [a_new_task(id=id_at(march))])
    (task,) = await claim(db, await register_worker())
    cutoff = datetime(2020, 5, 1, tzinfo=UTC)
    assert "activities_2020_03" in await partitions.drop_aged(db, cutoff)
    assert await finish(db, [Settlement(task, completed())]) == {task.id}
    await partitions.drop_aged(db, cutoff)
    assert await partitions.delete_old(db, cutoff, 1000) == 0
    assert await where_is(db, task.id) == "activities_old"


async def test_whether_a_month_holds_a_young_record_is_known_without_reading_it(db: Database) -> None:
    await partitions.ensure(db, datetime(2020, 3, 1, tzinfo=UTC))
    await db.all(
        "INSERT INTO tenuto.activities_2020_03 (id, task_id, attempt, status, final, kind, name, queue, priority,"
        " created_at, run_at, ended_at, fence, failures, losses, input, initiator_type, initiator_name)"
        " SELECT id, id, 1, 'completed', true, 'job', 'bake', 'default', 0, at, at, at, 1, 0, 0, '{}', 'system', 'test'"
        " FROM (SELECT lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0')::text || lpad(to_hex(n), 20, '0')"
        "       AS hex, at, n FROM (SELECT timestamptz '2020-03-02Z' + n * interval '10 s' AS at, n"
        "                           FROM generate_series(1, 200000) AS n) AS spread) AS made,"
        " LATERAL (SELECT hex::uuid AS id) AS ids"
    )
    async with db.connection() as connection:
        await connection.execute("VACUUM tenuto.activities_2020_03")  # as autovacuum does, long before a month is old
        pages = await connection.fetchval("SELECT pg_relation_size('tenuto.activities_2020_03') / 8192")
        look = partitions.HAS_YOUNGER.format(name="activities_2020_03")
        text = await connection.fetchval(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {look}", datetime(2020, 5, 1, tzinfo=UTC)
        )
    (plan,) = json.loads(text)
    read = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
    assert read < pages / 20, f"{read} of {pages} pages"
    assert "activities_2020_03" in await partitions.drop_aged(db, datetime(2020, 5, 1, tzinfo=UTC))
