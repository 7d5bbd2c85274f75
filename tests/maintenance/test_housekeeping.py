"""Keeping the house (W8): partitions ahead of time, records past their keeping dropped, live work never touched."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tenuto.clock import ManualClock
from tenuto.ids import first_id_at, new_id
from tenuto.lifecycle import completion
from tenuto.maintenance import housekeeping as module
from tenuto.maintenance.housekeeping import Housekeeping
from tenuto.model.triggers import every
from tenuto.operations import dead_letters
from tenuto.postgres.database import Database
from tenuto.service.process_identity import Identity
from tenuto.settings import load
from tenuto.store import manifests, partitions
from tests.store.test_partitions import months, record
from tests.support.manifests import ANA, a_batch, finish_all, kept
from tests.support.schedules import a_definition, end, fire, outcome, play, saved, started, table, take, the_execution
from tests.support.tasks import Register, rows, start, start_and_claim

NOW = datetime(2027, 6, 15, tzinfo=UTC)


def house(db: Database, clock: ManualClock, **settings: Any) -> Housekeeping:
    return Housekeeping(db, clock, load(database=db.url, **settings))


async def test_a_round_makes_the_months_to_come_and_says_when_the_next_is_due(db: Database) -> None:
    clock = ManualClock(NOW)
    assert await house(db, clock, housekeeping_seconds=42).round() == 42
    assert {"activities_2027_06", "activities_2027_09"} <= set(await months(db))


async def test_what_is_past_its_keeping_is_dropped_and_the_rest_is_kept(
    db: Database, register_worker: Register
) -> None:
    await partitions.ensure(db, datetime(2027, 1, 1, tzinfo=UTC))
    old_month = await record(db, datetime(2027, 1, 10, tzinfo=UTC))
    young_month = await record(db, datetime(2027, 4, 10, tzinfo=UTC))
    old_among_old = await record(db, datetime(2019, 1, 1, tzinfo=UTC))
    young_among_old = await record(db, datetime(2019, 1, 2, tzinfo=UTC), ended=NOW - timedelta(days=1))
    await start_and_claim(db, await register_worker())
    await start(db, run_at=NOW)
    live = await rows(db)
    await house(db, ManualClock(NOW), retention_days=90).round()
    kept = {row["id"] for row in await rows(db, "activities")}
    assert {young_month, young_among_old} <= kept
    assert kept.isdisjoint({old_month, old_among_old})
    assert await rows(db) == live


async def test_requests_nobody_sends_again_are_forgotten(db: Database) -> None:
    for key, at in (("old", NOW - timedelta(days=91)), ("young", NOW - timedelta(days=89))):
        await db.all("INSERT INTO tenuto.requests VALUES ('ana', $1, 'x', $2, $3)", key, new_id(), at)
    await house(db, ManualClock(NOW), retention_days=90).round()
    assert [row["key"] for row in await table(db, "requests")] == ["young"]


async def test_a_month_that_somebody_reads_for_long_does_not_keep_the_rest(
    db: Database, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await partitions.ensure(db, datetime(2027, 1, 1, tzinfo=UTC))
    for month in (1, 2):
        await record(db, datetime(2027, month, 10, tzinfo=UTC))
    await db.all("INSERT INTO tenuto.requests VALUES ('ana', 'old', 'x', $1, $2)", new_id(), NOW - timedelta(days=91))
    keeping = house(db, ManualClock(NOW), retention_days=90, housekeeping_seconds=42)
    reader = await asyncpg.connect(url)
    async with reader.transaction():
        await reader.fetch("SELECT FROM tenuto.activities_2027_01")
        assert [await keeping.round(), await keeping.round()] == [42, 42]
        assert await table(db, "requests") == []
        assert {"activities_2027_01", "activities_2027_02"} & set(await months(db)) == {"activities_2027_01"}
    assert caplog.text.count("cannot be let go yet what='month activities_2027_01'") == 1, "not again and again"
    await reader.close()
    await keeping.round()
    assert "activities_2027_01" not in await months(db), "and not only when retention is due again"


async def test_retention_waits_for_its_turn(db: Database) -> None:
    clock = ManualClock(NOW)
    keeping = house(db, clock, retention_every_seconds=3600)
    await keeping.round()
    aged = await record(db, datetime(2019, 1, 1, tzinfo=UTC))
    clock.advance(timedelta(minutes=59))
    await keeping.round()
    assert [row["id"] for row in await rows(db, "activities")] == [aged]
    clock.advance(timedelta(minutes=1))
    await keeping.round()
    assert await rows(db, "activities") == []


async def test_a_mountain_of_old_records_is_taken_down_in_small_batches_until_it_is_gone(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    monkeypatch.setattr(module, "_BATCHES_PER_ROUND", 2)
    for day in range(1, 10):
        await record(db, datetime(2019, 1, day, tzinfo=UTC))
    keeping = house(db, ManualClock(NOW), housekeeping_seconds=60)
    waits, left = [], []
    for _ in range(3):
        waits.append(await keeping.round())
        left.append(len(await rows(db, "activities")))
    assert left == [5, 1, 0]
    assert waits == [1.0, 1.0, 60], "while more is waiting, the next round comes soon"


async def test_workers_nobody_hears_of_are_closed_and_those_long_gone_forgotten(
    db: Database, register_worker: Register
) -> None:
    silent, busy, gone = [await register_worker() for _ in range(3)]
    await start_and_claim(db, busy)
    await db.all("UPDATE tenuto.workers SET seen_at = now() - interval '1 h'")
    await db.all("UPDATE tenuto.workers SET ended_at = '2019-01-01Z' WHERE id = $1", gone)
    await house(db, ManualClock(datetime.now(UTC))).round()
    left = {row["id"]: row["ended_at"] for row in await rows(db, "workers")}
    assert set(left) == {silent, busy}
    assert left[silent] is not None
    assert left[busy] is None


async def test_any_number_may_keep_house_at_once(db: Database) -> None:
    await asyncio.gather(*(house(db, ManualClock(NOW)).round() for _ in range(4)))
    assert "activities_2027_06" in await months(db)


async def test_a_process_that_was_suspended_does_not_close_its_own_services(
    db: Database, register_worker: Register, tmp_path: Path
) -> None:
    own = Identity.take("worker", tmp_path, "own")
    own.id, other = await register_worker(), await register_worker()
    await db.all("UPDATE tenuto.workers SET seen_at = now() - interval '1 h'")
    await Housekeeping(db, ManualClock(datetime.now(UTC)), load(database=db.url), [own]).round()
    own.release()
    ended = {row["id"] for row in await rows(db, "workers") if row["ended_at"] is not None}
    assert ended == {other}


async def test_old_executions_and_rows_of_the_ledger_are_forgotten_and_open_ones_kept(
    db: Database, register_worker: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    monkeypatch.setattr(module, "_BATCHES_PER_ROUND", 2)
    me, past = await register_worker(), NOW - timedelta(days=400)
    await saved(db, a_definition("a", overlap="queue_one", trigger=every("1h")), past)
    for hour in range(1, 10):
        await fire(db, past + timedelta(hours=hour))
        await play(db, me, past + timedelta(hours=hour))
    await fire(db, past + timedelta(hours=10))
    await fire(db, past + timedelta(hours=11))
    open_ones = await table(db, "executions", "ended_at IS NULL"), await table(db, "tasks")
    queued = await table(db, "occurrences", "decision = 'queued'")
    assert len(open_ones[0]) == len(queued) == 1
    keeping = house(db, ManualClock(NOW), housekeeping_seconds=60, retention_days=90)
    waits = [await keeping.round() for _ in range(4)]
    assert waits[0] == 1.0, "small batches, and soon again while there is more"
    assert waits[-1] == 60
    assert (await table(db, "executions"), await table(db, "tasks")) == open_ones
    assert await table(db, "occurrences") == queued


async def test_what_an_open_execution_has_yet_to_read_is_kept_however_old_and_the_log_says_for_whom(
    db: Database, register_worker: Register, caplog: pytest.LogCaptureFixture
) -> None:
    """One step of its group has failed; the other may end a year later, and what that means is decided by both."""
    me, clock = await register_worker(), ManualClock(NOW)
    begun = NOW - timedelta(days=200)
    old_month, old_among_old = begun - timedelta(days=40), datetime(2019, 1, 1, tzinfo=UTC)
    await partitions.ensure(db, old_month)
    run = await started(db, ["a", "b"], "c")
    await db.all("UPDATE tenuto.executions SET started_at = $1", begun)
    held = await take(db, me)
    failure = outcome(held["a"], begun + timedelta(hours=1), "failed")
    await completion.finish(db, [failure])
    older = await record(db, old_month), await record(db, old_among_old, ended=begun - timedelta(minutes=1))
    since = await record(db, old_among_old + timedelta(days=1), ended=begun + timedelta(minutes=1))

    keeping = house(db, clock, retention_days=90, retention_every_seconds=60)
    for _ in range(2):
        await keeping.round()
        clock.advance(timedelta(hours=7))

    kept = {row["id"] for row in await rows(db, "activities")}
    assert {held["a"].id, since} <= kept, "of a manifest's run that a step waits for, perhaps"
    assert kept.isdisjoint(older)
    assert caplog.text.count("kept beyond their time for an execution that is still open") == 1, "not again and again"
    assert str(run) in caplog.text
    await end(db, held["b"])
    assert (await the_execution(db, run))["state"] == "failed"
    await keeping.round()
    assert {held["a"].id, since}.isdisjoint({row["id"] for row in await rows(db, "activities")})


async def test_young_executions_and_rows_of_the_ledger_are_kept(db: Database, register_worker: Register) -> None:
    me, past = await register_worker(), NOW - timedelta(days=10)
    await saved(db, a_definition("a", trigger=every("1h")), past)
    await fire(db, past + timedelta(hours=1))
    await play(db, me, past + timedelta(hours=1))
    await house(db, ManualClock(NOW), retention_days=90).round()
    assert len(await table(db, "executions")) == len(await table(db, "occurrences")) == 1


async def test_resolved_letters_polls_steps_and_batches_past_their_keeping_are_forgotten_in_small_batches(
    db: Database, register_worker: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    monkeypatch.setattr(module, "_BATCHES_PER_ROUND", 2)
    me, past = await register_worker(), NOW - timedelta(days=400)
    stored = await kept(db)
    await a_batch(db, stored, 5)
    await finish_all(db, me, "failed")
    await a_batch(db, stored, 1)
    chosen = [row["id"] for row in await table(db, "dead_letters")]
    await dead_letters.acknowledge(db, chosen[1:], past, ANA, note=None)
    await db.all("UPDATE tenuto.batches SET complete_at = $1", past)
    async with db.connection() as connection, connection.transaction():
        await connection.execute("SET LOCAL tenuto.retention = 'on'")
        await connection.execute("DELETE FROM tenuto.activities")
    for day in range(5):
        await manifests.record_poll(db, first_id_at(past + timedelta(days=day)), past, "me", 0.1, 0, 0, 0, "{}", None)
    await manifests.record_poll(db, first_id_at(NOW), NOW, "me", 0.1, 0, 0, 0, "{}", None)
    open_task = (await table(db, "tasks"))[0]["id"]
    for task in (open_task, *(new_id() for _ in range(5))):
        await db.all(
            "INSERT INTO tenuto.chain_steps (task_id, name, output, fence, ended_at) VALUES ($1, '1 a', '1', 1, $2)",
            task,
            past,
        )
    keeping = house(db, ManualClock(NOW), housekeeping_seconds=60, retention_days=90)
    waits = [await keeping.round() for _ in range(3)]
    assert (waits[0], waits[-1]) == (1.0, 60), "small batches, and soon again while there is more"
    assert [row["id"] for row in await table(db, "dead_letters")] == chosen[:1], "an open letter stays"
    assert [row["at"] for row in await table(db, "polls")] == [NOW]
    assert [row["task_id"] for row in await table(db, "chain_steps")] == [open_task]
    assert len(await table(db, "batches")) == 2, "of one an item is open, of the other a letter"
