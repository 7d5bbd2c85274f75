"""Housekeeping (W8): partitions are created ahead of time, records past their retention deleted, open work kept."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tenuto import Tenuto
from tenuto.clock import ManualClock
from tenuto.ids import new_id, smallest_id_at
from tenuto.lifecycle import completion
from tenuto.maintenance.housekeeping import Housekeeping
from tenuto.model.partition_ranges import month_start
from tenuto.model.triggers import every
from tenuto.operations.work import dead_letters
from tenuto.postgres.database import Database
from tenuto.service.process_identity import ProcessIdentity
from tenuto.settings import load_settings
from tenuto.store import partitions
from tenuto.store.definitions import manifests
from tests.store.test_partitions import insert_activity, list_partitions
from tests.support.manifests import ANA, create_batch, create_manifest, finish_all_runs
from tests.support.schedules import (
    claim_steps,
    create_schedule,
    finish_task,
    fire_due_schedules,
    load_execution,
    make_definition,
    make_settlement,
    read_table,
    run_claimable_steps,
    start_execution,
)
from tests.support.tasks import Register, create_and_claim, create_task, read_rows

NOW = datetime(2027, 6, 15, tzinfo=UTC)


def make_housekeeping(
    db: Database, clock: ManualClock, *, small_batches: bool = False, **settings: Any
) -> Housekeeping:
    limits: dict[str, Any] = {"batch_size": 2, "max_batches_per_cycle": 2} if small_batches else {}
    return Housekeeping(db, clock, load_settings(database=db.url, **settings), **limits)


async def test_housekeeping_cycle_creates_coming_partitions(db: Database) -> None:
    clock = ManualClock(NOW)
    assert await make_housekeeping(db, clock, housekeeping_seconds=42).run_cycle() == 42
    assert {"activities_2027_06", "activities_2027_09"} <= set(await list_partitions(db))


async def test_housekeeping_creates_and_drops_days_as_the_setting_says(db: Database) -> None:
    clock = ManualClock(NOW)
    settings: dict[str, Any] = {"partition_period": "day", "retention_days": 7}
    await make_housekeeping(db, clock, **settings).run_cycle()
    assert {"activities_2027_06_15", "activities_2027_06_22"} <= set(await list_partitions(db))
    await insert_activity(db, NOW)
    clock.advance(timedelta(days=8, hours=1))
    await make_housekeeping(db, clock, **settings).run_cycle()
    names = set(await list_partitions(db))
    assert "activities_2027_06_15" not in names, "seven days are kept, not a month more"
    assert {"activities_2027_06_16", "activities_2027_06_30"} <= names


@pytest.mark.parametrize("start", ["migrate", "open", "worker"])
async def test_commands_and_workers_create_partitions_of_the_period_that_is_set(
    url: str, tmp_path: Path, start: str
) -> None:
    app = Tenuto(settings=load_settings(database=url, home=tmp_path, partition_period="day"))
    async with app:
        if start == "worker":
            async with app.worker():
                pass
        else:
            await getattr(app, start)()
    async with Tenuto(url, home=tmp_path) as app:
        database = await app.open()
        month = month_start(database.clock.now(), 1)
        names = await list_partitions(database)
        assert f"activities_{month:%Y_%m_%d}" in names
        assert f"activities_{month:%Y_%m}" not in names


async def test_housekeeping_without_the_setting_keeps_the_period_of_other_services(db: Database) -> None:
    clock = ManualClock(NOW)
    await make_housekeeping(db, clock, partition_period="day").run_cycle()
    by_day = await list_partitions(db)
    await make_housekeeping(db, clock).run_cycle()
    assert await list_partitions(db) == by_day


async def test_retention_drops_old_partitions_and_keeps_recent_ones(db: Database, register_worker: Register) -> None:
    await partitions.ensure_partitions(db, datetime(2027, 1, 1, tzinfo=UTC))
    old_month = await insert_activity(db, datetime(2027, 1, 10, tzinfo=UTC))
    young_month = await insert_activity(db, datetime(2027, 4, 10, tzinfo=UTC))
    old_among_old = await insert_activity(db, datetime(2019, 1, 1, tzinfo=UTC))
    young_among_old = await insert_activity(db, datetime(2019, 1, 2, tzinfo=UTC), ended=NOW - timedelta(days=1))
    await create_and_claim(db, await register_worker())
    await create_task(db, run_at=NOW)
    live = await read_rows(db)
    await make_housekeeping(db, ManualClock(NOW), retention_days=90).run_cycle()
    kept = {row["id"] for row in await read_rows(db, "activities")}
    assert {young_month, young_among_old} <= kept
    assert kept.isdisjoint({old_month, old_among_old})
    assert await read_rows(db) == live


async def test_retention_deletes_old_idempotency_keys(db: Database) -> None:
    for key, at in (("old", NOW - timedelta(days=91)), ("young", NOW - timedelta(days=89))):
        await db.fetch_all("INSERT INTO tenuto.requests VALUES ('ana', $1, 'x', $2, $3)", key, new_id(), at)
    await make_housekeeping(db, ManualClock(NOW), retention_days=90).run_cycle()
    assert [row["key"] for row in await read_table(db, "requests")] == ["young"]


@pytest.mark.slow
async def test_locked_partition_does_not_block_other_deletions(
    db: Database, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await partitions.ensure_partitions(db, datetime(2027, 1, 1, tzinfo=UTC))
    for month in (1, 2):
        await insert_activity(db, datetime(2027, month, 10, tzinfo=UTC))
    await db.fetch_all(
        "INSERT INTO tenuto.requests VALUES ('ana', 'old', 'x', $1, $2)", new_id(), NOW - timedelta(days=91)
    )
    housekeeping = make_housekeeping(db, ManualClock(NOW), retention_days=90, housekeeping_seconds=42)
    reader = await asyncpg.connect(url)
    async with reader.transaction():
        await reader.fetch("SELECT FROM tenuto.activities_2027_01")
        assert [await housekeeping.run_cycle(), await housekeeping.run_cycle()] == [42, 42]
        assert await read_table(db, "requests") == []
        assert {"activities_2027_01", "activities_2027_02"} & set(await list_partitions(db)) == {"activities_2027_01"}
    assert caplog.text.count("deletion postponed kind='partition activities_2027_01'") == 1, "logged once"
    await reader.close()
    await housekeeping.run_cycle()
    assert "activities_2027_01" not in await list_partitions(db), "in the next cycle already"


async def test_retention_runs_at_its_interval(db: Database) -> None:
    clock = ManualClock(NOW)
    housekeeping = make_housekeeping(db, clock, retention_interval_seconds=3600)
    await housekeeping.run_cycle()
    aged = await insert_activity(db, datetime(2019, 1, 1, tzinfo=UTC))
    clock.advance(timedelta(minutes=59))
    await housekeeping.run_cycle()
    assert [row["id"] for row in await read_rows(db, "activities")] == [aged]
    clock.advance(timedelta(minutes=1))
    await housekeeping.run_cycle()
    assert await read_rows(db, "activities") == []


async def test_retention_deletes_many_rows_in_small_batches(db: Database) -> None:
    for day in range(1, 10):
        await insert_activity(db, datetime(2019, 1, day, tzinfo=UTC))
    housekeeping = make_housekeeping(db, ManualClock(NOW), small_batches=True, housekeeping_seconds=60)
    waits, left = [], []
    for _ in range(3):
        waits.append(await housekeeping.run_cycle())
        left.append(len(await read_rows(db, "activities")))
    assert left == [5, 1, 0]
    assert waits == [1.0, 1.0, 60], "the next cycle comes soon while rows are left"


async def test_silent_workers_are_ended_and_old_ones_deleted(db: Database, register_worker: Register) -> None:
    silent, busy, gone = [await register_worker() for _ in range(3)]
    await create_and_claim(db, busy)
    await db.fetch_all("UPDATE tenuto.workers SET seen_at = now() - interval '1 h'")
    await db.fetch_all("UPDATE tenuto.workers SET ended_at = '2019-01-01Z' WHERE id = $1", gone)
    await make_housekeeping(db, ManualClock(datetime.now(UTC))).run_cycle()
    left = {row["id"]: row["ended_at"] for row in await read_rows(db, "workers")}
    assert set(left) == {silent, busy}
    assert left[silent] is not None
    assert left[busy] is None


async def test_housekeeping_cycles_may_run_concurrently(db: Database) -> None:
    await asyncio.gather(*(make_housekeeping(db, ManualClock(NOW)).run_cycle() for _ in range(4)))
    assert "activities_2027_06" in await list_partitions(db)


async def test_suspended_process_does_not_end_its_own_services(
    db: Database, register_worker: Register, tmp_path: Path
) -> None:
    own = ProcessIdentity.acquire("worker", tmp_path, "own")
    own.id, other = await register_worker(), await register_worker()
    await db.fetch_all("UPDATE tenuto.workers SET seen_at = now() - interval '1 h'")
    await Housekeeping(db, ManualClock(datetime.now(UTC)), load_settings(database=db.url), [own]).run_cycle()
    own.release()
    ended = {row["id"] for row in await read_rows(db, "workers") if row["ended_at"] is not None}
    assert ended == {other}


async def test_retention_deletes_old_executions_and_ledger_rows_except_open_ones(
    db: Database, register_worker: Register
) -> None:
    worker_id, past = await register_worker(), NOW - timedelta(days=400)
    await create_schedule(db, make_definition("a", overlap="queue_one", trigger=every("1h")), past)
    for hour in range(1, 10):
        await fire_due_schedules(db, past + timedelta(hours=hour))
        await run_claimable_steps(db, worker_id, past + timedelta(hours=hour))
    await fire_due_schedules(db, past + timedelta(hours=10))
    await fire_due_schedules(db, past + timedelta(hours=11))
    open_ones = await read_table(db, "executions", "ended_at IS NULL"), await read_table(db, "tasks")
    queued = await read_table(db, "occurrences", "decision = 'queued'")
    assert len(open_ones[0]) == len(queued) == 1
    housekeeping = make_housekeeping(
        db, ManualClock(NOW), small_batches=True, housekeeping_seconds=60, retention_days=90
    )
    waits = [await housekeeping.run_cycle() for _ in range(4)]
    assert waits[0] == 1.0, "the next cycle comes soon while rows are left"
    assert waits[-1] == 60
    assert (await read_table(db, "executions"), await read_table(db, "tasks")) == open_ones
    assert await read_table(db, "occurrences") == queued


async def test_retention_keeps_activities_of_open_executions_and_logs_it(
    db: Database, register_worker: Register, caplog: pytest.LogCaptureFixture
) -> None:
    """One step of the group has failed; the other one may end a year later, and both decide how the execution ends."""
    worker_id, clock = await register_worker(), ManualClock(NOW)
    started_at = NOW - timedelta(days=200)
    old_month, old_among_old = started_at - timedelta(days=40), datetime(2019, 1, 1, tzinfo=UTC)
    await partitions.ensure_partitions(db, old_month)
    run = await start_execution(db, ["a", "b"], "c")
    await db.fetch_all("UPDATE tenuto.executions SET started_at = $1", started_at)
    held = await claim_steps(db, worker_id)
    failure = make_settlement(held["a"], started_at + timedelta(hours=1), "failed")
    await completion.finish(db, [failure])
    older = (
        await insert_activity(db, old_month),
        await insert_activity(db, old_among_old, ended=started_at - timedelta(minutes=1)),
    )
    since = await insert_activity(db, old_among_old + timedelta(days=1), ended=started_at + timedelta(minutes=1))

    housekeeping = make_housekeeping(db, clock, retention_days=90, retention_interval_seconds=60)
    for _ in range(2):
        await housekeeping.run_cycle()
        clock.advance(timedelta(hours=7))

    kept = {row["id"] for row in await read_rows(db, "activities")}
    assert {held["a"].id, since} <= kept, "it may belong to a run that a step waits for"
    assert kept.isdisjoint(older)
    assert caplog.text.count("activities retained for open execution") == 1, "logged once"
    assert str(run) in caplog.text
    await finish_task(db, held["b"])
    assert (await load_execution(db, run)).state == "failed"
    await housekeeping.run_cycle()
    assert {held["a"].id, since}.isdisjoint({row["id"] for row in await read_rows(db, "activities")})


async def test_retention_keeps_recent_executions_and_ledger_rows(db: Database, register_worker: Register) -> None:
    worker_id, past = await register_worker(), NOW - timedelta(days=10)
    await create_schedule(db, make_definition("a", trigger=every("1h")), past)
    await fire_due_schedules(db, past + timedelta(hours=1))
    await run_claimable_steps(db, worker_id, past + timedelta(hours=1))
    await make_housekeeping(db, ManualClock(NOW), retention_days=90).run_cycle()
    assert len(await read_table(db, "executions")) == len(await read_table(db, "occurrences")) == 1


async def test_retention_deletes_dead_letters_polls_checkpoints_and_batches(
    db: Database, register_worker: Register
) -> None:
    worker_id, past = await register_worker(), NOW - timedelta(days=400)
    stored = await create_manifest(db)
    await create_batch(db, stored, 5)
    await finish_all_runs(db, worker_id, "failed")
    await create_batch(db, stored, 1)
    chosen = [row["id"] for row in await read_table(db, "dead_letters")]
    await dead_letters.acknowledge_dead_letters(db, chosen[1:], past, ANA, note=None)
    await db.fetch_all("UPDATE tenuto.batches SET complete_at = $1", past)
    async with db.connection() as connection, connection.transaction():
        await connection.execute("SET LOCAL tenuto.retention = 'on'")
        await connection.execute("DELETE FROM tenuto.activities")
    for day in range(5):
        await manifests.record_poll(
            db, smallest_id_at(past + timedelta(days=day)), past, "test", 0.1, 0, 0, 0, "{}", None
        )
    await manifests.record_poll(db, smallest_id_at(NOW), NOW, "test", 0.1, 0, 0, 0, "{}", None)
    open_task = (await read_table(db, "tasks"))[0]["id"]
    for task in (open_task, *(new_id() for _ in range(5))):
        await db.fetch_all(
            "INSERT INTO tenuto.chain_steps (task_id, name, output, fence, ended_at) VALUES ($1, '1 a', '1', 1, $2)",
            task,
            past,
        )
    housekeeping = make_housekeeping(
        db, ManualClock(NOW), small_batches=True, housekeeping_seconds=60, retention_days=90
    )
    waits = [await housekeeping.run_cycle() for _ in range(3)]
    assert (waits[0], waits[-1]) == (1.0, 60), "the next cycle comes soon while rows are left"
    assert [row["id"] for row in await read_table(db, "dead_letters")] == chosen[:1], "open dead letters stay"
    assert [row["at"] for row in await read_table(db, "polls")] == [NOW]
    assert [row["task_id"] for row in await read_table(db, "chain_steps")] == [open_task]
    assert len(await read_table(db, "batches")) == 2, "one has an open item, the other an open dead letter"
