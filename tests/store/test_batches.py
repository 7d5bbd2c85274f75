"""Batches as rows (J6): counts that always add up, items with what became of each, paused and resumed and cancelled."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest
from asyncpg.transaction import Transaction

from tenuto.errors import Conflict, NotFound
from tenuto.ids import new_id
from tenuto.model.policies import Policy, RetryPolicy
from tenuto.operations import batches as bulk
from tenuto.operations import dead_letters
from tenuto.postgres.database import Database
from tenuto.store import batches
from tenuto.store import tasks as store
from tests.support.manifests import ANA, a_batch, counts, end, finish_all, kept, states, table, take
from tests.support.tasks import Register
from tests.support.waiting import eventually


@pytest.fixture
async def me(register_worker: Register) -> UUID:
    return await register_worker()


async def pause(db: Database, id: UUID) -> None:
    await bulk.pause(db, id, db.clock.now(), ANA)


async def cancel(db: Database, id: UUID) -> None:
    await bulk.cancel(db, id, db.clock.now(), ANA)


async def test_the_counts_add_up_at_every_moment(db: Database, me: UUID) -> None:
    batch = await a_batch(db, await kept(db, policy=Policy(RetryPolicy(max_retries=2, base_seconds=0, jitter=0))), 8)
    assert await counts(db, batch) == {"left": 8, "done": 0, "failed": 0, "cancelled": 0}
    first, second, third, fourth, *_ = await take(db, me, 5)
    await end(db, first)
    await end(db, second, "completed_with_warning")
    await end(db, third, "failed")
    assert await counts(db, batch) == {"left": 6, "done": 2, "failed": 0, "cancelled": 0}, "one is tried again"
    await end(db, fourth, "completed_with_error")
    assert await counts(db, batch) == {"left": 5, "done": 2, "failed": 1, "cancelled": 0}
    await store.promote(db, db.clock.now(), ["default"])
    await cancel(db, batch)
    assert await counts(db, batch) == {"left": 1, "done": 2, "failed": 1, "cancelled": 4}, "one still runs"
    (row,) = await table(db, "tasks")
    assert (row["state"], row["cancel_name"]) == ("running", "Ana")


async def test_an_item_that_was_run_again_is_told_of_by_its_new_task(db: Database, me: UUID) -> None:
    batch = await a_batch(db, await kept(db), 3)
    for status in ("failed", "failed", "completed"):
        (task,) = await take(db, me, 1)
        await end(db, task, status)
    assert await counts(db, batch) == {"left": 0, "done": 1, "failed": 2, "cancelled": 0}
    chosen = [row["id"] for row in await table(db, "dead_letters")]
    assert len(await dead_letters.retry(db, chosen, db.clock.now(), ANA)) == 2
    assert await counts(db, batch) == {"left": 2, "done": 1, "failed": 0, "cancelled": 0}
    assert await finish_all(db, me) == 2
    assert await counts(db, batch) == {"left": 0, "done": 3, "failed": 0, "cancelled": 0}
    told = await batches.items(db, batch, after=None, status=None, limit=10)
    assert [item["status"] for item in told] == ["completed"] * 3


async def test_items_are_told_by_page_and_by_what_became_of_them(db: Database, me: UUID) -> None:
    batch = await a_batch(db, await kept(db), 5)
    held = await take(db, me, 3)
    await end(db, held[0])
    await end(db, held[1], "failed")
    told = await batches.items(db, batch, after=None, status=None, limit=10)
    assert sorted(item["status"] for item in told) == ["completed", "failed", "in_progress", "queued", "queued"]
    first = await batches.items(db, batch, after=None, status=None, limit=2)
    rest = await batches.items(db, batch, after=first[-1]["task_id"], status=None, limit=10)
    assert [item["task_id"] for item in first + rest] == sorted(item["task_id"] for item in told)
    for status, number in (("completed", 1), ("failed", 1), ("in_progress", 1), ("queued", 2), ("waiting", 0)):
        assert len(await batches.items(db, batch, after=None, status=status, limit=10)) == number, status


async def test_of_a_paused_batch_nothing_begins_and_what_runs_goes_on(db: Database, me: UUID) -> None:
    batch = await a_batch(db, await kept(db), 4)
    (running,) = await take(db, me, 1)
    await pause(db, batch)
    assert await states(db) == {"running": 1, "waiting": 3}
    assert await take(db, me) == []
    await end(db, running)
    assert await counts(db, batch) == {"left": 3, "done": 1, "failed": 0, "cancelled": 0}
    await bulk.resume(db, batch, db.clock.now())
    assert await finish_all(db, me) == 3


async def test_nothing_of_a_paused_or_cancelled_batch_is_taken_though_its_items_were_not_held_back_yet(
    db: Database, me: UUID
) -> None:
    """Whoever pauses a hundred thousand items may be interrupted after the first."""
    batch, other = await a_batch(db, await kept(db), 3), await a_batch(db, await kept(db, "other"), 1)
    for column in ("paused_at", "cancelled_at"):
        await db.all(f"UPDATE tenuto.batches SET {column} = now() WHERE id = $1", batch)
        assert await states(db) == {"queued": 4}
        (task,) = await take(db, me)
        assert task.batch_id == other, column
        await store.put_back(db, me, [task])
        await db.all(f"UPDATE tenuto.batches SET {column} = NULL")


async def test_a_pause_a_resumption_and_a_cancellation_that_were_interrupted_are_brought_to_their_end(
    db: Database, me: UUID
) -> None:
    batch = await a_batch(db, await kept(db), 3)
    await db.all("UPDATE tenuto.batches SET paused_at = now(), paused_by = 'Ana'")
    await pause(db, batch)
    assert await states(db) == {"waiting": 3}
    with pytest.raises(Conflict, match="paused already"):
        await pause(db, batch)
    await db.all("UPDATE tenuto.batches SET paused_at = NULL, paused_by = NULL")
    await bulk.resume(db, batch, db.clock.now())
    assert await states(db) == {"queued": 3}
    with pytest.raises(Conflict, match="not paused"):
        await bulk.resume(db, batch, db.clock.now())
    await db.all("UPDATE tenuto.batches SET cancelled_at = now(), cancelled_by = 'Ana'")
    await cancel(db, batch)
    assert await counts(db, batch) == {"left": 0, "done": 0, "failed": 0, "cancelled": 3}
    for verb in (pause, cancel):
        with pytest.raises(Conflict, match="was cancelled by Ana"):
            await verb(db, batch)


async def test_what_would_be_tried_again_waits_with_its_batch_and_comes_back_at_its_time(
    db: Database, me: UUID
) -> None:
    policy = Policy(RetryPolicy(max_retries=3, base_seconds=3600, jitter=0))
    batch = await a_batch(db, await kept(db, policy=policy), 2)
    first, second = await take(db, me)
    await end(db, first, "failed")
    await pause(db, batch)
    await end(db, second, "failed")
    assert await states(db) == {"waiting": 2}
    assert await counts(db, batch) == {"left": 2, "done": 0, "failed": 0, "cancelled": 0}
    await bulk.resume(db, batch, db.clock.now())
    assert await states(db) == {"scheduled": 2}
    await pause(db, batch)
    later = db.clock.now() + timedelta(hours=2)
    assert (await store.promote(db, later, ["default"])).promoted == 0, "what falls due during the pause stays back"
    await bulk.resume(db, batch, later)
    assert await states(db) == {"queued": 2}


async def test_what_was_taken_and_not_begun_goes_back_to_wait_with_its_batch(db: Database, me: UUID) -> None:
    batch = await a_batch(db, await kept(db), 1)
    held = await take(db, me)
    await pause(db, batch)
    await store.put_back(db, me, held)
    assert await states(db) == {"waiting": 1}


async def test_a_lost_item_of_a_paused_batch_waits_with_it(db: Database, me: UUID) -> None:
    batch = await a_batch(db, await kept(db), 1)
    (task,) = await take(db, me)
    await pause(db, batch)
    await end(db, task, "lost")
    assert await states(db) == {"waiting": 1}


async def pause_behind(db: Database, batch: UUID, open_transaction: Transaction) -> None:
    """Pause while somebody has written something of the batch and not committed yet; he does once he is waited for."""

    async def commit_once_somebody_waits() -> None:
        try:
            await eventually(lambda: db.value("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"), 5)
        finally:
            await open_transaction.commit()

    await asyncio.gather(pause(db, batch), commit_once_somebody_waits())


async def test_what_is_held_by_a_promotion_while_the_batch_is_paused_is_held_back_too(
    db: Database, me: UUID, url: str
) -> None:
    policy = Policy(RetryPolicy(max_retries=3, base_seconds=3600, jitter=0))
    batch = await a_batch(db, await kept(db, policy=policy), 1)
    (task,) = await take(db, me)
    await end(db, task, "failed")
    other = await asyncpg.connect(url)
    transaction = other.transaction()
    await transaction.start()
    await other.fetch(store.SQL.promote, db.clock.now() + timedelta(hours=2), 10, ["default"])
    await pause_behind(db, batch, transaction)
    await other.close()
    assert await states(db) == {"waiting": 1}


async def test_what_is_being_put_back_while_the_batch_is_paused_is_held_back_too(
    db: Database, me: UUID, url: str
) -> None:
    batch = await a_batch(db, await kept(db), 1)
    (task,) = await take(db, me)
    other = await asyncpg.connect(url)
    transaction = other.transaction()
    await transaction.start()
    await other.fetch(store.SQL.put_back, me, [task.id], [task.fence])
    await pause_behind(db, batch, transaction)
    await other.close()
    assert await states(db) == {"waiting": 1}


async def test_a_cancelled_batch_is_over_nothing_of_it_comes_in_or_comes_back(db: Database, me: UUID) -> None:
    stored = await kept(db)
    batch = await a_batch(db, stored, 3)
    (failed,) = await take(db, me, 1)
    await end(db, failed, "failed")
    await cancel(db, batch)
    like = await bulk.pattern(db, stored, batch, db.clock.now(), ANA)
    with pytest.raises(Conflict, match="was cancelled by Ana"):
        await bulk.take_in(db, batch, 3, like, ["{}"], None)
    with pytest.raises(Conflict, match=r"not paused|cancelled"):
        await bulk.resume(db, batch, db.clock.now())
    (letter,) = await table(db, "dead_letters")
    with pytest.raises(Conflict, match="was cancelled"):
        await dead_letters.retry(db, [letter["id"]], db.clock.now(), ANA, refuse=True)
    assert await dead_letters.retry(db, [letter["id"]], db.clock.now(), ANA) == {}
    assert await counts(db, batch) == {"left": 0, "done": 0, "failed": 1, "cancelled": 2}


async def test_an_item_run_again_in_a_paused_batch_waits_for_it(db: Database, me: UUID) -> None:
    batch = await a_batch(db, await kept(db), 1)
    await finish_all(db, me, "failed")
    await pause(db, batch)
    (letter,) = await table(db, "dead_letters")
    await dead_letters.retry(db, [letter["id"]], db.clock.now(), ANA)
    assert await states(db) == {"waiting": 1}
    await bulk.resume(db, batch, db.clock.now())
    assert await finish_all(db, me) == 1


async def test_a_part_comes_in_once_and_only_what_is_missing_of_it(db: Database) -> None:
    stored = await kept(db)
    now = db.clock.now()
    batch = (await bulk.open_batch(db, stored, now, ANA, key="k", name=None))["id"]
    like = await bulk.pattern(db, stored, batch, now, ANA)
    assert await bulk.take_in(db, batch, 0, like, ["{}"] * 3, None) == 3
    assert await bulk.take_in(db, batch, 0, like, ["{}"] * 3, None) == 0
    assert await bulk.take_in(db, batch, 0, like, ["{}"] * 5, None) == 2
    assert (await bulk.open_batch(db, stored, now, ANA, key="k", name=None))["id"] == batch
    assert (await counts(db, batch))["left"] == 5


async def test_what_comes_into_a_paused_batch_waits(db: Database) -> None:
    stored = await kept(db)
    batch = await a_batch(db, stored, 1)
    await pause(db, batch)
    like = await bulk.pattern(db, stored, batch, db.clock.now(), ANA)
    await bulk.take_in(db, batch, 1, like, ["{}"] * 2, None)
    assert await states(db) == {"waiting": 3}


async def test_nothing_comes_in_for_a_manifest_that_is_gone(db: Database) -> None:
    stored = await kept(db)
    batch = (await bulk.open_batch(db, stored, db.clock.now(), ANA, key=None, name=None))["id"]
    like = await bulk.pattern(db, stored, batch, db.clock.now(), ANA)
    await db.all("DELETE FROM tenuto.manifests")
    with pytest.raises(Conflict, match="is gone"):
        await bulk.take_in(db, batch, 0, like, ["{}"], None)


async def test_the_key_of_a_batch_belongs_to_its_manifest(db: Database) -> None:
    await a_batch(db, await kept(db), 1, key="k")
    with pytest.raises(Conflict, match="belongs to a batch of 'bake'"):
        await a_batch(db, await kept(db, "other"), 1, key="k")


async def test_a_batch_nobody_knows_is_not_found(db: Database) -> None:
    for verb in (pause, cancel):
        with pytest.raises(NotFound):
            await verb(db, new_id())
    with pytest.raises(NotFound):
        await bulk.resume(db, new_id(), db.clock.now())


async def test_a_batch_is_forgotten_when_nothing_of_it_is_left(db: Database, me: UUID) -> None:
    stored = await kept(db)
    over, failed, open_one = [await a_batch(db, stored, 1) for _ in range(3)]
    by_batch = {task.batch_id: task for task in await take(db, me)}
    await end(db, by_batch[over])
    await end(db, by_batch[failed], "failed")
    cutoff = db.clock.now() + timedelta(days=1)
    assert await batches.forget(db, cutoff, 10) == 0, "their records are still there"
    async with db.connection() as connection, connection.transaction():
        await connection.execute("SET LOCAL tenuto.retention = 'on'")
        await connection.execute("DELETE FROM tenuto.activities")
    assert await batches.forget(db, db.clock.now() - timedelta(days=1), 10) == 0
    assert await batches.forget(db, cutoff, 10) == 1
    assert {row["id"] for row in await table(db, "batches")} == {failed, open_one}
